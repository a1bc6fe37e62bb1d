"""The cause that the evidence speaks for, how sure that is, and why; and what each number of a message means."""

from __future__ import annotations

from math import exp
from typing import Final

from msgspec import Struct

from vramcast.doctor.failures.case import TABLES, TORCH, Case, percent, size
from vramcast.doctor.failures.evidence import Holds, condition, table
from vramcast.doctor.failures.quantities import values
from vramcast.domain.failure import Cause, Remark
from vramcast.units import MIB


class Rule(Struct, frozen=True):
    """A condition, the cause it speaks for and how strongly.

    Weights are log-odds: a cause with 2 more than another is e^2 = 7 times as likely.
    """

    key: str  # of the sentence; "" speaks without words: it only takes weight away
    cause: Cause
    weight: float
    holds: Holds
    values: str  # of the sentence: see `quantities.values`

    def remark(self, case: Case) -> Remark:
        """Its sentence."""
        return Remark(key=self.key, values=values(self.values, case))


RULES: Final = tuple(
    Rule(key, Cause(cause), float(weight), condition(when, says), figures)
    for key, cause, weight, when, says, figures in table("causes.csv")
)
"""In order of subject; a sentence may stand in several rows, one for each strength of the same evidence."""

PRIOR: Final[dict[Cause, float]] = dict.fromkeys(Cause, -1.5) | {Cause.TOO_BIG: 1.0, Cause.UNKNOWN: 0.5}
"""Log-odds before any evidence: of messages whose threads say what it was, about half were simply too big."""

SURE: Final = 0.97
"""No text alone is surer than this: a figure may be another process's, or the report of another moment."""

MENTIONED: Final = 0.12
"""The second cause is named where it is at least this likely."""


class Judged(Struct, frozen=True):
    """What the evidence comes to."""

    cause: Cause
    detail: str
    confidence: float
    why: tuple[Remark, ...]
    likely: dict[Cause, float]  # all causes, adding up to 1


class Detail(Struct, frozen=True):
    """A kind of a cause; the first row that holds names it."""

    cause: Cause
    name: str
    holds: Holds


DETAILS: Final = tuple(
    Detail(Cause(cause), name, condition(when, says))
    for causes, name, when, says in table("details.csv") for cause in causes.split()
)


def judge(case: Case) -> Judged:
    """The likeliest cause of one failure.

    >>> from vramcast.doctor.failures.case import case_of
    >>> from vramcast.domain.failure import Statement
    >>> gib = 1 << 30
    >>> numbers = {"tried_bytes": 30 * gib, "total_bytes": 11 * gib, "free_bytes": 4 * gib}
    >>> judge(case_of(Statement(family="torch-cuda", wording="", text="", line=1, numbers=numbers))).cause
    <Cause.TOO_BIG: 'too_big'>
    """
    holding = [rule for rule in RULES if rule.holds(case)]
    scores = dict(PRIOR)
    for rule in holding:
        scores[rule.cause] += rule.weight
    likely = _likely(scores)
    cause = max(likely, key=lambda name: likely[name])
    return Judged(
        cause=cause,
        detail=next((row.name for row in DETAILS if row.cause is cause and row.holds(case)), ""),
        confidence=min(SURE, likely[cause]),
        why=_why(case, cause, holding, likely),
        likely=likely,
    )


def _likely(scores: dict[Cause, float]) -> dict[Cause, float]:
    top = max(scores.values())
    odds = {cause: exp(score - top) for cause, score in scores.items()}
    whole = sum(odds.values())
    return {cause: value / whole for cause, value in odds.items()}


def _why(case: Case, cause: Cause, holding: list[Rule], likely: dict[Cause, float]) -> tuple[Remark, ...]:
    """The sentences of the rules that led there, the strongest first; then what else it may be."""
    own = (rule for rule in holding if rule.cause is cause and rule.key and rule.weight > 0)
    spoken = sorted(own, key=lambda rule: -rule.weight)
    remarks = {rule.key: rule.remark(case) for rule in spoken}
    named = any(figure is not None for figure in (case.figures.tried, case.figures.allocated, case.figures.free))
    bare = Remark(key="why.nothing_else" if named else "why.no_figures")
    said = list(remarks.values()) or [bare]
    second = max((name for name in likely if name is not cause), key=lambda name: likely[name])
    if likely[second] >= MENTIONED and not (cause is Cause.UNKNOWN and case.family in TABLES):
        said.append(Remark(key="why.second", values={"cause": second.value, "share": percent(likely[second])}))
        for rule in holding:
            if rule.cause is second and rule.key and rule.weight > 0:
                said.append(rule.remark(case))
                break
    return tuple(said)


SMALL_SEGMENT: Final = 2 * MIB
"""The allocator asks the driver for this much for a request up to 1 MiB [allocator] kSmallBuffer."""

LARGE_SEGMENT: Final = 20 * MIB
"""... and this much for one of 1 to 10 MiB [allocator] kLargeBuffer."""

ORDER: Final[tuple[str, ...]] = (
    "tried_bytes", "buffer_bytes", "shape", "tried_tokens", "free_tokens", "needed_bytes", "used_bytes", "limit_bytes",
    "exceeded_bytes", "total_bytes", "desired_bytes", "free_bytes", "largest_free_bytes", "weights_bytes",
    "arguments_bytes", "program_bytes", "output_bytes", "requested_bytes", "requested_peak_bytes", "allocated_bytes",
    "allocated_peak_bytes", "active_bytes", "active_peak_bytes", "reserved_bytes", "reserved_peak_bytes",
    "unallocated_bytes", "inactive_split_bytes", "private_pools_bytes", "allowed_bytes", "process_bytes",
    "other_processes_bytes", "other_allocations_bytes", "resident_bytes", "virtual_bytes",
    "used_fraction", "threshold", "max_model_len", "kv_tokens", "kv_needed_bytes", "kv_available_bytes",
    "model_layers", "card_layers",
    "estimated_max_len", "sequences", "blocks", "memory_fraction", "num_alloc_retries", "num_ooms", "exit_code",
    "device",
)
"""Numbers in the order they are explained."""

FOLLOWING: Final = {
    "tried_bytes": "tried",
    "reserved_bytes": "reserved", "unallocated_bytes": "unallocated", "beside_bytes": "beside",
    "others_bytes": "others", "outside_bytes": "outside",
}
"""What follows from the stated numbers -> the figure that holds it."""


VARIANTS: Final[tuple[tuple[str, str, Holds], ...]] = (
    ("tried_bytes", "means.tried.exact", condition("!family:TORCH")),
    ("buffer_bytes", "means.tried.exact", lambda case: "tried_bytes" not in case.statement.numbers),
    ("total_bytes", "means.total.host", condition("family:HOST")),
    ("free_bytes", "means.free.host", condition("family:HOST")),
    ("free_bytes", "means.free.start", condition("number:desired_bytes")),
    ("free_bytes", "means.free.enough", condition("enough_free")),
    ("free_bytes", "means.free.stated", condition("!family:TORCH")),
    ("reserved_bytes", "means.reserved.system", condition("family:jax")),
    ("sequences", "means.sequences.preempted", lambda case: "preempt" in case.statement.wording),
    ("sequences", "means.sequences.retracted", condition("form:retract,decode")),
    ("allowed_bytes", "means.allowed.none", condition("!known:allowed")),
    ("other_processes_bytes", "means.other_processes.own", lambda case: case.figures.own),
)
"""Another sentence for a number; the first row that holds gives it."""


def meaning_of(case: Case) -> dict[str, Remark]:
    """Every number of a statement, then those that follow from them, each with its sentence."""
    numbers = case.statement.numbers
    told = {name: Remark(key=_key(name, case), values=_values(name, case)) for name in ORDER if name in numbers}
    for name, figure in FOLLOWING.items():
        found = getattr(case.figures, figure)
        hidden = name in numbers or not found or _said_otherwise(name, case)
        if not hidden:
            key = "means.tried.shape" if name == "tried_bytes" else f"means.{name}"
            told[name] = Remark(key=key, values={"value": size(found)})
    return told


def _said_otherwise(name: str, case: Case) -> bool:
    """What another line of the explanation says already."""
    figures = case.figures
    if name == "tried_bytes":
        return "buffer_bytes" in case.statement.numbers
    if name == "others_bytes":
        return "other_processes_bytes" in case.statement.numbers
    if name == "outside_bytes":
        return figures.process is not None
    return name == "beside_bytes" and "other_allocations_bytes" in case.statement.numbers


def _key(name: str, case: Case) -> str:
    """The sentence of a number; of some it depends on its value and on who speaks."""
    if name == "tried_bytes" and case.family in TORCH and case.figures.total is not None:
        segments = {SMALL_SEGMENT: "means.tried.small", LARGE_SEGMENT: "means.tried.large"}
        return segments.get(case.figures.tried or 0, "means.tried_bytes")
    return next((key for named, key, holds in VARIANTS if named == name and holds(case)), f"means.{name}")


def _values(name: str, case: Case) -> dict[str, str]:
    value = case.statement.numbers[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return {"value": str(value)[:40]}
    if name == "buffer_bytes" and "tried_bytes" in case.statement.numbers and 0 <= value < 1 << 63:
        return {"value": f"{value:,} B"}
    if name.endswith("_bytes"):
        return {"value": size(value)} if abs(value) < 1 << 63 else {"value": str(value)[:40]}
    return {"value": f"{value:,}" if abs(value) < 1 << 63 else str(value)[:40]}
