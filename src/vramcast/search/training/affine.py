"""A program whose tensors grow with the tokens of a micro-batch, read once and evaluated for any number of them.

Two builds of a program at different token counts have the same nodes, and each tensor's bytes lie on a line. Between
them the extent is a maximum of sums: one for every node, of the tensors alive behind it, each rounded to its block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.domain.program import ALLOCATION_GRANULARITY, Alloc, Loop, Program
from vramcast.search.training.extents import Counts, Extents

Step = tuple[int, int]
"""Sign and requested bytes of one allocation or free."""


class NotAffine(Exception):
    """Two builds of a program are not one program at two sizes."""


class Affine(NamedTuple):
    """Blocks in program order: (fixed + slope * tokens) / divisor bytes each, allocated (1) or freed (-1)."""

    sign: NDArray[np.int64]
    fixed: NDArray[np.int64]
    slope: NDArray[np.int64]
    divisor: int

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens."""
        exact = self.fixed[:, None] + self.slope[:, None] * tokens.reshape(1, -1)
        blocks = -(-exact // (self.divisor * ALLOCATION_GRANULARITY)) * ALLOCATION_GRANULARITY
        live = np.cumsum(self.sign[:, None] * blocks, axis=0)
        peak = np.maximum(live.max(axis=0), 0)
        return Extents(live[-1].reshape(tokens.shape), peak.reshape(tokens.shape))


def affine(small: Program, large: Program, tokens: tuple[int, int]) -> Affine:
    """The program through two of its builds.

    Args:
        small, large: the builds
        tokens: the number each was built for

    Raises: NotAffine when the builds differ in more than sizes
    """
    left, right = list(_steps(small)), list(_steps(large))
    if len(left) != len(right) or any(a[0] != b[0] for a, b in zip(left, right, strict=True)):
        raise NotAffine
    divisor = tokens[1] - tokens[0]
    sign = np.array([step[0] for step in left], np.int64)
    first, second = (np.array([step[1] for step in steps], np.int64) for steps in (left, right))
    slope = second - first
    return Affine(sign, first * divisor - slope * tokens[0], slope, divisor)


def _steps(program: Program) -> Iterator[Step]:
    """Allocations and frees in order, repeats unrolled: the programs of a layer have few."""
    for node in program:
        if isinstance(node, Loop):
            for _ in range(node.count):
                yield from _steps(node.body)
        else:
            yield 1 if isinstance(node, Alloc) else -1, node.tensor.num_bytes


__all__ = ["Affine", "NotAffine", "affine"]
