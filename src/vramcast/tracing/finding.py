"""The largest batch or the longest sequence that fits, from few traces.

What a step needs is piecewise affine in the batch: two traces give the line, the line a guess, and the guess and its
successor are traced. Where a guess is wrong, the line through the nearest two gives the next one.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.answer import Found, Tried
from vramcast.domain.trace_job import TraceJob
from vramcast.domain.traced import TraceAnswer, Traced
from vramcast.tracing.run import trace_job

FIRST: Final = {"batch": 4, "seq-len": 1024}
"""Where a search begins unless the question says."""
UNIT: Final = {"batch": 1, "seq-len": 64}
"""Steps of the answer."""
LARGEST: Final = {"batch": 1 << 20, "seq-len": 1 << 22}
MOST_TRACES: Final = 12
STEPS: Final = 2
"""The second is steady."""


def find_largest(job: TraceJob, goal: str) -> Traced:
    """The run of the largest value that fits, with how it was found; where none fits, that of the smallest.

    Args:
        job: what is traced; its own value is where the search begins
        goal: "batch" or "seq-len"

    Raises: VramcastError of one sentence
    """
    search = _Search(job, goal)
    best = search.run()
    found = Found(
        goal=goal, what=f"--{goal} {best}" if best else None, value=best or None,
        tried=tuple(search.tried(value) for value in sorted(search.traces)), num_tried=len(search.traces),
        nearest_failing=search.tried(search.failing) if search.failing else None,
    )
    traced = search.traces[best or search.failing or UNIT[goal]]
    return Traced(answer=replace(traced.answer, found=found), snapshot=traced.snapshot)


class _Search:
    def __init__(self, job: TraceJob, goal: str) -> None:
        self._job, self._goal, self._unit = job, goal, UNIT[goal]
        self.traces: dict[int, Traced] = {}
        self.failing = 0  # the smallest value known not to fit; 0: none

    def run(self) -> int:
        """The largest value that fits, 0 where none does."""
        unit = self._unit
        given = self._job.batch if self._goal == "batch" else self._job.seq_len
        value = max(unit, (given or FIRST[self._goal]) // unit * unit)
        fitting = 0
        while value and len(self.traces) < MOST_TRACES:
            if self._fits(value):
                fitting = max(fitting, value)
            else:
                self.failing = min(self.failing or value, value)
            if self.failing == fitting + unit or fitting >= LARGEST[self._goal]:
                break
            value = self._next(fitting)
        return fitting

    def tried(self, value: int) -> Tried:
        """One trace in a row of the report."""
        answer = self.traces[value].answer
        return Tried(
            what=f"--{self._goal} {value}", fits=answer.fits, needed_bytes=answer.fullest.needed_bytes,
            capacity_bytes=answer.capacity_bytes,
        )

    def _fits(self, value: int) -> bool:
        if value not in self.traces:
            field = {"batch": "batch", "seq-len": "seq_len"}[self._goal]
            self.traces[value] = trace_job(replace(self._job, **{field: value}, steps=STEPS))
        return self.traces[value].answer.fits

    def _next(self, fitting: int) -> int:
        """Where the line through the two traces nearest to the capacity meets it, between the bounds known."""
        unit, failing = self._unit, self.failing or 2 * LARGEST[self._goal]
        if len(self.traces) < 2:
            return 2 * fitting if fitting else max(unit, failing // 2 // unit * unit)
        guess = self._guess()
        if guess in self.traces:  # the guess stands: look at its neighbour on the other side
            guess = guess + unit if self.traces[guess].answer.fits else guess - unit
        if not fitting + unit <= guess <= failing - unit:
            guess = (fitting + min(failing, 4 * max(fitting, unit))) // 2
        return max(unit, guess // unit * unit)

    def _guess(self) -> int:
        capacity = next(iter(self.traces.values())).answer.capacity_bytes
        nearest = sorted(self.traces, key=lambda value: abs(_needed(self.traces[value].answer) - capacity))[:2]
        low, high = sorted(nearest)
        rise = _needed(self.traces[high].answer) - _needed(self.traces[low].answer)
        if rise <= 0:
            return 2 * high
        room = capacity - _needed(self.traces[low].answer)
        return (low + room * (high - low) // rise) // self._unit * self._unit


def _needed(answer: TraceAnswer) -> int:
    return answer.fullest.needed_bytes
