"""A log beside an answer: measured and predicted, entry by entry, and what explains most of the difference."""

from __future__ import annotations

from typing import Any

from vramcast.domain.answer import Answer
from vramcast.domain.calibration import Calibration
from vramcast.domain.model import Noun


class Remark(Noun, frozen=True):
    """A sentence that reports word in each language."""

    key: str
    values: dict[str, str] = {}


class Compared(Noun, frozen=True):
    """One figure of the log beside the same of the answer."""

    entry: str  # a ledger category, several joined by "+", "tokens" or "concurrency"
    measured: float
    predicted: float
    unit: str = "bytes"  # "bytes", "tokens", "sequences", "s"
    follows: bool = False  # from the other entries: a cache that takes what they leave
    derived: bool = False  # not stated by the log but left over from what it states
    group: str = ""  # of a training run: "peak" of a steady step, "other" figures

    @property
    def difference(self) -> float:
        return self.measured - self.predicted

    @property
    def relative(self) -> float | None:
        """The difference over the prediction; None where nothing was predicted."""
        return self.difference / self.predicted if self.predicted else None


class Reconciliation(Noun, frozen=True):
    """One start-up of a server, or one training run, held against its prediction."""

    log: str
    engine: str  # with its version, as the log says
    rank: str  # whose figures are compared; "" where there is one process
    compared: tuple[Compared, ...]
    answer: Answer
    largest: Compared | None = None  # what explains most; None where log and answer agree
    share: float = 0.0  # of the largest in all differences
    why: tuple[Remark, ...] = ()
    remarks: tuple[Remark, ...] = ()
    out_of_memory: dict[str, Any] | None = None  # figures of the message, in bytes
    calibration: Calibration | None = None  # what later questions could use
