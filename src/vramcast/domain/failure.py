"""Failures that a text tells of, what caused them, and what would help.

A *statement* is one failure as the text words it, with its figures; a *finding* is what it means. A
*reconciliation* is a log beside an answer: measured and predicted, entry by entry, and what explains the difference.
"""

from __future__ import annotations

from enum import StrEnum
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


class Cause(StrEnum):
    """Why memory ran out; the class of a finding."""

    TOO_BIG = "too_big"  # the job needs more than there is
    FRAGMENTED = "fragmented"  # enough is reserved, in pieces that no request fits
    OTHER_PROCESS = "other_process"  # someone else holds the card
    MEMORY_FRACTION = "memory_fraction"  # a limit set by the user or engine is reached, not the card's
    PRIVATE_POOLS = "private_pools"  # captured graphs keep what others could use
    CONTEXT_AND_LIBRARIES = "context_and_libraries"  # CUDA context, NCCL, cuBLAS, other allocators in the process
    HOST_MEMORY = "host_memory"  # main memory, pinned memory or /dev/shm, not the card's
    LEAK = "leak"  # use grows from step to step
    BUG = "bug"  # impossible figures, or a failure that is not about memory
    UNKNOWN = "unknown"  # the text does not say enough


class Statement(Noun, frozen=True):
    """One failure as a text words it."""

    family: str  # who speaks: "torch-cuda", "torch-npu", "jax", "llama.cpp", "vllm" ... as in FAMILIES
    wording: str  # which of its wordings, e.g. "reserved-1.4"
    text: str  # the message itself, its first 2,000 characters
    line: int  # where it begins, from 1
    numbers: dict[str, int | float | str] = {}  # by NUMBERS; sizes in bytes
    versions: str = ""  # of the library, as far as the wording tells, e.g. "1.4 - 1.7"
    repeats: int = 1  # how often it stands in the text with the same figures


class Check(Noun, frozen=True):
    """One stability or compatibility check, worded."""

    check: str
    text: str


class Fix(Noun, frozen=True):
    """Something to change."""

    action: Remark  # worded by reports
    setting: str = ""  # ready to paste: an option, an environment variable, a line of code
    saves_bytes: int | None = None  # on the fullest GPU; None where it cannot be known from what was given
    shown_by: str = ""  # "train", "serve", "replay", "arithmetic"; "" where nothing computed it
    enough: bool | None = None  # whether it would have avoided this failure, where that was computed


class Finding(Noun, frozen=True):
    """What one failure means."""

    KEYS = (
        ("class", "cause"), "confidence", "text", ("family", "statement.family"), ("wording", "statement.wording"),
        ("line", "statement.line"), "detail", ("versions", "statement.versions"), ("numbers", "statement.numbers"),
        "why", "meaning", "fixes", ("repeats", "statement.repeats"),
    )
    SHOWN = ("text", "wording")

    cause: Cause
    confidence: float  # 0 to 1, that the cause is the one named
    statement: Statement
    detail: str = ""  # a kind of the cause, e.g. "kv_cache", "shared_memory_spill", "driver_limit"
    why: tuple[Remark, ...] = ()  # the evidence, in order of weight
    meaning: dict[str, Remark] = {}  # name of a number -> what it means
    fixes: tuple[Fix, ...] = ()  # the best first
    text: str = ""  # the headline, which reports word


class Diagnosis(Noun, frozen=True):
    """Everything a text gave."""

    KEYS = ("name", "lines", "findings", ("checks", "worded_checks"), "left_out", "cut")
    SHOWN = ("lines",)

    name: str  # of the file, "-" for standard input
    findings: tuple[Finding, ...]
    checks: tuple[Remark, ...] = ()  # stability and compatibility, beside memory
    worded_checks: tuple[Check, ...] = ()  # the same in a report
    lines: int = 0
    cut: bool = False  # the text is longer than what was read
    left_out: int = 0  # failures behind those that are explained
