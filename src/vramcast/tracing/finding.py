"""The largest batch or the longest sequence that fits, from few traces.

What a step allocates is piecewise affine in the batch: two traces give the line, the line a guess, and the guess is
traced. How much of the card is lost between blocks is not affine, so neighbours are traced until a value fits and its
successor does not.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.answer import Found, Tried
from vramcast.domain.trace_job import TraceAnswer, Traced, TraceJob
from vramcast.domain.verdict import usable_bytes
from vramcast.errors import Note
from vramcast.tracing.run import trace_job

FIRST: Final = {"batch": 4, "seq-len": 1024}
"""Where a search begins unless the question says."""
UNIT: Final = {"batch": 1, "seq-len": 64}
"""Smallest steps of the answer."""
FINEST: Final = 7  # binary digits of the answer: a batch of 17,904 is looked for in steps of 128
LARGEST: Final = {"batch": 1 << 20, "seq-len": 1 << 22}
LEAP: Final = 8
OFF: Final = 64  # what the allocator loses between blocks is about that part of a full card
MOST_TRACES: Final = 12
STEPS: Final = 2  # the second is steady


def find_largest(job: TraceJob, goal: str, headroom: float | None = None) -> Traced:
    """The run of the largest "batch" or "seq-len" that fits, with how it was found; where none fits, of the smallest.

    The job's own value is where the search begins; headroom is the share of the card that stays free, None: so much
    that the 90 % interval fits.

    Raises: VramcastError of one sentence
    """
    search = _Search(job, goal, headroom)
    best = search.run()
    found = Found(
        goal=goal, what=f"--{goal} {best}" if best else None, value=best or None,
        tried=tuple(search.tried(value) for value in sorted(search.traces)), num_tried=len(search.traces),
        nearest_failing=search.tried(search.failing) if search.failing else None,
    )
    traced = search.traces[best or search.failing]
    said = traced.answer.assumptions
    unit = search.unit(best)
    if unit > 1:
        said = (*said, Note("{} looked for in steps of {}", goal, unit))
    return Traced(answer=replace(traced.answer, found=found, assumptions=said), snapshot=traced.snapshot)


class _Search:
    def __init__(self, job: TraceJob, goal: str, headroom: float | None) -> None:
        self._job, self._goal, self._headroom = job, goal, headroom
        self.traces: dict[int, Traced] = {}
        self.fitting = 0  # the largest value known to fit; 0: none
        self.failing = 0  # the smallest value known not to fit; 0: none
        self._stride = 0

    def run(self) -> int:
        """The largest value that fits, 0 where none does."""
        given = self._job.batch if self._goal == "batch" else self._job.seq_len
        value = max(UNIT[self._goal], given or FIRST[self._goal])
        while len(self.traces) < MOST_TRACES:
            value = max(UNIT[self._goal], value // self.unit(value) * self.unit(value))
            if self._fits(value):
                self.fitting = max(self.fitting, value)
            else:
                self.failing = min(self.failing or value, value)
            if self._is_done():
                break
            value = self._next()
        return self.fitting

    def unit(self, value: int) -> int:
        """Steps in which a value of that size is looked for."""
        return max(UNIT[self._goal], 1 << max(0, value.bit_length() - 1 - FINEST))

    def tried(self, value: int) -> Tried:
        """One trace in a row of the report."""
        answer = self.traces[value].answer
        return Tried(
            what=f"--{self._goal} {value}", fits=answer.fits, needed_bytes=answer.fullest.needed_bytes,
            high_bytes=answer.high_bytes, capacity_bytes=answer.capacity_bytes,
        )

    def _is_done(self) -> bool:
        if not self.failing:
            return self.fitting >= LARGEST[self._goal]
        return self.failing - self.fitting <= self.unit(self.fitting)

    def _fits(self, value: int) -> bool:
        if value not in self.traces:
            field = {"batch": "batch", "seq-len": "seq_len"}[self._goal]
            self.traces[value] = trace_job(replace(self._job, **{field: value}, steps=STEPS))
        return self.traces[value].answer.leaves(self._headroom)

    def _next(self) -> int:
        """Where allocated memory meets what there is; once that was tried, on from it in steps that double."""
        fitting, failing = self.fitting, self.failing
        if len(self.traces) < 2:
            return 2 * fitting if fitting else failing // 2
        guess = self._guess()
        unit = self.unit(guess)
        if not (fitting + unit <= guess // unit * unit and (not failing or guess < failing)):
            self._stride = max(2 * self._stride, unit, guess // OFF)
            if failing and failing - fitting <= 4 * self._stride:
                guess = (fitting + failing) // 2
            else:
                guess = failing - self._stride if failing else fitting + self._stride
        return min(max(fitting + self.unit(fitting), guess), failing - 1 if failing else LARGEST[self._goal])

    def _guess(self) -> int:
        low, high = sorted(self.traces)[-2:]
        needs = [_allocated(self.traces[value].answer) for value in (low, high)]
        rise = needs[1] - needs[0]
        if rise <= 0:  # what does not depend on the value is still higher
            return LEAP * high
        answer = self.traces[low].answer
        free = usable_bytes(answer.capacity_bytes, self._headroom) - answer.claimed_bytes(self._headroom)
        room = free + answer.fullest.needed_bytes - (answer.peak.device_bytes - answer.peak.reserved_bytes) - needs[0]
        return low + room * (high - low) // rise


def _allocated(answer: TraceAnswer) -> int:
    return max(peak.allocated_bytes for peak in answer.fullest.phases.values())
