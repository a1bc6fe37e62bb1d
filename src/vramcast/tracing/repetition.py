"""When the steps of a script repeat: from what each of them allocated and what stayed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from vramcast.units import format_bytes

EQUAL: Final = 0.01
"""Steps whose allocations differ by less are the same: one prints its loss, the other does not [share]."""
QUIET_STEPS: Final = 8
"""Where steps differ, as with batches of any length, so many without a new high are enough."""
MOST_STEPS: Final = 48
"""After so many steps a run ends, whatever they do: it is told."""
LEAST_GROWTH_BYTES: Final = 1 << 20
"""What stays after a step and is no more is not told: losses kept for a log [bytes]."""


class Step(NamedTuple):
    """One step, seen from its end."""

    requested_bytes: int  # by all allocations since the end of the step before
    held_bytes: int  # allocated at its end
    peak_bytes: int  # highest so far, of the run


class Repetition:
    """The steps of a run, in the order in which they end."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Step] = {}  # by who ends them, as several optimizers do
        self._most = Step(0, 0, 0)
        self._growth: list[int] = []  # of what is held, in a row, without a step that held no more [bytes]
        self._steps = self._quiet = 0
        self._is_same = self._differs = False

    def add(self, who: Hashable, step: Step) -> None:
        """Another step has ended."""
        before = self._last.get(who)
        self._last[who] = step
        self._steps += 1
        highs = [new > old * (1 + EQUAL) for new, old in zip(step, self._most, strict=True)]
        self._quiet = 0 if any(highs) else self._quiet + 1
        self._most = Step(*map(max, step, self._most))
        if before is None:
            return
        self._is_same = abs(step.requested_bytes - before.requested_bytes) <= EQUAL * before.requested_bytes
        growth = step.held_bytes - before.held_bytes
        self._growth = [*self._growth, growth] if growth >= LEAST_GROWTH_BYTES else []
        # The first step differs by the states that the optimizer makes, the second by the buckets that DDP makes anew.
        self._differs = self._differs or (not self._is_same and self._steps > len(self._last) * 3)

    @property
    def is_steady(self) -> bool:
        """Whether another step would show nothing new."""
        if self._steps >= MOST_STEPS or self._quiet >= QUIET_STEPS or len(self._growth) >= QUIET_STEPS:
            return True
        return self._is_same and not self._differs and not self._growth

    def end_after(self, steps: int) -> str:
        """Why the run ended there, and what a reader has to know of steps that were not all the same."""
        end = f"stopped after {steps} optimizer steps"
        if len(self._growth) >= QUIET_STEPS:
            growth = format_bytes(max(self._growth))
            return f"{end}, each of which leaves {growth} more allocated: a longer run takes more"
        if self._differs and self._quiet < QUIET_STEPS:
            return f"{end}, which differ, and the last ones still rose: a longer run may take more"
        return f"{end}, which differ: the last {self._quiet} brought no new peak" if self._differs else end
