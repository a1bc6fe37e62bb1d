"""A server's log beside its prediction, entry by entry; which entry explains most; what later questions could learn."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict, replace

from vramcast.doctor.question import question_of
from vramcast.domain.answer import RankAnswer, ServeAnswer
from vramcast.domain.calibration import PRINTED_AS, Calibration, Correction
from vramcast.domain.failure import Compared, Reconciliation, Remark
from vramcast.domain.program import Category
from vramcast.domain.serving import ServeJob, Version
from vramcast.estimate.corrections import plan_facts
from vramcast.estimate.serving import answer
from vramcast.sources.logs import read_log
from vramcast.sources.logs.wording import MeasuredRank, ServingLog
from vramcast.units import MIB, format_bytes

PARTS: Final[dict[str, tuple[str, ...]]] = {
    Category.WEIGHTS: (Category.WEIGHTS, Category.ADAPTERS, Category.DRAFT),
    Category.ACTIVATIONS: (Category.ACTIVATIONS, Category.TEMPORARIES),
}
"""What engines measure as one -> categories of the ledger; any other is measured as the ledger lists it."""

ORDER: Final = (
    Category.WEIGHTS, Category.DRAFT, Category.ACTIVATIONS, Category.COMMUNICATION, Category.GRAPHS, Category.INPUTS,
    Category.WORKSPACES, Category.CACHE,
)

BUDGET: Final[dict[str, tuple[str, ...]]] = {
    "vllm": (Category.WEIGHTS, Category.ACTIVATIONS, Category.COMMUNICATION, Category.CACHE),
}
"""Engine -> categories that fill its share of the card together: what a log leaves out of them is what is left."""

CORRECTABLE: Final = frozenset((
    Category.WEIGHTS, Category.ADAPTERS, Category.DRAFT, Category.ACTIVATIONS, Category.TEMPORARIES,
    Category.COMMUNICATION, Category.GRAPHS,
))
"""What a calibration may change: the cache follows from it, the rest is the engine's fixed size."""

AGREES: Final = 0.002
"""Differences below this share of the card are the log's rounding and the allocator's."""

HELD: Final = 1024 * MIB
"""More than this in use before a server began, or beside what is predicted of a run, is another process [bytes]."""


def reconciliation(
    log: ServingLog, job: ServeJob, found: ServeAnswer, remarks: tuple[Remark, ...]
) -> Reconciliation:
    """The log beside the answer.

    Args:
        found: the answer to that question
        remarks: what was settled on the way
    """
    measured = _measured(log)
    predicted = Predictions(log, found, measured)
    entries = tuple(_entries(log, measured, found, predicted))
    largest, share = _largest(entries, threshold=AGREES * job.cluster.gpu.visible_bytes)
    return Reconciliation(
        log=log.name,
        engine=f"{log.engine} {log.version}".strip(),
        rank=measured.label,
        compared=entries,
        answer=found,
        largest=largest,
        share=share,
        why=tuple(_why(log, job, largest, entries)),
        remarks=(*remarks, *_remarks(log, entries)),
        out_of_memory=_message(log, found),
        calibration=_calibration(log, job, entries, predicted),
    )


def _largest(entries: tuple[Compared, ...], *, threshold: float) -> tuple[Compared | None, float]:
    """The entry that explains most of the differences and its share of them.

    A cache that follows from the others is itself the finding where they do not explain it. Graphs are part of the
    budget in some versions, so that the explanation with them or without them counts, whichever explains more.
    """
    sizes = [entry for entry in entries if entry.unit == "bytes"]
    causes = [entry for entry in sizes if not entry.follows]
    differences = sum(entry.difference for entry in causes)
    graphs = sum(entry.difference for entry in causes if entry.entry == Category.GRAPHS)
    candidates = {entry: abs(entry.difference) for entry in causes}
    for cache in (entry for entry in sizes if entry.follows):
        candidates[cache] = min(abs(cache.difference + differences), abs(cache.difference + differences - graphs))
    largest = max(candidates, key=lambda entry: candidates[entry], default=None)
    if largest is None or candidates[largest] <= threshold:
        return None, 0.0
    return largest, candidates[largest] / sum(candidates.values())


def _measured(log: ServingLog) -> MeasuredRank:
    """The rank whose figures decide: the one with the smallest cache, else with the largest weights."""
    if not log.ranks:
        return MeasuredRank(label="", num_bytes={})
    if log.over_devices:
        categories = dict.fromkeys(category for rank in log.ranks for category in rank.num_bytes)
        sums = {name: sum(rank.num_bytes.get(name, 0) for rank in log.ranks) for name in categories}
        return MeasuredRank(label=", ".join(rank.label for rank in log.ranks if rank.label), num_bytes=sums)
    cached = [rank for rank in log.ranks if Category.CACHE in rank.num_bytes]
    if cached:
        return min(cached, key=lambda rank: (rank.num_bytes[Category.CACHE], -len(rank.num_bytes)))
    return max(log.ranks, key=lambda rank: (rank.num_bytes.get(Category.WEIGHTS, 0), len(rank.num_bytes)))


def _predicted_ranks(log: ServingLog, found: ServeAnswer, measured: MeasuredRank) -> tuple[RankAnswer, ...]:
    """The ranks of the answer that the measured figures are about: one, or all devices of one process."""
    if log.over_devices:
        return found.ranks
    if measured.stage is not None and len(found.ranks) > 1:
        last = max((rank.stage for rank in log.ranks if rank.stage is not None), default=0)
        role = "first stage" if measured.stage == 0 else "last stage" if measured.stage == last else "middle stage"
        matching = [rank for rank in found.ranks if rank.role == role]
        if matching:
            return (matching[0],)
    return (min(found.ranks, key=lambda rank: ledger_bytes(rank, Category.CACHE)),)


def ledger_bytes(rank: RankAnswer, *categories: str) -> int:
    """What a ledger holds of categories [bytes]."""
    return sum(entry.num_bytes for entry in rank.ledger if entry.category in categories)


class Predictions:
    """Predicted bytes on the ranks that are compared, by what the log states."""

    def __init__(self, log: ServingLog, found: ServeAnswer, measured: MeasuredRank) -> None:
        self.stated = frozenset(measured.num_bytes)
        self._log = log
        self._ranks = _predicted_ranks(log, found, measured)
        printed = not log.over_devices and self._ranks[0].role in ("all", "first stage")
        self._printed = found.startup if printed else {}

    def __call__(self, entry: str) -> int:
        """What the engine would print of an entry, else what the ledger holds of it."""
        return sum(map(self._one, entry.split("+")))

    def _one(self, name: str) -> int:
        whole = self.parts(name) == PARTS.get(name, (name,))  # engines print a draft with the weights
        if whole and PRINTED_AS.get(name) in self._printed:
            return self._printed[PRINTED_AS[name]]
        return self.listed(*self.parts(name))

    def parts(self, name: str) -> tuple[str, ...]:
        """Ledger categories of an entry; what the log states by itself is not counted twice."""
        return tuple(part for part in PARTS.get(name, (name,)) if part == name or part not in self.stated)

    def listed(self, *categories: str) -> int:
        """Bytes of categories in the ledger."""
        counts = [rank.count if self._log.over_devices else 1 for rank in self._ranks]
        return sum(ledger_bytes(rank, *categories) * count for rank, count in zip(self._ranks, counts, strict=True))


def _entries(
    log: ServingLog, measured: MeasuredRank, found: ServeAnswer, predicted: Predictions
) -> Iterator[Compared]:
    stated = predicted.stated
    missing = [category for category in BUDGET.get(log.engine, ()) if category not in stated]
    for category in ORDER:
        if category in stated:
            yield Compared(
                entry=str(category),
                measured=measured.num_bytes[category],
                predicted=predicted(category),
                follows=category == Category.CACHE and log.pool_is_rest,
            )
    if missing and Category.WEIGHTS in stated and Category.CACHE in stated and log.pool_is_rest:
        known = [category for category in BUDGET[log.engine] if category in stated]
        name = "+".join(map(str, missing))
        budget = sum(predicted(category) for category in BUDGET[log.engine])
        rest = budget - sum(measured.num_bytes[category] for category in known)
        yield Compared(entry=name, measured=rest, predicted=predicted(name), derived=True)
    yield from _counts(log, found)


def _counts(log: ServingLog, found: ServeAnswer) -> Iterator[Compared]:
    """What the cache holds; engines log it per data-parallel copy."""
    if found.capacity is None:
        return
    if "tokens" in log.counts:
        yield Compared(
            entry="tokens", measured=log.counts["tokens"], predicted=found.capacity.kv_tokens, unit="tokens",
            follows=True,
        )
    if "concurrency" in log.counts:
        copies = found.question["plan"].get("dp", 1)
        yield Compared(
            entry="concurrency", measured=log.counts["concurrency"], unit="sequences", follows=True,
            predicted=found.capacity.concurrency / copies,
        )


def _why(log: ServingLog, job: ServeJob, largest: Compared | None, entries: tuple[Compared, ...]) -> Iterator[Remark]:
    """Plain words for the difference that matters most."""
    held = log.held_bytes if log.held_bytes is not None and log.held_bytes > HELD else None
    if largest is not None:
        sign = "more" if largest.difference > 0 else "less"
        if "communication" in largest.entry and sign == "more" and held is not None:
            yield Remark(key="why.held", values={"held": format_bytes(held)})
        for name in largest.entry.split("+"):
            key = "why.kv cache.alone" if largest.follows else f"why.{name}.{sign}"
            yield Remark(key=key, values=_settings(job))
    cache = next((entry for entry in entries if entry.entry == Category.CACHE), None)
    tokens = next((entry for entry in entries if entry.unit == "tokens"), None)
    if cache is not None and tokens is not None and min(tokens.measured, cache.predicted, tokens.predicted) > 0:
        per_token = (cache.measured / tokens.measured) / (cache.predicted / tokens.predicted)
        if abs(per_token - 1) > 0.02:
            yield Remark(key="why.token_bytes", values={"ratio": f"{per_token:.2f}"})


def _settings(job: ServeJob) -> dict[str, str]:
    plan = job.plan
    return {
        "weights": plan.weights or (job.model.quantisation or job.model.dtype or "16 bit"),
        "kv": plan.kv_dtype,
    }


def _remarks(log: ServingLog, entries: tuple[Compared, ...]) -> Iterator[Remark]:
    if log.refusal:
        yield Remark(key="engine_refused", values={"text": log.refusal[:300]})
    if not any(entry.entry == Category.CACHE for entry in entries):
        yield Remark(key="log_is_half")
    if any(entry.derived for entry in entries):
        yield Remark(key="left_over")


def _message(log: ServingLog, found: ServeAnswer) -> dict[str, Any] | None:
    """The figures of an out-of-memory message, beside the device peak that was predicted."""
    if log.out_of_memory is None:
        return None
    figures = {name: value for name, value in asdict(log.out_of_memory).items() if value not in (None, "")}
    return figures | {"predicted_device": found.peak.device_bytes}


def _calibration(
    log: ServingLog, job: ServeJob, entries: tuple[Compared, ...], predicted: Predictions
) -> Calibration | None:
    """What the measured entries teach; None where the log states nothing that is predicted."""
    corrections: dict[str, Correction] = {}
    for entry in entries:
        if entry.unit != "bytes" or entry.follows or entry.measured < 0 or entry.predicted <= 0:
            continue
        sizes = _divided(entry, predicted)
        for part, size in sizes.items():
            corrections[part] = Correction(
                measured_bytes=round(size * entry.measured / entry.predicted),
                predicted_bytes=size,
                apportioned=len(sizes) > 1,
            )
    if not corrections:
        return None
    oldest, newest = _versions(job)
    return Calibration(
        engine=log.engine, oldest=oldest, newest=newest, gpu=job.cluster.gpu.name, plan=plan_facts(job),
        corrections=corrections, log=log.name,
    )


def _divided(entry: Compared, predicted: Predictions) -> dict[str, int]:
    """What was predicted of the correctable categories behind an entry."""
    names = entry.entry.split("+")
    if len(names) > 1:
        sizes = {name: predicted(name) for name in names if name in CORRECTABLE}
    else:
        listed = {str(part): predicted.listed(part) for part in predicted.parts(names[0]) if part in CORRECTABLE}
        present = {part: size for part, size in listed.items() if size > 0}
        sizes = present if len(present) > 1 else dict.fromkeys(present, round(entry.predicted))
    return {name: size for name, size in sizes.items() if size > 0}


def _versions(job: ServeJob) -> tuple[Version, Version]:
    """The versions that a measured one speaks for: releases of its series, a hundred builds of llama.cpp."""
    if len(job.version) == 1:
        first = job.version[0] // 100 * 100
        return (first,), (first + 99,)
    return job.version[:2], job.version[:2]


def reconcile(path: Path, given: Mapping[str, Any]) -> Reconciliation:
    """The last start-up of a log held against its prediction.

    Args:
        given: options of `vramcast serve` that win over what the log says, and what it does not say

    Raises: VramcastError of one sentence when the log cannot be read, or the question not be answered
    """
    log = read_log(path)
    job, remarks = question_of(log, given)
    found = reconciliation(log, job, answer(job), remarks)
    if found.calibration is None:
        return found
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return replace(found, calibration=replace(found.calibration, date=today))
