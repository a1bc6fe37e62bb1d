"""The buffer that PyTorch's CUDA reductions allocate when several thread blocks share one output.

Summing (rows, columns) over the rows, as the gradient of every broadcast weight or bias does, splits the rows over
blocks; each block writes fp32 partial sums to global memory. For a hidden size of 4096 these are tens of MiB.

[reduce] pytorch aten/src/ATen/native/cuda/Reduce.cuh: `setReduceConfig`, `ReduceConfig::set_block_dimension`,
`ReduceConfig::global_memory_size`
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.units import ceil_div, round_up

MAX_THREADS: Final = 512  # of a block, before dividing by the vector width
WARP: Final = 32
MIN_VALUES_PER_THREAD: Final = 16
MAX_VALUES_PER_THREAD: Final = 256
ACCUMULATOR_BYTES: Final = 4
SEMAPHORE_BYTES: Final = 4  # one int for each block column


class Chip(NamedTuple):
    """What of a GPU decides how reductions are split."""

    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048


H100: Final = Chip()


def _last_pow2(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


def _block(dim0: int, dim1: int, max_threads: int) -> tuple[int, int]:
    """Width and height of a thread block [reduce `set_block_dimension`]."""
    width0 = _last_pow2(dim0) if dim0 < max_threads else max_threads
    height0 = _last_pow2(dim1) if dim1 < max_threads else max_threads
    width = min(width0, WARP)
    height = min(height0, max_threads // width)
    return min(width0, max_threads // height), height


def column_sum_bytes(*, rows: int, columns: int, chip: Chip = H100) -> int:
    """Global buffer and semaphores of `x.sum(0)` for a contiguous x of (rows, columns) [bytes].

    >>> column_sum_bytes(rows=2048, columns=4096, chip=Chip(108)) - 32 * 4 == 64 << 20
    True
    """
    vector = next(width for width in (4, 2, 1) if columns % width == 0)
    width, height = _block(columns // vector, rows, MAX_THREADS // vector)
    values = rows
    if values >= height * MIN_VALUES_PER_THREAD or values >= MAX_VALUES_PER_THREAD:
        values = ceil_div(rows, height)
    else:
        return 0
    blocks_per_chip = chip.multiprocessors * (chip.threads_per_multiprocessor // (width * height))
    grid = ceil_div(columns // vector, width)
    if values < MAX_VALUES_PER_THREAD or grid > blocks_per_chip:
        return 0
    shared = max(
        min(ceil_div(blocks_per_chip, grid), ceil_div(values, MIN_VALUES_PER_THREAD)),
        ceil_div(values, MAX_VALUES_PER_THREAD),
    )
    return ACCUMULATOR_BYTES * columns * shared * width * vector + SEMAPHORE_BYTES * grid if shared > 1 else 0


def full_sum_bytes(*, elements: int, chip: Chip = H100) -> int:
    """Global buffer and semaphores of `x.sum()` for a contiguous fp32 x that 32-bit indices reach [bytes]."""
    values = ceil_div(elements, MAX_THREADS)
    if values < MAX_VALUES_PER_THREAD:
        return 0
    blocks_per_chip = chip.multiprocessors * (chip.threads_per_multiprocessor // MAX_THREADS)
    shared = max(
        min(blocks_per_chip, ceil_div(values, MIN_VALUES_PER_THREAD)), ceil_div(values, MAX_VALUES_PER_THREAD)
    )
    return round_up(ACCUMULATOR_BYTES * shared, 512) + SEMAPHORE_BYTES
