"""How PyTorch walks over a reduction: dimensions reordered and merged, split where indices need 64 bits.

[iterator] pytorch aten/src/ATen/TensorIterator.cpp: `reorder_dimensions`, `coalesce_dimensions`, `num_reduce_dims`,
`can_use_32bit_indexing`, `get_dim_to_split`, `split`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

LARGEST_INDEX = (1 << 31) - 1


class Strided(NamedTuple):
    """What of a tensor decides how it is walked over."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # [elements]
    itemsize: int  # [bytes]
    offset: int = 0  # of its first element in its storage [elements]


class Walk(NamedTuple):
    """Output and input of a reduction, fastest dimension first; the output's stride is 0 where it is reduced."""

    sizes: tuple[int, ...]
    output: tuple[int, ...]  # strides [bytes]
    input: tuple[int, ...]  # strides [bytes]
    itemsize: int  # of the input [bytes]
    offset: int = 0  # of the input [elements]

    @property
    def elements(self) -> int:
        """Of the input."""
        return prod(self.sizes)

    @property
    def num_reduced(self) -> int:
        """Dimensions that are reduced; they come first."""
        return sum(stride == 0 for stride in self.output)

    @property
    def outputs(self) -> int:
        """Elements of the output."""
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
            yield from self._replace(sizes=(*self.sizes[:dim], size, *self.sizes[dim + 1:])).parts()


def reduction(source: Strided, dims: Sequence[int], out_itemsize: int) -> Walk:
    """The walk of reducing `dims` of a tensor into a contiguous output.

    >>> reduction(Strided((8, 4, 16), (64, 16, 1), 4), (0, 1), 4)[:3]
    ((32, 16), (0, 4), (64, 4))
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
    return walk._replace(sizes=tuple(sizes), output=tuple(outs), input=tuple(sources))


__all__ = ["Strided", "Walk", "reduction"]
