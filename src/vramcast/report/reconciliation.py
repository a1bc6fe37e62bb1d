"""A reconciliation as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from vramcast.domain.reconciliation import Compared, Reconciliation, Remark
from vramcast.report.document import document
from vramcast.report.messages import MESSAGES, Words
from vramcast.report.text import table, verdict
from vramcast.units import format_bytes

FIGURES: Final = (
    "tried", "total", "free", "process", "others", "allocated", "unallocated", "pools", "predicted_device",
)
"""Figures of an out-of-memory message in the order they are shown."""


def render(found: Reconciliation, words: Words, *, saved: str | None = None) -> str:
    """The report: what differs most, the entries, why, what could be learned from it.

    Args:
        found: the log beside its prediction
        words: of a language
        saved: where its calibration was written
    """
    lines = [_headline(found, words), *(f"  {line}" for line in _about(found, words)), ""]
    lines += [f"  {line}" for line in _table(found, words).splitlines()] + [""]
    lines += _out_of_memory(found, words)
    for key, remarks in (("why", found.why), ("notes", found.remarks)):
        if remarks:
            lines += [words(key), *(f"  - {sentence(remark, words)}" for remark in remarks), ""]
    if found.answer.warnings:
        lines += [words("warnings"), *(f"  - {words.said(text)}" for text in found.answer.warnings), ""]
    if saved is not None:
        lines.append(words("calibration_saved", path=saved))
    elif found.calibration is not None and found.largest is not None:
        lines.append(words("offer"))
    return "\n".join(lines).rstrip() + "\n"


def _headline(found: Reconciliation, words: Words) -> str:
    if found.largest is None:
        return words("reconciled.agrees")
    return words(
        "reconciled.more" if found.largest.difference > 0 else "reconciled.less",
        entry=entry_name(found.largest.entry, words),
        size=format_bytes(round(abs(found.largest.difference))),
        share=f"{found.share:.0%}",
    )


def _about(found: Reconciliation, words: Words) -> Iterator[str]:
    key = "reconciled.rank" if found.rank else "reconciled.log"
    yield words(key, log=found.log, engine=found.engine, rank=found.rank)
    asked = found.answer.question
    parameters = f"{found.answer.num_parameters:,}"
    yield words("question", model=asked["model"], parameters=parameters, gpus=asked["gpus"], engine=asked["engine"])
    yield words("reconciled.predicted", verdict=next(verdict(found.answer, words)))


def _table(found: Reconciliation, words: Words) -> str:
    header = ("", words("measured"), words("predicted"), words("difference"), "", "")
    return table([header, *(_row(entry, words) for entry in found.compared)], right=frozenset({1, 2, 3, 4}))


def _row(entry: Compared, words: Words) -> tuple[str, ...]:
    relative = "" if entry.relative is None else f"{entry.relative:+.1%}"
    return (
        entry_name(entry.entry, words),
        _amount(entry, entry.measured),
        _amount(entry, entry.predicted),
        _amount(entry, entry.difference, signed=True),
        relative,
        words("follows") if entry.follows else "",
    )


def _amount(entry: Compared, value: float, *, signed: bool = False) -> str:
    sign = "+" if signed and value > 0 else ""
    match entry.unit:
        case "bytes":
            return sign + format_bytes(round(value))
        case "tokens":
            return f"{sign}{value:,.0f}"
    return f"{sign}{value:,.2f}"


def entry_name(entry: str, words: Words) -> str:
    """An entry in the language of the report.

    >>> entry_name("activations+communication", Words("en"))
    'activations + non-torch (NCCL, kernels)'
    """
    keys = (f"entry.{name}" if f"entry.{name}" in MESSAGES else f"category.{name}" for name in entry.split("+"))
    return " + ".join(words(key) for key in keys)


def sentence(remark: Remark, words: Words) -> str:
    """A remark in the language of the report."""
    return words(remark.key, **remark.values)


def _out_of_memory(found: Reconciliation, words: Words) -> list[str]:
    if found.out_of_memory is None:
        return []
    stage = words(f"oom.{found.out_of_memory['stage']}")
    rows = [
        (words(f"oom.{figure}"), format_bytes(found.out_of_memory[figure]))
        for figure in FIGURES
        if figure in found.out_of_memory
    ]
    return [words("oom", stage=stage), *(f"  {line}" for line in table(rows, right=frozenset({1})).splitlines()), ""]


def reconciled_document(found: Reconciliation) -> dict[str, Any]:
    """Plain data: the answer with a `reconciliation` beside it."""
    english = Words("en")
    plain: dict[str, Any] = {
        "log": found.log,
        "engine": found.engine,
        "rank": found.rank,
        "entries": [_plain(entry) for entry in found.compared],
        "agrees": found.largest is None,
        "why": [sentence(remark, english) for remark in found.why],
        "notes": [sentence(remark, english) for remark in found.remarks],
    }
    if found.largest is not None:
        plain["largest"] = {"entry": found.largest.entry, "share": found.share}
    if found.out_of_memory is not None:
        plain["out_of_memory"] = {
            name if name == "stage" else f"{name}_bytes": value for name, value in found.out_of_memory.items()
        }
    if found.calibration is not None:
        plain["corrections"] = {
            category: {"measured_bytes": correction.measured_bytes, "predicted_bytes": correction.predicted_bytes}
            for category, correction in found.calibration.corrections.items()
        }
    return document(found.answer) | {"reconciliation": plain}


def _plain(entry: Compared) -> dict[str, Any]:
    whole = entry.unit != "sequences"
    values = {"measured": entry.measured, "predicted": entry.predicted, "difference": entry.difference}
    plain: dict[str, Any] = {"entry": entry.entry, "unit": entry.unit}
    plain |= {name: round(value) if whole else value for name, value in values.items()}
    if entry.relative is not None:
        plain["relative"] = entry.relative
    return plain | {name: True for name in ("follows", "derived") if getattr(entry, name)}


def to_json(found: Reconciliation) -> str:
    """The document as text."""
    return json.dumps(reconciled_document(found), indent=1, ensure_ascii=False)
