"""What is asked and answered where changes of a script are tried one after the other: `vramcast tune`."""

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
