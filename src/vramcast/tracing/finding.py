"""The largest batch or the longest sequence that fits, from few traces.

What a step allocates is piecewise affine in the batch: two traces give the line, the line a guess, and the guess is
traced. How much of the card is lost between blocks is not affine, so neighbours are traced until a value fits and its
successor does not.
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
        self._stride = 0

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
        """Where allocated memory meets what there is; once that was tried, on from it in steps that double."""
        unit, failing = self._unit, self.failing
        if len(self.traces) < 2:
            return 2 * fitting if fitting else failing // 2 // unit * unit
        guess = self._guess()
        if guess in self.traces or not fitting < guess < (failing or guess + 1):
            self._stride = max(self._stride * 2, unit)
            is_bound = failing and failing - fitting <= 2 * self._stride
            middle = (fitting + failing) // 2
            guess = middle if is_bound else fitting + self._stride if not failing else failing - self._stride
        return min(max(fitting + unit, guess // unit * unit), failing - unit if failing else LARGEST[self._goal])

    def _guess(self) -> int:
        low, high = sorted(self.traces)[-2:]
        needs = [_allocated(self.traces[value].answer) for value in (low, high)]
        rise = needs[1] - needs[0]
        if rise <= 0:
            return 2 * high
        answer = self.traces[low].answer
        room = answer.capacity_bytes - (answer.peak.device_bytes - answer.peak.reserved_bytes) - needs[0]
        return (low + room * (high - low) // rise) // self._unit * self._unit


def _allocated(answer: TraceAnswer) -> int:
    """The most of all phases: what no cache given back makes smaller."""
    return max(peak.allocated_bytes for peak in answer.fullest.phases.values())
