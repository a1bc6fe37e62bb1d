"""Shapes of the weights one rank stores, shares of the model's parameters, and sizes of states that follow from them.

Symbols:  n elements   m x k the weight as a matrix   r rank
[FSDP2] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py `FSDPParam._init_sharded_param`: each weight is cut
along its first dimension, padded to a multiple of the group.
[TP] pytorch torch/distributed/tensor/parallel/style.py: columns, rows, or copies.
"""

from __future__ import annotations

from math import prod
from typing import Final

from vramcast.domain.model import Parameter
from vramcast.parallel.layout import Layout
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


def local_shape(parameter: Parameter, layout: Layout) -> Shape:
    """Shape of a weight after tensor and expert parallelism, leading dimension first."""
    if layout.tp == layout.ep == layout.etp == 1 and layout.vocab_divisor == 1:
        return parameter.shape
    local = layout.local_elements(parameter)
    if parameter.expert:
        experts = ceil_div(parameter.shape[0], layout.ep)
        inner = local // experts
        columns = parameter.shape[-1]
        return (experts, inner) if len(parameter.shape) < 3 else (experts, inner // columns, columns)
    if len(parameter.shape) == 1:
        return (local,)
    rest = parameter.elements // parameter.shape[0]
    return (ceil_div(local, rest), *parameter.shape[1:])


def sharded_shape(shape: Shape, ranks: int) -> Shape:
    """The padded share of one of `ranks` data-parallel ranks [FSDP2].

    >>> sharded_shape((4096, 14336), 8)
    (512, 14336)
    """
    return (ceil_div(shape[0], ranks), *shape[1:]) if shape else shape
