"""A diagnosis as text and as JSON: the answer first, then why, the card, the numbers, what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.failure import Check, Diagnosis, Finding, Fix, Remark
from vramcast.report.columns import table, table_lines
from vramcast.report.document import SCHEMA, as_text, plain
from vramcast.report.messages import Words, rare_messages
from vramcast.units import format_bytes

BAR: Final = 60
"""Characters of the picture of the card."""

HOLDERS: Final[tuple[tuple[str, str], ...]] = (
    ("allocated", "#"), ("unallocated", "="), ("beside", "o"), ("others", "x"), ("outside", "x"), ("free", "."),
)
"""Who holds the card and how that is drawn, in the order of the picture."""


COMPARED: Final = (
    "device", "tried_bytes", "used_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "process_bytes",
)
"""What tells failures of one kind apart."""

ROUNDING: Final = (1 << 30) // 100
"""Messages print GiB with two decimals [bytes]."""


def render(found: Diagnosis, words: Words) -> str:
    """The whole report.

    >>> render(Diagnosis(name="-", findings=()), Words("en"))
    '\\n'
    """
    parts = ["\n".join(_group(group, found, words)) for group in grouped(found.findings)]
    if found.checks:
        parts.append("\n".join([words("failure.checks"), *(f"  - {sentence(check, words)}" for check in found.checks)]))
    if found.left_out:
        parts.append(words("failure.left_out", count=found.left_out))
    if found.cut:
        parts.append(words("failure.cut"))
    return "\n\n".join(parts).rstrip() + "\n"


def grouped(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Findings that say the same with other figures, such as those of the ranks of one job; in order of the first."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        statement = finding.statement
        kind = (finding.cause, finding.detail, statement.family, statement.wording.partition("-other-process")[0])
        asked = tuple((fix.action.key, fix.setting.partition("=")[0].partition("(")[0]) for fix in finding.fixes)
        groups.setdefault((*kind, asked), []).append(finding)
    return list(groups.values())


def _group(group: list[Finding], found: Diagnosis, words: Words) -> Iterator[str]:
    """The first of a group in full, then where the others stand and what differs."""
    yield from _finding(group[0], found, words)
    if len(group) > 1:
        yield ""
        yield words("failure.others", count=len(group))
        cells = compared_cells(group, words)
        yield from table_lines(cells, right=frozenset(range(len(cells[0]))))


def compared_cells(group: list[Finding], words: Words) -> list[tuple[str, ...]]:
    """Where the failures of a group stand and what tells them apart, the head first; all are figures."""
    rows = [[words("failure.line"), *(words(f"short.{name}") for name in COMPARED)]]
    rows += [[str(finding.statement.line), *(_compared(finding, name) for name in COMPARED)] for finding in group]
    told = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [tuple(row) for row in zip(*told, strict=True)]


def _compared(finding: Finding, name: str) -> str:
    """A number as the explanation of its finding shows it; "" where it has none."""
    return finding.meaning[name].values.get("value", "") if name in finding.meaning else ""


def _finding(finding: Finding, found: Diagnosis, words: Words) -> Iterator[str]:
    yield headline(finding, words)
    yield from (f"  {line}" for line in whereabouts(finding, found, words))
    yield from _section("why", (f"- {sentence(remark, words)}" for remark in finding.why), words)
    yield from _section("failure.card", _picture(finding, words), words)
    cells = number_cells(finding, words)
    numbers = table(cells, right=frozenset({1})).splitlines() if cells else []
    yield from _section("failure.numbers", iter(numbers), words)
    yield from _section("failure.fixes", _fixes(finding.fixes, words), words)


def whereabouts(finding: Finding, found: Diagnosis, words: Words) -> Iterator[str]:
    """Where a failure stands, in whose wording, how often."""
    statement = finding.statement
    is_event = statement.family == "torch-snapshot"  # `vramcast replay` counts events from 0
    place, line = ("failure.event", f"{statement.line - 1:,}") if is_event else ("failure.where", statement.line)
    wording = statement.wording or "-"
    yield words(place, name=found.name, line=line, family=statement.family, wording=wording)
    if statement.versions:
        yield words("failure.versions", versions=statement.versions)
    if statement.repeats > 1:
        yield words("failure.repeats", count=statement.repeats)


def _section(title: str, lines: Iterator[str], words: Words) -> Iterator[str]:
    first = next(lines, None)
    if first is not None:
        yield ""
        yield words(title)
        yield f"  {first}"
        yield from (f"  {line}".rstrip() for line in lines)


def headline(finding: Finding, words: Words) -> str:
    if finding.detail == "no_failure":
        return words("failed.no_failure")
    detail = f"detail.{finding.detail}"
    name = words(f"name.{finding.cause.value}")
    kind = words("failure.kind", name=name, detail=words(detail)) if detail in rare_messages() else name
    sure = words("failure.sure", share=f"{finding.confidence:.0%}")
    return words("failure.headline", cause=words(f"failed.{finding.cause.value}"), kind=kind, sure=sure)


def sentence(remark: Remark, words: Words) -> str:
    """A remark in the language of the report; causes and techniques among its values are worded too."""
    values: dict[str, object] = dict(remark.values)
    if "cause" in values:
        values["cause"] = words(f"failed.{values['cause']}")
    if "category" in values:
        values["category"] = words(f"replay.category.{values['category']}")
    if "technique" in values:
        values["technique"] = words.technique(str(values["technique"]))[0]
    return words(remark.key, **values)


def _sizes(finding: Finding) -> dict[str, int]:
    """Sizes of those who hold the card, as far as figures or what follows from them give them; free memory too."""
    numbers = finding.statement.numbers
    stated = {name: numbers.get(f"{name}_bytes") for name in ("total", "free", "allocated", "unallocated", "reserved")}
    numbers_only = {name: value for name, value in stated.items() if isinstance(value, (int, float))}
    known = {name: int(value) for name, value in numbers_only.items() if 0 <= value < 1 << 60}
    if "unallocated" not in known and {"reserved", "allocated"} <= set(known):
        known["unallocated"] = max(0, known["reserved"] - known["allocated"])
    process = numbers.get("process_bytes")
    if {"total", "free", "allocated"} <= set(known):
        held = known["allocated"] + known.get("unallocated", 0)
        used = known["total"] - known["free"]
        if isinstance(process, (int, float)) and held <= process <= used + ROUNDING:
            others = used - int(process)
            known |= {"beside": int(process) - held, "others": others if others >= ROUNDING else 0}
        else:
            known["outside"] = max(0, used - held)
    return known


def holders(finding: Finding) -> tuple[int, list[tuple[str, str, int]]]:
    """The card's size, and name, mark and size of who holds it; none where the figures do not add up to a card."""
    sizes = _sizes(finding)
    total = sizes.get("total", 0)
    shown = [(name, mark, sizes[name]) for name, mark in HOLDERS if sizes.get(name)]
    if not total or len(shown) < 2 or sum(size for _, _, size in shown) > 1.02 * total:
        return total, []
    return total, shown


def _picture(finding: Finding, words: Words) -> Iterator[str]:
    total, shown = holders(finding)
    if not shown:
        return
    bar = "".join(mark * max(1, round(BAR * size / total)) for _, mark, size in shown)
    yield f"[{bar}] {format_bytes(total)}"
    rows = [(mark, words(f"held.{name}"), format_bytes(size), f"{size / total:.0%}") for name, mark, size in shown]
    yield from table(rows, right=frozenset({2, 3})).splitlines()


def number_cells(finding: Finding, words: Words) -> list[tuple[str, ...]]:
    """Every number of a failure: name, value, what it means."""
    return [
        (words(f"short.{name}"), remark.values.get("value", ""), sentence(remark, words))
        for name, remark in finding.meaning.items()
    ]


def _fixes(fixes: tuple[Fix, ...], words: Words) -> Iterator[str]:
    for number, fix in enumerate(fixes, 1):
        yield f"{number}. {fix_sentence(fix, words)}"
        if fix.setting:
            yield f"   {fix.setting}"


def fix_sentence(fix: Fix, words: Words) -> str:
    """What to change, and what that brings as far as it was computed."""
    gains = words("failure.comma").join(_gains(fix, words))
    return sentence(fix.action, words) + (words("failure.gain", gain=gains) if gains else "")


def _gains(fix: Fix, words: Words) -> Iterator[str]:
    if fix.saves_bytes is not None:
        key = "failure.saves_most" if fix.shown_by == "arithmetic" and not fix.enough else "failure.saves"
        by = words(f"failure.by.{fix.shown_by}")
        yield words(key, size=format_bytes(fix.saves_bytes), by=by)
    if fix.enough is not None:
        said = words("failure.enough" if fix.enough else "failure.not_enough")
        told = fix.saves_bytes is not None or not fix.shown_by
        yield said if told else words("failure.shown", said=said, by=words(f"failure.by.{fix.shown_by}"))


ENGLISH: Final = Words("en")


def diagnosis_document(found: Diagnosis, words: Words = ENGLISH) -> dict[str, Any]:
    """Plain data: what is unknown is absent; sentences are in a language."""
    worded = replace(
        found, findings=tuple(replace(finding, text=headline(finding, words)) for finding in found.findings),
        worded_checks=tuple(Check(check=check.key, text=sentence(check, words)) for check in found.checks),
    )
    return {"schema": SCHEMA, **plain(worded, lambda noun: sentence(noun, words) if isinstance(noun, Remark) else None)}


def to_json(found: Diagnosis) -> str:
    return as_text(diagnosis_document(found))
