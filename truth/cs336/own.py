"""The network as the recordings `small_*` show it: rotary tables on the host, a mask made for every layer, an optimizer
that makes its states when it is built.

Shapes: B batch, T positions, N heads, H width of a head, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from truth.cs336.sizes import Sizes

EPSILON: Final = 1e-5
MASKED: Final = -1e9


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
        return self.weight[ids_BT]


class RMSNorm(nn.Module):
    """Root mean square, divided by."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Square, mean, sum, root, quotient, product."""
        root = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + EPSILON)
        return x / root * self.weight


class Rotary(nn.Module):
    """Rotary embedding whose tables stay on the host: every call copies its rows."""

    def __init__(self, context: int, head: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context), 10_000 ** -(torch.arange(0, head, 2) / head))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Even and odd columns, sliced anew for each product."""
        cos = self.cos[positions].to(x.device)
        sin = self.sin[positions].to(x.device)
        even = x[..., ::2] * cos - x[..., 1::2] * sin
        odd = x[..., ::2] * sin + x[..., 1::2] * cos
        return torch.stack([even, odd], dim=-1).flatten(-2)


def softmax(x: Tensor) -> Tensor:
    """The exponentials are computed twice."""
    largest = x.max(dim=-1, keepdim=True)[0]
    return torch.exp(x - largest) / torch.sum(torch.exp(x - largest), dim=-1, keepdim=True)


def attention(q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor, mask_TT: Tensor) -> Tensor:
    """Scores in full; the mask and the width of a head come from the host."""
    mask_TT = mask_TT.to(q_BNTH.device)
    products = torch.einsum("...qh,...kh->...qk", q_BNTH, k_BNTH)
    scores = products / torch.sqrt(torch.tensor(q_BNTH.shape[-1]).to(q_BNTH.device))
    scores.masked_fill_(~mask_TT.bool(), MASKED)
    weights = softmax(scores)
    return torch.einsum("...qk,...kh->...qh", weights, v_BNTH)


class Attention(nn.Module):
    """Causal attention of all heads."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.q, self.k, self.v, self.o = (Linear(sizes.width, sizes.width, device) for _ in range(4))
        self.rotary = Rotary(sizes.context, sizes.head)

    def forward(self, x: Tensor) -> Tensor:
        """Project, turn, attend, project."""
        batch, length, _ = x.shape
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q = q.reshape(batch, length, self.heads, -1).transpose(1, 2)
        k = k.reshape(batch, length, self.heads, -1).transpose(1, 2)
        v = v.reshape(batch, length, self.heads, -1).transpose(1, 2)
        positions = torch.arange(length)
        q = self.rotary(q, positions)
        k = self.rotary(k, positions)
        mask = torch.tril(torch.ones(length, length))
        y = attention(q, k, v, mask)
        y = y.transpose(1, 2).reshape(batch, length, -1)
        return self.o(y)


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.w1 = Linear(sizes.width, sizes.hidden, device)
        self.w2 = Linear(sizes.hidden, sizes.width, device)
        self.w3 = Linear(sizes.width, sizes.hidden, device)

    def forward(self, x: Tensor) -> Tensor:
        """All results have a name until the end."""
        gate = self.w1(x)
        gate = gate * torch.sigmoid(gate)
        value = self.w3(x)
        product = gate * value
        return self.w2(product)


class Block(nn.Module):
    """Norm, attention, sum; norm, feed-forward, sum."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(sizes.width, device), RMSNorm(sizes.width, device)
        self.attention = Attention(sizes, device)
        self.feed = SwiGLU(sizes, device)

    def forward(self, x: Tensor) -> Tensor:
        """The input is replaced by the first sum."""
        y = self.norm1(x)
        attended = self.attention(y)
        x = x + attended
        z = self.norm2(x)
        fed = self.feed(z)
        return x + fed


class Transformer(nn.Module):
    """Embedding, blocks, norm, logits."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.embedding = Embedding(sizes.vocabulary, sizes.width, device)
        self.blocks = nn.ModuleList(Block(sizes, device) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.width, device)
        self.head = Linear(sizes.width, sizes.vocabulary, device)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(ids_BT)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def last_position(logits_BTV: Tensor) -> Tensor:
    """`logits[:, -1, :]` as torch 2.6 ran it: with slices that take everything; newer versions leave them out."""
    whole = torch.ops.aten.slice.Tensor(logits_BTV, 0, 0, 2**63 - 1).select(1, -1)
    return torch.ops.aten.slice.Tensor(whole, 1, 0, 2**63 - 1)


def cross_entropy(logits_BV: Tensor, targets_B: Tensor) -> Tensor:
    """Against one-hot targets."""
    largest = logits_BV.max(dim=-1, keepdim=True)[0]
    logarithms = logits_BV - largest - torch.log(torch.sum(torch.exp(logits_BV - largest), dim=-1, keepdim=True))
    hot = torch.zeros_like(logarithms).scatter_(1, targets_B.unsqueeze(1), 1.0)
    return -torch.sum(hot * logarithms) / logits_BV.shape[0]


class Adam(torch.optim.Optimizer):
    """AdamW that makes new tensors for its states and for the parameters in every step."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["m"] = torch.zeros_like(parameter.data)
            state["v"] = torch.zeros_like(parameter.data)

    def step(self, closure: Any = None) -> None:
        """The old states die when the names are bound to the next parameter's."""
        for parameter in self.param_groups[0]["params"]:
            gradient, state = parameter.grad.data, self.state[parameter]
            m = state["m"]
            new_m = 0.9 * m + 0.1 * gradient
            v = state["v"]
            new_v = 0.9 * v + 0.1 * gradient**2
            state["m"], state["v"] = new_m, new_v
            parameter.data = parameter.data - 1e-3 * (new_m / (torch.sqrt(new_v) + 1e-8))
            parameter.data = parameter.data - 1e-5 * parameter.data
