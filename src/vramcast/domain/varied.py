"""What is asked and answered where a trace is told as a function of its sizes: batch, sequence, side of an image.

What is asked and answered where changes of a script are tried one after the other: `vramcast tune`.
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.model import Noun

TOKENS, SAMPLES, MEMORY = "tokens/s", "samples/s", "memory"
GOALS: Final = (TOKENS, SAMPLES, MEMORY)
"""What is made best; memory: the smallest need."""
ALLOWED: Final = ("bf16", "tf32", "8bit")
"""Changes of what is computed, which are tried only with a word."""

CHANGES: Final = ("optimizer", "attention", "batch", "precision", "compile", "checkpoint", "offload")
"""Groups of changes, of each of which one is made at a time."""


class TuneJob(Noun, frozen=True):
    """How a script is tuned."""

    goal: str | None = None  # of GOALS; None: tokens/s of a text, else samples/s
    allow: tuple[str, ...] = ()  # of ALLOWED
    forbid: tuple[str, ...] = ()  # of CHANGES
    any_batch: bool = False  # the effective batch may change
    headroom: float | None = None  # share of the card that stays free; None: its 90 % interval fits


class TunedRun(Noun, frozen=True, kw_only=True):
    """One trace of the script, with these changes."""

    changes: tuple[str, ...]  # none: as it is
    fits: bool
    device_bytes: int | None = None  # of the highest phase; None where it did not run
    step_s: float | None = None
    samples: int | None = None  # that a step takes in
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    micro_batch: int | None = None
    accumulate: int | None = None  # forwards of a step
    failure: str = ""  # why it was no candidate


class TunedAnswer(Noun, frozen=True, kw_only=True):
    """What was tried on one script, and the best of it as a patch."""

    SHOWN = ("runs", "patch", "arguments", "not_offered", "not_allowed", "assumptions")

    question: dict[str, object]
    goal: str
    capacity_bytes: int
    runs: tuple[TunedRun, ...]  # in the order in which they were traced, the first as the script is
    best: int  # of runs; 0: the script as it is
    rounds: tuple[str, ...] = ()  # of the best's changes, those that change what is computed
    costs: dict[str, str] = {}  # change of the best -> what it costs
    patch: str = ""  # unified diff; "" where only arguments change, or nothing
    patch_path: str | None = None  # where it was written
    arguments: tuple[str, ...] = ()  # of the script, as they have to be then
    gave: tuple[str, ...] = ()  # as they were given
    not_offered: tuple[str, ...] = ()  # changes whose place in the source is not known, with why
    not_allowed: tuple[str, ...] = ()  # changes of what is computed that were not tried, of ALLOWED
    assumptions: tuple[str, ...] = ()  # of the best's trace

    @property
    def fits(self) -> bool:
        """Whether the best does."""
        return self.runs[self.best].fits


class Axis(Noun, frozen=True):
    """One size that is varied."""

    name: str  # "batch", "seq", "image", or as the user calls it
    where: str  # "--batch-size" of a script's arguments, "BLOCK_SIZE" a constant of it, "data seq"; "" the target's own
    low: int
    high: int
    step: int = 1
    is_given: bool = True  # False: nobody said how far, so the range may grow

    @property
    def values(self) -> range:
        return range(self.low, self.high + 1, self.step)


class Term(Noun, frozen=True, rename={"num_bytes": "bytes"}):
    """Bytes times powers of axes."""

    num_bytes: float
    powers: dict[str, int]  # axis -> power; empty: what does not depend on any


class Piece(Noun, frozen=True):
    """What is allocated at one moment of the step, before the allocator rounds. The peak is the largest of several."""

    terms: tuple[Term, ...]
    moment: str  # "backward, aten.mm, layers.3.mlp"
    share: float  # of the settings of the map at which this is the peak
    is_exact: bool  # False: the closest sum of these terms
    within: dict[str, tuple[int, int]] = {}  # axis -> ends of the range it holds in; absent: all of it


class VariedPoint(Noun, frozen=True):
    """What a run takes at one setting, as `vramcast trace` says it."""

    at: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int  # of the highest phase
    fits: bool


class Largest(Noun, frozen=True):
    """The largest value of one axis that fits while the others stay."""

    axis: str
    value: int | None  # None: not even the smallest fits
    at: dict[str, int]  # the others
    is_end: bool  # the range ends there, more may fit
    device_bytes: int | None = None  # there


class VariedAnswer(Noun, frozen=True):
    """The peak of a traced run as a function of its sizes."""

    SHOWN = ("formula", "largest", "points", "regions", "assumptions")

    question: dict[str, object]
    capacity_bytes: int
    axes: tuple[Axis, ...]
    formula: tuple[Piece, ...]
    off_share: float  # largest distance of the formula from the allocated peak, as a share of it, over the map
    largest: tuple[Largest, ...]
    points: tuple[VariedPoint, ...]  # the map: every product of some values of each axis
    regions: int  # boxes of settings in which runs make other calls
    traces: int  # runs that it was read from
    checked: int  # runs that were held against it before it saw them, block by block: all equal
    assumptions: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether any setting does."""
        return any(one.value is not None for one in self.largest)
