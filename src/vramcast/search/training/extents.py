"""`domain.program.Extent` for many plans at once: arrays of net change and highest point, joined by the same rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Counts = Any
"""Bytes or counts, one for each plan: an array of int64, or one number that stands for all of them."""


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
