"""Sizes of states that follow from a weight's shape.

Symbols:  n elements   m x k the weight as a matrix   r rank
"""

from __future__ import annotations

from math import prod
from typing import Final

from vramcast.units import ceil_div

Shape = tuple[int, ...]

SMALLEST_8BIT: Final = 4096
"""Weights below this keep fp32 states [bitsandbytes optim/optimizer.py, `min_8bit_size`]."""
BLOCK_8BIT: Final = 256
BLOCK_4BIT: Final = 128
"""Elements that share one fp32 constant [bitsandbytes optim/optimizer.py; torchao optim/subclass_4bit.py]."""


def elements(shape: Shape) -> int:
    return prod(shape)


def full(shape: Shape, width: int) -> int:
    """A tensor of the weight's shape [bytes]."""
    return elements(shape) * width


def matrix(shape: Shape) -> tuple[int, int]:
    """m x k: the last two dimensions, everything before them folded into m."""
    return elements(shape[:-1]), shape[-1]


def eight_bit(shape: Shape) -> tuple[int, int]:
    """A block-quantised state and its constants [bytes]; small weights keep fp32."""
    n = elements(shape)
    return (4 * n, 0) if n < SMALLEST_8BIT else (n, 4 * ceil_div(n, BLOCK_8BIT))


def eight_bit_beside(shape: Shape, width: int = 4) -> tuple[int, int]:
    """As `eight_bit`, but states of small weights are as wide as these."""
    n = elements(shape)
    return (width * n, 0) if n < SMALLEST_8BIT else (n, 4 * ceil_div(n, BLOCK_8BIT))


def grouped_eight_bit(shape: Shape) -> int:
    """One byte an element and a 16-bit scale per 32 of them [bytes; flashoptim optimizers.py `quantize`]."""
    n = elements(shape)
    return n + 2 * ceil_div(n, 32)


def four_bit(shape: Shape, width: int = 4) -> tuple[int, int]:
    """Two elements a byte and their constants [bytes]; states of small weights are as wide as these."""
    n = elements(shape)
    return (width * n, 0) if n < SMALLEST_8BIT else (ceil_div(n, 2), 4 * ceil_div(n, BLOCK_4BIT))


def factored(shape: Shape, *, vectors: bool = True) -> tuple[int, int]:
    """Row and column means of a second moment, fp32 [bytes].

    Args:
        shape: of the weight
        vectors: a weight of one dimension keeps the whole moment; else nothing
    """
    if len(shape) < 2:
        return (4 * elements(shape) if vectors else 0), 0
    return 4 * elements(shape[:-1]), 4 * elements(shape[:-2]) * shape[-1]


def low_rank(shape: Shape, rank: int) -> int:
    """Elements of a projected gradient: r times the longer side."""
    m, k = matrix(shape)
    return min(rank, m, k) * max(m, k)


def projection(shape: Shape, rank: int) -> int:
    """Elements of the projection: r times the shorter side."""
    m, k = matrix(shape)
    return min(rank, m, k) * min(m, k)


def preconditioners(shape: Shape, largest: int) -> int:
    """Elements of one symmetric matrix per side; sides above `largest` are cut into blocks of it.

    >>> preconditioners((2048, 1024), 1024)
    4194304
    """
    m, k = matrix(shape)
    blocks = ceil_div(m, largest) * ceil_div(k, largest)
    side_m, side_k = min(m, largest), min(k, largest)
    return blocks * (side_m * side_m + side_k * side_k)


def rotations(shape: Shape, largest: int) -> int:
    """Elements of one symmetric matrix per side; sides above `largest` have none."""
    return sum(side * side for side in matrix(shape) if side <= largest)


def gram(shape: Shape) -> int:
    """Elements of X X^T over the shorter side."""
    m, k = matrix(shape)
    return min(m, k) ** 2
