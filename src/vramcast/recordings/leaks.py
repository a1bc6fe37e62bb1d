"""Memory that grows step by step.

At every boundary between steps the live bytes of each stack are counted. A leak goes on growing: optimizer states
made in the first step, caches that fill up and level off, and what comes and goes are none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Literal

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Action, DeviceSnapshot, Snapshot
from vramcast.recordings.lives import Category, Lives
from vramcast.recordings.steps import Steps, steps_of

FEWEST_GROWN: Final = 3
"""Steps in which memory grew before that is called a leak [count]."""


class Leak(Noun, frozen=True):
    """Blocks of one stack that became more, step after step."""

    stack: int
    category: Category
    bytes_per_step: int  # mean over the steps from the first growth on
    blocks_per_step: float
    live_bytes: int  # at the last boundary
    history: tuple[int, ...]  # live bytes at each boundary


class Leaks(Noun, frozen=True):
    """What grows over the steps of a device."""

    steps: int  # whole steps that were compared
    found_by: Literal["annotations", "optimizer", "repetition"] | None  # None: no steps were found
    leaks: tuple[Leak, ...] = ()  # most bytes a step first
    boundaries: tuple[int, ...] = ()
    has_addresses: bool = True  # False: nothing tells when a block was freed

    @property
    def can_be_told(self) -> bool:
        """Whether there were enough steps to tell a leak from a first step."""
        return self.steps >= FEWEST_GROWN

    @property
    def bytes_per_step(self) -> int:
        """Of all leaks together."""
        return sum(leak.bytes_per_step for leak in self.leaks)


def leaks_of(snapshot: Snapshot, device: DeviceSnapshot, lives: Lives) -> Leaks:
    """What grows over the steps of a device's trace."""
    if not device.has_addresses:
        return Leaks(steps=0, found_by=None, has_addresses=False)
    steps = steps_of(snapshot, device)
    if steps is None or steps.num_steps < FEWEST_GROWN:
        return Leaks(steps=0 if steps is None else steps.num_steps, found_by=None if steps is None else steps.found_by)
    found = list(_leaks(device, lives, steps))
    found.sort(key=lambda leak: (-leak.bytes_per_step, leak.stack))
    return Leaks(
        steps=steps.num_steps, found_by=steps.found_by, leaks=tuple(found), boundaries=tuple(steps.boundaries)
    )


def _leaks(device: DeviceSnapshot, lives: Lives, steps: Steps) -> Iterator[Leak]:
    trace, boundaries = device.trace, steps.boundaries
    changes: dict[int, tuple[list[int], list[int], list[int]]] = {}
    for index, action in enumerate(trace.actions):
        if action != Action.ALLOC:
            continue
        first = bisect_right(boundaries, index)
        after = bisect_right(boundaries, lives.ends[index])
        if first >= after:
            continue  # came and went between two boundaries
        size = trace.sizes[index]
        stack = trace.stacks[index]
        if stack not in changes:
            empty = len(boundaries) + 1
            changes[stack] = ([0] * empty, [0] * empty, [index])
        sizes, counts, _ = changes[stack]
        sizes[first] += size
        sizes[after] -= size
        counts[first] += 1
        counts[after] -= 1
    for stack, (sizes, counts, (example,)) in changes.items():
        history = list(accumulate(sizes[:-1]))
        since = _growth(history)
        if since is not None:
            blocks = list(accumulate(counts[:-1]))
            grown = len(history) - 1 - since
            yield Leak(
                stack=stack,
                category=lives.category(example),
                bytes_per_step=(history[-1] - history[since]) // grown,
                blocks_per_step=(blocks[-1] - blocks[since]) / grown,
                live_bytes=history[-1],
                history=tuple(history),
            )


def _came_down(earlier: Sequence[int], level: int) -> bool:
    """Whether it had grown as high before and was given back: a buffer that is filled and emptied in turn."""
    peak = max(earlier)
    return peak >= level and min(earlier[: earlier.index(peak)], default=peak) < peak


def _growth(history: Sequence[int]) -> int | None:
    """The boundary from which live bytes never fall and still grow at the end; None where they do not leak.

    >>> _growth([0, 10, 20, 30]), _growth([0, 30, 30, 30]), _growth([0, 10, 20, 0])
    (0, None, None)
    >>> _growth([0, 10, 20, 30, 0, 10, 20, 30]), _growth([30, 0, 10, 20, 30])
    (None, 1)
    """
    start = len(history) - 1
    while start and history[start - 1] <= history[start]:
        start -= 1
    if _came_down(history[: start + 1], history[-1]):
        return None
    rises = [place for place in range(start + 1, len(history)) if history[place] > history[place - 1]]
    if len(rises) < FEWEST_GROWN:
        return None
    longest_pause = max(after - before for before, after in pairwise(rises))
    if len(history) - 1 - rises[-1] >= longest_pause:
        return None  # it has levelled off
    return rises[0] - 1
