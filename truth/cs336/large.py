"""The network as the recording `large_forward_bf16` shows it: weights first in every product, a rotary module that each
attention makes anew, heads turned before they are moved, a softmax whose steps have names.

Shapes: B batch, T positions, N heads, H width of a head, D width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn

from truth.cs336.sizes import Sizes
from truth.cs336.staff import Embedding

EPSILON: Final = 1e-5
THETA: Final = 10_000


class Linear(nn.Module):
    """A product without bias."""

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """One einsum that names the weight first: autocast converts it first."""
        return torch.einsum("oi,...i->...o", self.weight, x)


class RMSNorm(nn.Module):
    """Root mean square, divided by."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """The mean of squares has a name until the end."""
        mean = (x**2).mean(-1, keepdim=True)
        root = torch.sqrt(mean + EPSILON)
        return x / root * self.weight


class Rotary(nn.Module):
    """Rotary embedding; its tables are made on the device."""

    def __init__(self, context: int, head: int, device: torch.device) -> None:
        super().__init__()
        columns = torch.arange(0, head, 2, dtype=torch.float32, device=device)
        exponents = columns / head
        frequencies = 1.0 / (THETA**exponents)
        positions = torch.arange(context, dtype=torch.float32, device=device)
        angles = torch.einsum("i,j->ij", positions, frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x_BTNH: Tensor, positions_BT: Tensor) -> Tensor:
        """Even and odd columns."""
        cos = self.cos[positions_BT].unsqueeze(-2)
        sin = self.sin[positions_BT].unsqueeze(-2)
        even, odd = x_BTNH[..., ::2], x_BTNH[..., 1::2]
        first = even * cos - odd * sin
        second = even * sin + odd * cos
        return torch.stack([first, second], dim=-1).flatten(-2)


def softmax(x: Tensor) -> Tensor:
    """Every step has a name."""
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    shifted = x - largest
    exponentials = torch.exp(shifted)
    total = torch.sum(exponentials, dim=-1, keepdim=True)
    return exponentials / total


def attention(q_BNTH: Tensor, k_BNTH: Tensor, v_BNTH: Tensor, mask_TT: Tensor) -> Tensor:
    """Scores in full, masked before they are divided."""
    products = torch.einsum("...qh,...kh->...qk", q_BNTH, k_BNTH)
    masked = torch.where(mask_TT, products, float("-inf"))
    weights = softmax(masked / math.sqrt(q_BNTH.shape[-1]))
    return torch.einsum("...qk,...kh->...qh", weights, v_BNTH)


class Attention(nn.Module):
    """Causal attention of all heads."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.q, self.k, self.v, self.o = (Linear(sizes.width, sizes.width, device) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Project, turn, move heads forward, attend, project."""
        batch, length, width = x.shape
        q = self.q(x).unflatten(-1, (self.heads, -1))
        k = self.k(x).unflatten(-1, (self.heads, -1))
        v = self.v(x).unflatten(-1, (self.heads, -1))
        positions = torch.arange(length, device=x.device).expand(batch, -1)
        rotary = Rotary(length, width // self.heads, x.device)
        turned_q = rotary(q, positions)
        turned_k = rotary(k, positions)
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device))
        y = attention(turned_q.transpose(1, 2), turned_k.transpose(1, 2), v.transpose(1, 2), mask)
        joined = y.transpose(1, 2).flatten(-2)
        return self.o(joined)


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
        value = self.w3(x)
        opened = gate * torch.sigmoid(gate)
        product = opened * value
        return self.w2(product)


class Block(nn.Module):
    """Norm, attention, sum; norm, feed-forward, sum."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(sizes.width, device), RMSNorm(sizes.width, device)
        self.attention, self.feed = Attention(sizes, device), SwiGLU(sizes, device)

    def forward(self, x: Tensor) -> Tensor:
        """In two expressions."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


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
