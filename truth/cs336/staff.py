"""The network as the course itself writes it, and as the recordings `medium_*` and `xl_*` show it.

Shapes: B batch, T positions, N heads, H width of a head, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from truth.cs336.sizes import Sizes

EPSILON: Final = 1e-5


class Linear(nn.Module):
    """A product without bias."""

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """One einsum."""
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    """A table that is indexed."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, device=device))

    def forward(self, ids_BT: Tensor) -> Tensor:
        """One `aten::index`."""
        return self.weight[ids_BT, :]


class RMSNorm(nn.Module):
    """Root mean square, multiplied by its inverse."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """In fp32, whatever the input."""
        dtype = x.dtype
        x = x.to(torch.float32)
        inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)
        x = x * inverse
        return (self.weight * x).to(dtype)


class Rotary(nn.Module):
    """Rotary embedding with its table on the device; all positions from the first: a view of it."""

    def __init__(self, context: int, head: int, device: torch.device) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context), 10_000 ** -(torch.arange(0, head, 2) / head))
        self.register_buffer("table", torch.stack([angles.cos(), angles.sin()]).to(device), persistent=False)

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """Even and odd columns, turned and joined."""
        even, odd = x.reshape(*x.shape[:-1], -1, 2).movedim(-1, 0)
        cos, sin = self.table[:, : x.shape[-2]] if places is None else self.table[:, places]
        first = cos * even - sin * odd
        second = sin * even + cos * odd
        return torch.cat([first.unsqueeze(-1), second.unsqueeze(-1)], dim=-1).flatten(-2).contiguous()


def softmax(x: Tensor) -> Tensor:
    """The exponentials are computed once."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponentials = torch.exp(shifted)
    return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


def attention(q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor, mask_TT: Tensor) -> Tensor:
    """Scores in full."""
    scores = torch.einsum("...qh,...kh->...qk", q_BNTH, k_BNTH) / math.sqrt(k_BNTH.shape[-1])
    scores = torch.where(mask_TT, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kh->...qh", weights, v_BNTH)


class Attention(nn.Module):
    """Causal attention of all heads."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.q, self.k, self.v, self.o = (Linear(sizes.width, sizes.width, device) for _ in range(4))
        self.rotary = Rotary(sizes.context, sizes.head, device)

    def forward(self, x: Tensor) -> Tensor:
        """Project, turn, attend, project."""
        length = x.shape[-2]
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        q = self.rotary(q)
        k = self.rotary(k)
        places = torch.arange(length, device=x.device)
        rows, columns = places[:, None], places[None, :]
        mask = rows >= columns
        y = attention(q, k, v, mask)
        y = y.transpose(1, 2).flatten(-2).contiguous()
        return self.o(y)


class LeavingAttention(Attention):
    """As it was compiled: the graph ends at einx, which is not traced, with the positions that tables are read at."""

    def forward(self, x: Tensor) -> Tensor:
        """Project in one graph, turn, attend and project in another."""
        length = x.shape[-2]
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        places = torch.arange(length, device=x.device)
        torch._dynamo.graph_break()
        q = self.rotary(q, places)
        k = self.rotary(k, places)
        rows, columns = torch.arange(length, device=x.device)[:, None], torch.arange(length, device=x.device)[None, :]
        y = attention(q, k, v, rows >= columns)
        y = y.transpose(1, 2).flatten(-2).contiguous()
        return self.o(y)


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.w1 = Linear(sizes.width, sizes.hidden, device)
        self.w2 = Linear(sizes.hidden, sizes.width, device)
        self.w3 = Linear(sizes.width, sizes.hidden, device)

    def forward(self, x: Tensor) -> Tensor:
        """One expression: every result dies when it was read."""
        return self.w2(silu(self.w1(x)) * self.w3(x))


def silu(x: Tensor) -> Tensor:
    """By hand."""
    return x * torch.sigmoid(x)


class Block(nn.Module):
    """Norm, attention, sum; norm, feed-forward, sum."""

    def __init__(self, sizes: Sizes, device: torch.device, attention: type[Attention]) -> None:
        super().__init__()
        self.attention = attention(sizes, device)
        self.feed = SwiGLU(sizes, device)
        self.norm1, self.norm2 = RMSNorm(sizes.width, device), RMSNorm(sizes.width, device)

    def forward(self, x: Tensor) -> Tensor:
        """Every result has a name of its own until the end."""
        attended = self.attention(self.norm1(x))
        middle = x + attended
        fed = self.feed(self.norm2(middle))
        return middle + fed


class Transformer(nn.Module):
    """Embedding, blocks, norm, logits."""

    def __init__(self, sizes: Sizes, device: torch.device, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.embedding = Embedding(sizes.vocabulary, sizes.width, device)
        self.blocks = nn.ModuleList(Block(sizes, device, attention) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.width, device)
        self.head = Linear(sizes.width, sizes.vocabulary, device)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits; what the embedding gave lives to the end."""
        embedded = self.embedding(ids_BT)
        x = embedded
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def log_softmax(x: Tensor) -> Tensor:
    """By hand."""
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The mean of what is gathered at the targets."""
    negative = -log_softmax(logits_BTV)
    return torch.mean(torch.gather(negative, -1, targets_BT.unsqueeze(-1)))


class AdamW(torch.optim.Optimizer):
    """The course's optimizer: states are made in the first step, new ones replace them in every step."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Any = None) -> None:
        """Zeros are made for every `get`, also where the states exist."""
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state, gradient = self.state[parameter], parameter.grad.data
            parameter.data -= 1e-5 * parameter.data
            m = state.get("m", torch.zeros_like(gradient))
            v = state.get("v", torch.zeros_like(gradient))
            new_m = 0.9 * m + 0.1 * gradient
            new_v = 0.999 * v + 0.001 * torch.square(gradient)
            parameter.data -= 1e-3 * new_m / (torch.sqrt(new_v) + 1e-8)
            state["m"], state["v"] = new_m, new_v
