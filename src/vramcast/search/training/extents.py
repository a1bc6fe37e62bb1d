"""`domain.program.Extent` for many plans at once: arrays of net change and highest point, joined by the same rules.

A program whose tensors grow with the tokens of a micro-batch is read once and evaluated for any number of them. Two
builds of it at different token counts have the same nodes, and each tensor's bytes lie on a line. The extent is then a
maximum of sums: one for every node, of the tensors alive behind it, each rounded to its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from vramcast.domain.model import Noun
from vramcast.domain.program import ALLOCATION_GRANULARITY, Alloc, Loop, Node, Program

Counts = Any
"""Bytes or counts, one for each plan: an array of int64, or one number that stands for all of them."""


Kind = TypeVar("Kind", bound=Noun)


def with_arrays(noun: Kind, **fields: Any) -> Kind:
    """A noun with fields of many at once: it is looked at and nothing else."""
    found = copy(noun)
    for name, value in fields.items():
        force_setattr(found, name, value)
    return found


class Extents(NamedTuple):
    """What a piece of program does to the sum of live bytes, for every plan [bytes]."""

    net: Counts
    peak: Counts

    def then(self, after: Extents) -> Extents:
        """This piece followed by another."""
        return Extents(self.net + after.net, np.maximum(self.peak, self.net + after.peak))

    def times(self, count: Counts) -> Extents:
        """So many repeats: the highest point lies in the first or in the last one."""
        highest = np.maximum(self.peak, (count - 1) * self.net + self.peak)
        return Extents(count * self.net, highest * (count > 0))


NOTHING = Extents(np.int64(0), np.int64(0))


def held(num_bytes: Counts) -> Extents:
    """An allocation that stays."""
    return Extents(num_bytes, num_bytes)


def freed(num_bytes: Counts) -> Extents:
    """A free."""
    return Extents(-num_bytes, np.int64(0))


def joined(*pieces: Extents) -> Extents:
    """One piece after the other."""
    whole = NOTHING
    for piece in pieces:
        whole = whole.then(piece)
    return whole


def tabulate(shape: tuple[int, ...], value: Callable[..., int]) -> Counts:
    """`value` at every index."""
    found = np.empty(shape, np.int64)
    for index in np.ndindex(*shape):
        found[index] = value(*index)
    return found


class NotAffine(Exception):
    """Two builds of a program are not one program at two sizes."""


class Run(NamedTuple):
    """Blocks in program order: (fixed + slope * tokens) / divisor bytes each, allocated (1) or freed (-1)."""

    sign: NDArray[np.int64]
    fixed: NDArray[np.int64]
    slope: NDArray[np.int64]
    divisor: int

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens."""
        exact = self.fixed[:, None] + self.slope[:, None] * tokens
        blocks = -(-exact // (self.divisor * ALLOCATION_GRANULARITY)) * ALLOCATION_GRANULARITY
        live = np.cumsum(self.sign[:, None] * blocks, axis=0)
        return Extents(live[-1], np.maximum(live.max(axis=0), 0))


class Repeat(NamedTuple):
    """A loop."""

    times: int
    body: Affine

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens."""
        return self.body.extents(tokens).times(self.times)


class Affine(NamedTuple):
    """A program as runs of blocks and loops of them."""

    parts: tuple[Run | Repeat, ...]

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens (one axis)."""
        whole = NOTHING
        for part in self.parts:
            whole = whole.then(part.extents(tokens))
        return whole


def affine(small: Program, large: Program, tokens: tuple[int, int]) -> Affine:
    """The program through two of its builds.

    Args:
        small, large: the builds
        tokens: the number each was built for

    Raises: NotAffine when the builds differ in more than sizes
    """
    if len(small) != len(large):
        raise NotAffine
    pairs = zip(small, large, strict=True)
    return Affine(tuple(part for loops, group in groupby(pairs, _is_loop) for part in _parts(loops, group, tokens)))


def _is_loop(pair: tuple[Node, Node]) -> bool:
    if type(pair[0]) is not type(pair[1]):
        raise NotAffine
    return isinstance(pair[0], Loop)


def _parts(loops: bool, group: Iterator[tuple[Node, Node]], tokens: tuple[int, int]) -> Iterator[Run | Repeat]:
    if not loops:
        yield _run(list(group), tokens)
        return
    for left, right in group:
        assert isinstance(left, Loop) and isinstance(right, Loop)
        if left.count != right.count:
            raise NotAffine
        yield Repeat(left.count, affine(left.body, right.body, tokens))


def _run(pairs: list[tuple[Node, Node]], tokens: tuple[int, int]) -> Run:
    low, high = tokens
    first, second = (np.array([pair[side].tensor.num_bytes for pair in pairs], np.int64) for side in (0, 1))  # type: ignore[union-attr]
    sign = np.array([1 if isinstance(pair[0], Alloc) else -1 for pair in pairs], np.int64)
    slope = second - first
    return Run(sign, first * (high - low) - slope * low, slope, high - low)
