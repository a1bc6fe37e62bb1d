"""The networks that are measured: each gives its model, its batches and its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, ...]


class Place(NamedTuple):
    """Where a network is built."""

    device: torch.device
    dtype: torch.dtype  # of weights and floating inputs


class Network(NamedTuple):
    """A model, its batches and its loss."""

    model: nn.Module
    make_batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]


def mlp(place: Place) -> Network:
    """Two hidden layers."""
    model = nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.GELU(), nn.Linear(8192, 1000))
    return classifier(model, place, (512, 4096))


def convnet(place: Place, *, channels_last: bool = False, inplace: bool = False) -> Network:
    """Four convolutions with batch norm."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 64, 2), (64, 128, 1), (128, 256, 2), (256, 512, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace)]
        layers += [nn.MaxPool2d(3, 2, 1)] if inputs == 3 else []
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return classifier(model.to(memory_format=layout), place, (32, 3, 224, 224), layout)


def classifier(
    model: nn.Module, place: Place, shape: tuple[int, ...], layout: torch.memory_format = torch.contiguous_format
) -> Network:
    """A thousand classes."""

    def make_batch() -> Batch:
        inputs = torch.randn(shape, device=place.device, dtype=place.dtype).to(memory_format=layout)
        return inputs, torch.randint(0, 1000, shape[:1], device=place.device)

    return Network(model.to(*place), make_batch, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def language(model: nn.Module, place: Place, vocabulary: int, shape: tuple[int, int]) -> Network:
    """Next tokens."""

    def make_batch() -> Batch:
        first, second = (torch.randint(0, vocabulary, shape, device=place.device) for _ in range(2))
        return first, second

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return Network(model.to(*place), make_batch, loss)


class Recurrent(nn.Module):
    """Two layers of LSTM."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, 512), nn.Linear(1024, vocabulary)
        self.layers = nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.layers(self.embedding(ids))[0])


def lstm(place: Place) -> Network:
    """A language model of recurrent layers."""
    return language(Recurrent(20_000), place, 20_000, (32, 128))


class Experts(nn.Module):
    """The best two of eight feed-forward layers for every token."""

    def __init__(self, width: int, hidden: int, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Every expert sees an equal share of the tokens, so sizes do not depend on values."""
        tokens = x.flatten(0, -2)
        weights = self.router(tokens).softmax(-1)
        share = tokens.shape[0] * self.chosen // len(self.experts)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            weight, picked = weights[:, number].topk(share)
            out = out.index_add(0, picked, expert(tokens[picked]) * weight.unsqueeze(-1).to(tokens.dtype))
        return out.view_as(x)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, *, fused: bool, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.fused, self.dropout = heads, fused, dropout

    def forward(self, x: Tensor) -> Tensor:
        """Fused, or scores in full."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            y = F.dropout(scores.masked_fill(future, float("-inf")).softmax(-1), dropout, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, attention: Attention, feed: nn.Module, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(dropout)
        self.attention, self.feed = attention, feed

    def forward(self, x: Tensor) -> Tensor:
        """Two sums."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.feed(self.norm2(x)))


class Gpt(nn.Module):
    """A decoder with learned positions."""

    def __init__(self, blocks: list[Block], width: int, vocabulary: int, *, checkpoints: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.head, self.checkpoints = nn.Linear(width, vocabulary, bias=False), checkpoints

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(self.norm(x))


def gpt(
    place: Place, *, layers: int = 6, vocabulary: int = 50_304, batch: int = 4, dropout: float = 0.0,
    fused: bool = True, checkpoints: bool = False,
) -> Network:
    """GPT-2's shapes, fewer layers."""
    width, heads = 768, 12
    blocks = [
        Block(
            Attention(width, heads, fused=fused, dropout=dropout),
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)), width, dropout,
        )
        for _ in range(layers)
    ]
    model = Gpt(blocks, width, vocabulary, checkpoints=checkpoints)
    return language(model, place, vocabulary, (batch, 1024))


def moe(place: Place) -> Network:
    """Experts instead of the feed-forward layer."""
    width = 512
    blocks = [Block(Attention(width, 8, fused=True, dropout=0.0), Experts(width, 2048), width, 0.0) for _ in range(4)]
    return language(Gpt(blocks, width, 32_000, checkpoints=False), place, 32_000, (4, 1024))


class Convolutions(nn.Module):
    """Two convolutions with group norm, and what went in."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """As in diffusion networks."""
        return self.skip(x) + self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))


class Unet(nn.Module):
    """Down and up again, with skips."""

    def __init__(self, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(Convolutions(i, o) for i, o in zip([width, *widths], widths, strict=False))
        self.up = nn.ModuleList(Convolutions(2 * o, i) for i, o in zip([width, *widths], widths, strict=False))

    def forward(self, x: Tensor) -> Tensor:
        """Noise of the same shape."""
        x = self.first(x)
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        for up, skip in zip(reversed(self.up), reversed(skips), strict=True):
            x = up(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))
        return self.last(x)


def unet(place: Place) -> Network:
    """Denoising."""

    def make_batch() -> Batch:
        noisy, noise = (torch.randn(8, 3, 64, 64, device=place.device, dtype=place.dtype) for _ in range(2))
        return noisy, noise

    return Network(Unet().to(*place), make_batch, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


def timm(place: Place, *, model: str) -> Network:
    """An image network of timm."""
    import timm as library

    return classifier(library.create_model(model, pretrained=False), place, (32, 3, 224, 224))


def transformers(place: Place, **options: Any) -> Network:
    """A network of transformers."""
    from truth.measure.huggingface import network

    return network(place, **options)


NETWORKS: Final[Mapping[str, Callable[..., Network]]] = {
    "mlp": mlp, "convnet": convnet, "lstm": lstm, "gpt": gpt, "moe": moe, "unet": unet, "timm": timm,
    "transformers": transformers,
}
