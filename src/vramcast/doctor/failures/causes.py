"""The cause that the evidence speaks for, how sure that is, and why: weights of all rules that hold, added up."""

from __future__ import annotations

from math import exp
from typing import Final, NamedTuple

from vramcast.doctor.failures.card_rules import CARD_RULES, enough_free, shares
from vramcast.doctor.failures.case import LIBRARIES, LLAMA, NOT_MEMORY, SERVERS, TABLES, Case, percent
from vramcast.doctor.failures.rule import Holds, Rule
from vramcast.doctor.failures.text_rules import CACHE_FULL, TEXT_RULES
from vramcast.domain.failure import Cause
from vramcast.domain.reconciliation import Remark

RULES: Final[tuple[Rule, ...]] = (*CARD_RULES, *TEXT_RULES)

PRIOR: Final[dict[Cause, float]] = dict.fromkeys(Cause, -1.5) | {Cause.TOO_BIG: 1.0, Cause.UNKNOWN: 0.5}
"""Log-odds before any evidence: of messages whose threads say what it was, about half were simply too big."""

SURE: Final = 0.97
"""No text alone is surer than this: a figure may be another process's, or the report of another moment."""

MENTIONED: Final = 0.12
"""The second cause is named where it is at least this likely."""


class Judged(NamedTuple):
    """What the evidence comes to."""

    cause: Cause
    detail: str
    confidence: float
    why: tuple[Remark, ...]
    likely: dict[Cause, float]  # all causes, adding up to 1


class Detail(NamedTuple):
    """A kind of a cause; the first row that holds names it."""

    cause: Cause
    name: str
    holds: Holds


def _word(pattern: str, *families: str) -> Holds:
    return lambda case: (not families or case.family in families) and case.says(pattern)


DETAILS: Final[tuple[Detail, ...]] = (
    Detail(Cause.TOO_BIG, "shared_memory_spill", lambda case: shares(case).allocated > 1),
    Detail(Cause.TOO_BIG, "compute_buffer", _word(r"compute buffer|gallocr_reserve|graph_reserve", *LLAMA)),
    Detail(Cause.TOO_BIG, "layers", _word(r"load_model|alloc_tensor_range|model buffer|error loading model", *LLAMA)),
    Detail(Cause.TOO_BIG, "kv_cache", _word(r"KV cache|cache blocks|kv_cache|KV self", *SERVERS, *LLAMA)),
    Detail(Cause.TOO_BIG, "kv_cache", lambda case: (case.family, case.statement.wording) in CACHE_FULL),
    Detail(Cause.TOO_BIG, "attention_scores", lambda case: case.during("attention") and shares(case).tried > 0.1),
    Detail(Cause.TOO_BIG, "logits", lambda case: case.during("loss") and shares(case).tried > 0.02),
    Detail(Cause.TOO_BIG, "one_tensor", lambda case: shares(case).tried > 0.5),
    Detail(Cause.TOO_BIG, "weights", lambda case: case.during("load")),
    Detail(Cause.TOO_BIG, "optimizer_states", lambda case: case.during("optimizer")),
    Detail(Cause.TOO_BIG, "activations", lambda case: case.during("backward", "forward")),
    Detail(Cause.FRAGMENTED, "driver_pieces", enough_free),
    Detail(Cause.UNKNOWN, "no_failure", lambda case: case.family in TABLES),
    Detail(Cause.UNKNOWN, "free_enough", enough_free),
    Detail(Cause.MEMORY_FRACTION, "allowed", lambda case: case.figures.allowed is not None),
    Detail(Cause.MEMORY_FRACTION, "graphs", _word(r"CUDAGRAPHS|CUDA graph")),
    Detail(Cause.MEMORY_FRACTION, "static_pool", _word(r"mem-fraction-static")),
    Detail(Cause.BUG, "not_memory", lambda case: case.family in ("tgi", *LIBRARIES)),
    Detail(Cause.BUG, "other_error", lambda case: case.family in NOT_MEMORY),
    Detail(Cause.BUG, "overflow", lambda case: True),
    Detail(Cause.CONTEXT_AND_LIBRARIES, "metal", lambda case: case.family == "torch-mps"),
    Detail(Cause.CONTEXT_AND_LIBRARIES, "library_handle", lambda case: case.figures.tried is None),
    Detail(Cause.HOST_MEMORY, "loader", lambda case: case.family == "torch-dataloader" or case.during("loader")),
    Detail(Cause.HOST_MEMORY, "loader", _word(r"DataLoader|/dev/shm|\bshm\b|Bus error")),
    Detail(Cause.HOST_MEMORY, "pinned", _word(r"\bpin|_pin|HostAlloc|MallocHost|_Host")),
    Detail(Cause.HOST_MEMORY, "killed", _word(r"\b137\b|SIGKILL|killed|oom[-_ ]?kill")),
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
    remarks = {rule.key: Remark(key=rule.key, values=rule.values(case)) for rule in spoken}
    named = any(figure is not None for figure in (case.figures.tried, case.figures.allocated, case.figures.free))
    bare = Remark(key="why.nothing_else" if named else "why.no_figures")
    said = list(remarks.values()) or [bare]
    second = max((name for name in likely if name is not cause), key=lambda name: likely[name])
    if likely[second] >= MENTIONED and not (cause is Cause.UNKNOWN and case.family in TABLES):
        said.append(Remark(key="why.second", values={"cause": second.value, "share": percent(likely[second])}))
        for rule in holding:
            if rule.cause is second and rule.key and rule.weight > 0:
                said.append(Remark(key=rule.key, values=rule.values(case)))
                break
    return tuple(said)
