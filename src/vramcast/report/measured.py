"""What was measured beside its prediction, a server's log or a training run: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from vramcast.domain.failure import Compared, Reconciliation, Remark
from vramcast.report.columns import table, table_lines
from vramcast.report.document import as_text, document
from vramcast.report.messages import MESSAGES, Words
from vramcast.report.text import verdict
from vramcast.units import format_bytes, format_seconds

FIGURES: Final = (
    "tried", "total", "free", "process", "others", "allocated", "unallocated", "pools", "predicted_device",
)
"""Figures of an out-of-memory message in the order they are shown."""

COLUMNS: Final = frozenset({1, 2, 3, 4})
"""Of figures: measured, predicted, their difference, and that as a share."""


def render_log(found: Reconciliation, words: Words, *, saved: str | None = None) -> str:
    """The report on a server's log: what differs most, the entries, why, what could be learned from it, or where that
    was saved."""
    if found.largest is None:
        first = words("reconciled.agrees")
    else:
        first = words(
            "reconciled.more" if found.largest.difference > 0 else "reconciled.less",
            entry=_name(found.largest, words), size=_size(found.largest), share=f"{found.share:.0%}",
        )
    about = words(f"reconciled.{'rank' if found.rank else 'log'}", log=found.log, engine=found.engine, rank=found.rank)
    lines = [*table_lines(_table("", found.compared, words), right=COLUMNS), "", *_out_of_memory(found, words)]
    return _report(found, words, [first, f"  {about}"], lines, saved=saved, offer="offer")


def render_run(found: Reconciliation, words: Words, *, saved: str | None = None) -> str:
    """The report on a training run: the largest underestimate, the parts of the peak and their sums, the rest, why."""
    largest = found.largest
    if not found.compared:
        first = words("run.nothing")
    elif largest is None:
        first = words("run.agrees")
    else:
        relative = "" if largest.relative is None else f" ({largest.relative:+.1%})"
        key = "run.more" if largest.difference > 0 else "run.less"
        first = words(key, entry=_name(largest, words), size=_size(largest), relative=relative)
    rank = words("run.rank", rank=found.rank) if found.rank else ""
    lines: list[str] = []
    for group in ("peak", "other"):
        entries = [entry for entry in found.compared if entry.group == group]
        if entries:
            head, *rest = table(_table(words(f"run.{group}"), entries, words), right=COLUMNS).splitlines()
            lines += [head, *(f"  {line}" for line in rest), ""]
    about = ", ".join(filter(None, (found.log, found.engine, rank)))
    return _report(found, words, [first, f"  {about}"], lines, saved=saved, offer="run.offer")


def _report(
    found: Reconciliation, words: Words, opening: Iterable[str], tables: Iterable[str], *, saved: str | None, offer: str
) -> str:
    """What both have: the question and its verdict below the opening, remarks below the tables, what to do next."""
    answer = found.answer
    asked = {name: answer.question[name] for name in ("model", "gpus", "engine")}
    question = words("question", **asked, parameters=f"{answer.num_parameters:,}")
    predicted = words("reconciled.predicted", verdict=next(verdict(answer, words)))
    lines = [*opening, f"  {question}", f"  {predicted}", "", *tables]
    for key, texts in (
        ("why", [sentence(remark, words) for remark in found.why]),
        ("notes", [sentence(remark, words) for remark in found.remarks]),
        ("warnings", [words.said(text) for text in answer.warnings]),
    ):
        if texts:
            lines += [words(key), *(f"  - {text}" for text in texts), ""]
    if saved is not None:
        lines.append(words("calibration_saved", path=saved))
    elif found.calibration is not None and found.largest is not None:
        lines.append(words(offer))
    return "\n".join(lines).rstrip() + "\n"


def _table(title: str, entries: Iterable[Compared], words: Words) -> list[tuple[str, ...]]:
    head = (title, words("measured"), words("predicted"), words("difference"), "", "")
    return [head, *(tuple(_row(entry, words)) for entry in entries)]


def _row(entry: Compared, words: Words) -> Iterator[str]:
    yield _name(entry, words)
    yield _amount(entry.measured, entry.unit)
    yield _amount(entry.predicted, entry.unit)
    yield _amount(entry.difference, entry.unit, signed=True)
    yield "" if entry.relative is None else f"{entry.relative:+.1%}"
    key = ("run.derived" if entry.derived else "") if entry.group else "follows" if entry.follows else ""
    yield words(key) if key else ""


def _amount(value: float, unit: str, *, signed: bool = False) -> str:
    sign = "+" if signed and value > 0 else ""
    match unit:
        case "bytes":
            return sign + format_bytes(round(value))
        case "s":
            return ("-" if value < 0 else "+" if signed else "") + format_seconds(abs(value))
        case "tokens":
            return f"{sign}{value:,.0f}"
    return f"{sign}{value:,.2f}"


def _size(entry: Compared) -> str:
    return format_bytes(round(abs(entry.difference)))


def _name(entry: Compared, words: Words) -> str:
    """An entry in the language of the report.

    >>> _name(Compared(entry="activations+communication", measured=1, predicted=1), Words("en"))
    'activations + non-torch (NCCL, kernels)'
    """
    kind = "run.entry" if entry.group else "entry"
    keys = (f"{kind}.{name}" if f"{kind}.{name}" in MESSAGES else f"category.{name}" for name in entry.entry.split("+"))
    return " + ".join(words(key) for key in keys)


def sentence(remark: Remark, words: Words) -> str:
    return words(remark.key, **remark.values)


def _out_of_memory(found: Reconciliation, words: Words) -> list[str]:
    message = found.out_of_memory
    if message is None:
        return []
    rows = [(words(f"oom.{figure}"), format_bytes(message[figure])) for figure in FIGURES if figure in message]
    return [words("oom", stage=words(f"oom.{message['stage']}")), *table_lines(rows, right=frozenset({1})), ""]


def log_json(found: Reconciliation) -> str:
    """The answer with a `reconciliation` beside it."""
    plain = {"log": found.log, "engine": found.engine} | _document(found)
    if found.out_of_memory is not None:
        message = found.out_of_memory.items()
        plain["out_of_memory"] = {name if name == "stage" else f"{name}_bytes": value for name, value in message}
    return as_text(document(found.answer) | {"reconciliation": plain | _corrections(found)})


def run_json(found: Reconciliation) -> str:
    """The answer with a `calibration` beside it."""
    plain = {"recording": found.log, "software": found.engine} | _document(found)
    if found.largest is not None:
        plain["largest"]["underestimated"] = found.largest.difference > 0
    return as_text(document(found.answer) | {"calibration": plain | _corrections(found)})


def _document(found: Reconciliation) -> dict[str, Any]:
    english = Words("en")
    plain: dict[str, Any] = {
        "rank": found.rank,
        "entries": [_plain(entry) for entry in found.compared],
        "agrees": found.largest is None,
        "why": [sentence(remark, english) for remark in found.why],
        "notes": [sentence(remark, english) for remark in found.remarks],
    }
    return plain if found.largest is None else plain | {"largest": {"entry": found.largest.entry, "share": found.share}}


def _corrections(found: Reconciliation) -> dict[str, Any]:
    if found.calibration is None:
        return {}
    return {"corrections": {
        key: {"measured_bytes": one.measured_bytes, "predicted_bytes": one.predicted_bytes}
        for key, one in found.calibration.corrections.items()
    }}


def _plain(entry: Compared) -> dict[str, Any]:
    whole = entry.unit in ("bytes", "tokens")
    plain: dict[str, Any] = {"entry": entry.entry} | ({"group": entry.group} if entry.group else {})
    plain["unit"] = entry.unit
    for name in ("measured", "predicted", "difference"):
        plain[name] = round(getattr(entry, name)) if whole else getattr(entry, name)
    if entry.relative is not None:
        plain["relative"] = entry.relative
    return plain | {name: True for name in ("follows", "derived") if getattr(entry, name)}
