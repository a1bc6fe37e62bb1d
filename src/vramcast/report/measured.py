"""A measured training run beside its prediction, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vramcast.domain.reconciliation import Compared, Reconciliation
from vramcast.report.document import document
from vramcast.report.messages import MESSAGES, Words
from vramcast.report.reconciliation import sentence
from vramcast.report.text import table, verdict
from vramcast.units import format_bytes, format_seconds


def render(found: Reconciliation, words: Words, *, saved: str | None = None) -> str:
    """The report: the largest underestimate, the parts of the peak and their sums, other figures, why.

    Args:
        found: the run beside its prediction
        words: of a language
        saved: where its calibration was written
    """
    lines = [_headline(found, words), *(f"  {line}" for line in _about(found, words)), ""]
    for group in ("peak", "other"):
        entries = [entry for entry in found.compared if entry.group == group]
        if entries:
            rows = [_header(group, words), *(_row(entry, words) for entry in entries)]
            first, *rest = table(rows, right=frozenset({1, 2, 3, 4})).splitlines()
            lines += [first, *(f"  {line}" for line in rest), ""]
    for key, remarks in (("why", found.why), ("notes", found.remarks)):
        if remarks:
            lines += [words(key), *(f"  - {sentence(remark, words)}" for remark in remarks), ""]
    for key, texts in (("warnings", found.answer.warnings),):
        if texts:
            lines += [words(key), *(f"  - {words.said(text)}" for text in texts), ""]
    if saved is not None:
        lines.append(words("calibration_saved", path=saved))
    elif found.calibration is not None and found.largest is not None:
        lines.append(words("run.offer"))
    return "\n".join(lines).rstrip() + "\n"


def _headline(found: Reconciliation, words: Words) -> str:
    if not found.compared:
        return words("run.nothing")
    if found.largest is None:
        return words("run.agrees")
    entry = found.largest
    return words(
        "run.more" if entry.difference > 0 else "run.less", entry=_name(entry.entry, words),
        size=format_bytes(round(abs(entry.difference))),
        relative="" if entry.relative is None else f" ({entry.relative:+.1%})",
    )


def _about(found: Reconciliation, words: Words) -> Iterator[str]:
    yield ", ".join(part for part in (
        found.log, found.engine, words("run.rank", rank=found.rank) if found.rank else "",
    ) if part)
    asked = found.answer.question
    parameters = f"{found.answer.num_parameters:,}"
    yield words("question", model=asked["model"], parameters=parameters, gpus=asked["gpus"], engine=asked["engine"])
    yield words("reconciled.predicted", verdict=next(verdict(found.answer, words)))


def _header(group: str, words: Words) -> tuple[str, ...]:
    return (words(f"run.{group}"), words("measured"), words("predicted"), words("difference"), "", "")


def _row(entry: Compared, words: Words) -> tuple[str, ...]:
    relative = "" if entry.relative is None else f"{entry.relative:+.1%}"
    return (
        _name(entry.entry, words), _amount(entry, entry.measured), _amount(entry, entry.predicted),
        _amount(entry, entry.difference, signed=True), relative, words("run.derived") if entry.derived else "",
    )


def _amount(entry: Compared, value: float, *, signed: bool = False) -> str:
    if entry.unit == "s":
        sign = "-" if value < 0 else "+" if signed else ""
        return sign + format_seconds(abs(value))
    return ("+" if signed and value > 0 else "") + format_bytes(round(value))


def _name(entry: str, words: Words) -> str:
    key = f"run.entry.{entry}"
    return words(key if key in MESSAGES else f"category.{entry}")


def calibrated_document(found: Reconciliation) -> dict[str, Any]:
    """Plain data: the answer with a `calibration` beside it."""
    english = Words("en")
    plain: dict[str, Any] = {
        "recording": found.log, "software": found.engine, "rank": found.rank,
        "entries": [_plain(entry) for entry in found.compared],
        "agrees": found.largest is None,
        "why": [sentence(remark, english) for remark in found.why],
        "notes": [sentence(remark, english) for remark in found.remarks],
    }
    if found.largest is not None:
        plain["largest"] = {
            "entry": found.largest.entry, "share": found.share, "underestimated": found.largest.difference > 0,
        }
    if found.calibration is not None:
        plain["corrections"] = {
            key: {"measured_bytes": one.measured_bytes, "predicted_bytes": one.predicted_bytes}
            for key, one in found.calibration.corrections.items()
        }
    return document(found.answer) | {"calibration": plain}


def _plain(entry: Compared) -> dict[str, Any]:
    values = {"measured": entry.measured, "predicted": entry.predicted, "difference": entry.difference}
    plain: dict[str, Any] = {"entry": entry.entry, "group": entry.group, "unit": entry.unit}
    plain |= {name: value if entry.unit == "s" else round(value) for name, value in values.items()}
    if entry.relative is not None:
        plain["relative"] = entry.relative
    return plain | {name: True for name in ("follows", "derived") if getattr(entry, name)}


def to_json(found: Reconciliation) -> str:
    """The document as text."""
    return json.dumps(calibrated_document(found), indent=1, ensure_ascii=False)
