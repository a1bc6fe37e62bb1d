"""The workspace of memory-efficient attention's backward.

Symbols:  I rows and J columns of a block   K widest head a kernel is made for
[kernel] pytorch aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h: `workspace_elements_gk`,
`workspace_elements_gv`, `workspace_elements_gq`, `workspace_strideBH`
[list] kernels/cutlassB.h `dispatch_cutlassB_bf16_sm80`, `dispatch_cutlassB_f32_sm80`: the first that fits is taken
[splits] cuda/attention_backward.cu `_efficient_attention_backward`
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.units import ceil_div, round_up

FP32: Final = 4
LOCK_BYTES: Final = 16  # lock, counter and padding of every block
ENOUGH_PARALLELISM: Final = 256
MOST_STAGED: Final = 200
ALIGNMENT: Final = 4  # elements
WIDE: Final = 65_536
LITTLE_SHARED: Final = frozenset({86, 87, 89, 120, 121})  # 99 KiB a block


class Problem(NamedTuple):
    """Sizes of one attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    widest: int  # of query and value heads
    query_width: int
    value_width: int


class Tile(NamedTuple):
    """One kernel."""

    rows: int  # I
    columns: int  # J
    widest: int  # K
    needs_shared: bool = False  # more than 99 KiB


HALF: Final = (
    Tile(64, 64, 32), Tile(64, 64, 64), Tile(128, 128, 128, True), Tile(64, 64, 128), Tile(128, 64, WIDE, True),
    Tile(64, 64, WIDE),
)
HALF_LITTLE_SHARED: Final = Tile(128, 64, 96)
FULL: Final = (
    Tile(64, 64, 32), Tile(64, 64, 64), Tile(128, 64, 128, True), Tile(64, 64, 128), Tile(128, 64, WIDE, True),
    Tile(64, 64, WIDE),
)


def backward_workspace_bytes(problem: Problem, itemsize: int, sm: int, *, dropout: bool = False) -> int:
    """fp32 gradients that blocks hand on to each other [bytes].

    Leaves out cards before Ampere, whose kernels are smaller.
    """
    tile = _tile(problem.widest, itemsize, sm, dropout=dropout)
    staged = itemsize == 2 and tile.widest > tile.rows  # keys' gradients do not stay in registers
    splits = ceil_div(problem.keys, tile.columns)
    if problem.batch * problem.heads >= ENOUGH_PARALLELISM and problem.keys <= 2 * tile.columns:
        splits = 1
    if staged:
        splits = min(splits, MOST_STAGED // (problem.batch * problem.heads))
    splits = max(1, splits)
    elements = 0
    if staged:
        widths = (problem.query_width, problem.value_width)
        elements += sum(splits * tile.columns * round_up(width, tile.rows) for width in widths)
    blocks = ceil_div(problem.queries, tile.rows) * ceil_div(problem.query_width, tile.columns)
    elements += blocks * (LOCK_BYTES // FP32 + tile.rows * tile.columns)
    return problem.batch * problem.heads * round_up(elements, ALIGNMENT) * FP32


def _tile(widest: int, itemsize: int, sm: int, *, dropout: bool) -> Tile:
    """The first kernel of the list that takes the head and fits into shared memory [list]."""
    little = sm in LITTLE_SHARED
    if itemsize == 2 and little and not dropout and 64 < widest <= HALF_LITTLE_SHARED.widest:
        return HALF_LITTLE_SHARED
    tiles = HALF if itemsize == 2 else FULL
    return next(tile for tile in tiles if widest <= tile.widest and not (little and tile.needs_shared))


__all__ = ["Problem", "backward_workspace_bytes"]
