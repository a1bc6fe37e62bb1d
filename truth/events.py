"""Two sequences of allocations and frees, compared: how much of them is the same, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

MOST_EDITS: Final = 4000
"""Sequences further apart are not aligned: the search grows with the square of the edits."""


class Event(NamedTuple):
    """One allocation or free, by its size as requested."""

    is_free: bool
    num_bytes: int


def rise(events: Sequence[Event]) -> int:
    """The most that was allocated at once beyond what was there before [bytes]."""
    changes = (-event.num_bytes if event.is_free else event.num_bytes for event in events)
    return max(accumulate(changes), default=0)


class Gap(NamedTuple):
    """Where the sequences part: events of either that the other does not have."""

    ours: int  # index of the first
    num_ours: int
    theirs: int
    num_theirs: int


class Aligned(NamedTuple):
    """The longest common subsequence of two sequences."""

    num_ours: int
    num_theirs: int
    num_same: int | None  # None: too far apart to tell
    gaps: tuple[Gap, ...]

    @property
    def share(self) -> float | None:
        """Events that are the same, of the longer sequence."""
        longer = max(self.num_ours, self.num_theirs)
        return None if self.num_same is None else self.num_same / longer if longer else 1.0


def align(ours: Sequence[Event], theirs: Sequence[Event], *, most_edits: int = MOST_EDITS) -> Aligned:
    """The longest common subsequence.

    Source: Myers, An O(ND) difference algorithm and its variations, Algorithmica 1986, figure 2.

    >>> a, b = Event(False, 512), Event(False, 1024)
    >>> align([a, b, a], [a, a]).gaps
    (Gap(ours=1, num_ours=1, theirs=1, num_theirs=0),)
    """
    furthest = {1: 0}  # diagonal -> how far along our sequence the path with the fewest edits came
    steps: list[dict[int, int]] = []
    for edits in range(min(len(ours) + len(theirs), most_edits) + 1):
        steps.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            below, left = furthest.get(diagonal + 1, -1), furthest.get(diagonal - 1, -1)
            is_down = diagonal == -edits or (diagonal != edits and left < below)
            x = below if is_down else left + 1
            while x < len(ours) and x - diagonal < len(theirs) and ours[x] == theirs[x - diagonal]:
                x += 1
            furthest[diagonal] = x
            if x >= len(ours) and x - diagonal >= len(theirs):
                num_same = (len(ours) + len(theirs) - edits) // 2
                return Aligned(len(ours), len(theirs), num_same, _gaps(steps, len(ours), len(theirs)))
    return Aligned(len(ours), len(theirs), None, ())


def _gaps(steps: list[dict[int, int]], x: int, y: int) -> tuple[Gap, ...]:
    """The edits of the path that ends at x, y; neighbours joined."""
    gaps: list[Gap] = []
    for edits in range(len(steps) - 1, 0, -1):
        furthest, diagonal = steps[edits], x - y
        below, left = furthest.get(diagonal + 1, -1), furthest.get(diagonal - 1, -1)
        is_down = diagonal == -edits or (diagonal != edits and left < below)
        x = below if is_down else left
        y = x - (diagonal + 1 if is_down else diagonal - 1)
        gap = Gap(x, int(not is_down), y, int(is_down))
        last = gaps[-1] if gaps else None
        if last and (gap.ours + gap.num_ours, gap.theirs + gap.num_theirs) == (last.ours, last.theirs):
            gaps[-1] = Gap(gap.ours, gap.num_ours + last.num_ours, gap.theirs, gap.num_theirs + last.num_theirs)
        else:
            gaps.append(gap)
    return tuple(reversed(gaps))
