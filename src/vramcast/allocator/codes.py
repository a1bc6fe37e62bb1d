"""What happens to memory as integers: `i` allocates request i, `~i` frees its newest block, more repeats a body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

Request = tuple[int, str]
"""What a tensor asks for [bytes], unrounded, and on which stream."""

REPEAT: Final = 1 << 58
BODY_BITS: Final = 24
BODY_MASK: Final = (1 << BODY_BITS) - 1


def repeat(rounds: int, body: int) -> int:
    """The code of a loop.

    >>> [repeat(5, 2) - REPEAT >> BODY_BITS, repeat(5, 2) & BODY_MASK]
    [5, 2]
    """
    return REPEAT | rounds << BODY_BITS | body


class Run(NamedTuple):
    """A run of one process."""

    requests: Sequence[Request]
    bodies: Sequence[tuple[int, ...]]  # codes
    phases: Sequence[int]  # their bodies, in order
