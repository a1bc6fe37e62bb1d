"""What a CUDA reduction allocates: partial results of thread blocks that share an output, and a wider accumulator.

[reduce] pytorch aten/src/ATen/native/cuda/Reduce.cuh: `setReduceConfig`, `ReduceConfig`, `AccumulationBuffer`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.tracing.rules.iteration import Walk
from vramcast.units import ceil_div

THREADS: Final = 512  # of a block, before dividing by the width of an output vector
WARP: Final = 32
MIN_VALUES: Final = 16  # of a thread
MAX_VALUES: Final = 256
LONG_ROW: Final = 128  # elements from which inner reductions load vectors
SEMAPHORE_BYTES: Final = 4


class Chip(NamedTuple):
    """What of a GPU decides how reductions are split."""

    multiprocessors: int
    threads: int  # of a multiprocessor


class Kernel(NamedTuple):
    """One reduction's template arguments."""

    accumulator_bytes: int  # sizeof(arg_t)
    vector: int = 4  # elements loaded at once along the input
    threads: int = THREADS  # 256 for complex double
    accumulates_in_output: bool = True  # the accumulator converts to the output's type without loss


class Global(NamedTuple):
    """Global memory of one launch."""

    buffer_bytes: int
    semaphore_bytes: int


def buffers(walk: Walk, kernel: Kernel, chip: Chip) -> Iterator[Global]:
    """Of every launch, in order; those without global memory left out."""
    for part in walk.parts():
        launch = _launch(part, kernel, chip)
        if launch is not None:
            yield launch


def accumulator_bytes(walk: Walk, kernel: Kernel, out_itemsize: int) -> int:
    """The buffer that holds wide results between launches, 0 where one launch does all [bytes]."""
    if walk.fits_32_bits or kernel.accumulates_in_output or out_itemsize >= kernel.accumulator_bytes:
        return 0
    extent = max([out_itemsize, *(size * stride for size, stride in zip(walk.sizes, walk.output, strict=True))])
    return extent // out_itemsize * kernel.accumulator_bytes


def _launch(walk: Walk, kernel: Kernel, chip: Chip) -> Global | None:
    """[reduce] `setReduceConfig`; None where no output is shared between blocks."""
    outputs, inner = walk.outputs, _is_inner(walk)
    inputs = walk.elements // max(1, outputs)
    dim0, dim1 = (inputs, outputs) if inner else (outputs, inputs)
    vector = 1
    if _fastest(walk, inner) == walk.itemsize:
        if inner and dim0 >= LONG_ROW and walk.num_reduced == 1:
            dim0 //= kernel.vector
        elif not inner:
            vector = _output_vector(walk)
            dim0 //= vector
    width, height = _block(dim0, dim1, kernel.threads // vector)
    values = ceil_div(inputs, width) if inner else inputs
    if values < min(height * MIN_VALUES, MAX_VALUES):
        return None
    values = ceil_div(inputs, (width if inner else 1) * height)
    columns = ceil_div(outputs // vector, 1 if inner else width)
    wanted = chip.multiprocessors * (chip.threads // (width * height))
    if values < MAX_VALUES or columns > wanted:
        return None
    shared = max(min(ceil_div(wanted, columns), ceil_div(values, MIN_VALUES)), ceil_div(values, MAX_VALUES))
    if shared <= 1:
        return None
    buffer = kernel.accumulator_bytes * outputs * shared * (1 if inner else width * vector)
    return Global(buffer, SEMAPHORE_BYTES * columns)


def _is_inner(walk: Walk) -> bool:
    """Whether the input's fastest dimension is reduced."""
    reduced = walk.num_reduced
    return reduced == len(walk.sizes) or (reduced > 0 and walk.input[0] < walk.input[reduced])


def _fastest(walk: Walk, inner: bool) -> int:
    if not walk.sizes:
        return walk.itemsize
    return walk.input[0 if inner else walk.num_reduced]


def _output_vector(walk: Walk) -> int:
    """Outputs a thread makes at once: 4, 2 or 1, as far as everything is a multiple of it."""
    column = walk.num_reduced
    strides = [stride // walk.itemsize for dim, stride in enumerate(walk.input) if dim != column]
    values = (walk.offset, walk.sizes[column], *strides)
    return next(vector for vector in (4, 2, 1) if all(value % vector == 0 for value in values))


def _block(dim0: int, dim1: int, threads: int) -> tuple[int, int]:
    """Width and height of a thread block [reduce `set_block_dimension`]."""
    full_width, full_height = (_last_power(dim) if dim < threads else threads for dim in (dim0, dim1))
    height = min(full_height, threads // min(full_width, WARP))
    return min(full_width, threads // height), height


def _last_power(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


__all__ = ["Chip", "Global", "Kernel", "accumulator_bytes", "buffers"]
