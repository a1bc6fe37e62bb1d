"""What a CUDA reduction allocates: partial results of thread blocks that share an output, and a wider accumulator.

Summing (rows, columns) over the rows, as the gradient of every broadcast weight or bias does, splits the rows over
blocks; each block writes fp32 partial sums to global memory. For a hidden size of 4096 these are tens of MiB.
PyTorch walks over a reduction with dimensions reordered and merged, split where indices need 64 bits.
[iterator] pytorch aten/src/ATen/TensorIterator.cpp: `reorder_dimensions`, `coalesce_dimensions`, `num_reduce_dims`,
`can_use_32bit_indexing`, `get_dim_to_split`, `split`
[reduce] pytorch aten/src/ATen/native/cuda/Reduce.cuh: `setReduceConfig`, `ReduceConfig`, `AccumulationBuffer`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.units import FP32, ceil_div

LARGEST_INDEX: Final = (1 << 31) - 1


class Strided(Struct, frozen=True):
    """What of a tensor decides how it is walked over."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # [elements]
    itemsize: int  # [bytes]
    offset: int = 0  # of its first element in its storage [elements]


class Walk(Struct, frozen=True):
    """Output and input of a reduction, fastest dimension first; the output's stride is 0 where it is reduced."""

    sizes: tuple[int, ...]
    output: tuple[int, ...]  # strides [bytes]
    input: tuple[int, ...]  # strides [bytes]
    itemsize: int  # of the input [bytes]
    offset: int = 0  # of the input [elements]

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def num_reduced(self) -> int:
        """Dimensions that are reduced; they come first."""
        return sum(stride == 0 for stride in self.output)

    @property
    def outputs(self) -> int:
        return prod(size for size, stride in zip(self.sizes, self.output, strict=True) if stride)

    @property
    def fits_32_bits(self) -> bool:
        """Whether byte offsets of both operands fit into 32 bits."""
        reach = max(
            1 + sum((size - 1) * stride for size, stride in zip(self.sizes, strides, strict=True))
            for strides in (self.output, self.input)
        )
        return self.elements <= LARGEST_INDEX and reach <= LARGEST_INDEX

    def parts(self) -> Iterator[Walk]:
        """Itself, or halves of it along its longest dimension until 32 bits are enough, in the order they run."""
        if self.fits_32_bits:
            yield self
            return
        extents = [
            ((size - 1) * stride, dim)
            for dim in range(len(self.sizes) - 1, -1, -1)
            for size, stride in ((self.sizes[dim], self.output[dim]), (self.sizes[dim], self.input[dim]))
        ]
        dim = max(extents, key=lambda extent: extent[0])[1]
        half = self.sizes[dim] // 2
        for size in (half, self.sizes[dim] - half):
            yield from replace(self, sizes=(*self.sizes[:dim], size, *self.sizes[dim + 1:])).parts()


def reduction(source: Strided, dims: Sequence[int], out_itemsize: int) -> Walk:
    """The walk of reducing `dims` of a tensor into a contiguous output.

    >>> reduction(Strided((8, 4, 16), (64, 16, 1), 4), (0, 1), 4)
    Walk(sizes=(32, 16), output=(0, 4), input=(64, 4), itemsize=4, offset=0)
    """
    reduced = {dim % len(source.sizes) for dim in dims} if source.sizes else set()
    out, step = [0] * len(source.sizes), out_itemsize
    for dim in range(len(source.sizes) - 1, -1, -1):
        if dim not in reduced:
            out[dim] = step
            step *= source.sizes[dim]
    # an output dimension of size one keeps a stride of its own, an input's does not where it was expanded
    order = _reordered(source.sizes, out, source.strides)
    walk = Walk(
        tuple(source.sizes[dim] for dim in order), tuple(out[dim] for dim in order),
        tuple(source.strides[dim] * source.itemsize for dim in order), source.itemsize, source.offset,
    )
    return _merged(walk)


def _reordered(sizes: Sequence[int], out: Sequence[int], source: Sequence[int]) -> list[int]:
    """Dimensions, fastest first: an insertion sort whose comparison is not transitive [iterator]."""
    order = list(range(len(sizes) - 1, -1, -1))
    for start in range(1, len(order)):
        place = start
        for before in range(start - 1, -1, -1):
            comparison = _compared(sizes, out, source, order[before], order[place])
            if comparison > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif comparison < 0:
                break
    return order


def _compared(sizes: Sequence[int], out: Sequence[int], source: Sequence[int], first: int, second: int) -> int:
    """1 if the first dimension should come after the second, -1 before, 0 undecided."""
    if (out[first] == 0) != (out[second] == 0):
        return 1 if out[second] == 0 else -1
    for strides in (out, source):
        one, other = strides[first], strides[second]
        if one == 0 or other == 0:
            continue
        if one != other:
            return -1 if one < other else 1
        if sizes[first] > sizes[second]:
            return 1
    return 0


def _merged(walk: Walk) -> Walk:
    """Neighbouring dimensions that both operands step through alike become one."""
    dims: list[list[int]] = []
    for size, out, source in zip(walk.sizes, walk.output, walk.input, strict=True):
        if dims:
            last = dims[-1]
            if last[0] == 1:
                dims[-1] = [size, out, source]
                continue
            if size == 1 or (last[0] * last[1] == out and last[0] * last[2] == source):
                last[0] *= size
                continue
        dims.append([size, out, source])
    sizes, outs, sources = zip(*dims, strict=True) if dims else ((), (), ())
    return replace(walk, sizes=tuple(sizes), output=tuple(outs), input=tuple(sources))


THREADS: Final = 512  # of a block, before dividing by the width of an output vector
WARP: Final = 32
MIN_VALUES: Final = 16  # of a thread
MAX_VALUES: Final = 256
LONG_ROW: Final = 128  # elements from which inner reductions load vectors
SEMAPHORE_BYTES: Final = 4


class Chip(Struct, frozen=True):
    """What of a GPU decides how reductions are split."""

    multiprocessors: int = 132
    threads: int = 2048  # of a multiprocessor


H100: Final = Chip()


class Kernel(Struct, frozen=True):
    """One reduction's template arguments."""

    accumulator_bytes: int  # sizeof(arg_t)
    vector: int = 4  # elements loaded at once along the input
    threads: int = THREADS  # 256 for complex double
    accumulates_in_output: bool = True  # the accumulator converts to the output's type without loss


class Global(Struct, frozen=True):
    """Global memory of one launch."""

    buffer_bytes: int
    semaphore_bytes: int


def buffers(walk: Walk, kernel: Kernel, chip: Chip) -> Iterator[Global]:
    """Of every launch, in order; those without global memory left out."""
    for part in walk.parts():
        found = launch(part, kernel, chip)
        if found is not None:
            yield found


def accumulator_bytes(walk: Walk, kernel: Kernel, out_itemsize: int) -> int:
    """The buffer that holds wide results between launches, 0 where one launch does all [bytes]."""
    if walk.fits_32_bits or kernel.accumulates_in_output or out_itemsize >= kernel.accumulator_bytes:
        return 0
    extent = max([out_itemsize, *(size * stride for size, stride in zip(walk.sizes, walk.output, strict=True))])
    return extent // out_itemsize * kernel.accumulator_bytes


def launch(walk: Walk, kernel: Kernel, chip: Chip) -> Global | None:
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


@lru_cache(maxsize=1024)
def column_sum_bytes(*, rows: int, columns: int, chip: Chip = H100) -> int:
    """Global buffer and semaphores of `x.sum(0)` for a contiguous fp32 x of (rows, columns) in one launch [bytes].

    >>> column_sum_bytes(rows=2048, columns=4096, chip=Chip(108)) - 32 * 4 == 64 << 20
    True
    """
    found = launch(reduction(Strided((rows, columns), (columns, 1), FP32), (0,), FP32), Kernel(FP32), chip)
    return 0 if found is None else found.buffer_bytes + found.semaphore_bytes
