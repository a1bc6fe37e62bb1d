"""A diagnosis as a report: each failure with its evidence, the card, the numbers and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from vramcast.domain.failure import Diagnosis, Finding
from vramcast.report.failure import (
    compared_cells,
    fix_sentence,
    grouped,
    headline,
    holders,
    number_cells,
    sentence,
    whereabouts,
)
from vramcast.report.messages import Words
from vramcast.report.verdicts import NO_TONE
from vramcast.report.written.answers import listed, made, question
from vramcast.report.written.parts import Bar, Bars, Code, Part, Report, Section, Slice, Table, Text
from vramcast.units import format_bytes


def diagnosis_report(command: str, found: Diagnosis, words: Words, *, asked: str, today: date) -> Report:
    """The report on a diagnosis; its verdict is the first failure's."""
    groups = grouped(found.findings)
    said = [headline(group[0], words) for group in groups] or [words("failure.none", name=found.name)]
    if not groups and found.checks:
        said = [words("failure.checks")]
    return Report(
        language=words.language,
        title=words(f"report.title.{command}", name=words("report.text") if found.name == "-" else found.name),
        verdict=tuple(said),
        tone="bad" if groups else NO_TONE,
        sections=tuple(section for section in _sections(found, groups, words, asked) if section.parts),
        footer=(made(words, today),),
    )


def _sections(found: Diagnosis, groups: list[list[Finding]], words: Words, asked: str) -> Iterator[Section]:
    yield question(asked, words)
    for group in groups:  # the verdict is the headline of the first
        title = headline(group[0], words) if len(groups) > 1 else words("why")
        yield Section(title, tuple(_finding(group, found, words)))
    yield Section(words("failure.checks"), listed(sentence(check, words) for check in found.checks))
    notes = [words("failure.left_out", count=found.left_out)] if found.left_out else []
    notes += [words("failure.cut")] if found.cut else []
    yield Section(words("report.notes"), listed(notes))


def _finding(group: list[Finding], found: Diagnosis, words: Words) -> Iterator[Part]:
    """The first of a group in full, then what differs in the others."""
    first = group[0]
    yield from map(Text, whereabouts(first, found, words))
    if first.statement.text:
        yield Code(first.statement.text)
    yield from listed(sentence(remark, words) for remark in first.why)
    yield from _card(first, words)
    head = (words("report.number"), words("report.value"), words("report.means"))
    rows = tuple(number_cells(first, words))
    if rows:
        yield Table(head, rows, right=frozenset({1}), title=words("failure.numbers"))
    if first.fixes:
        fixes = tuple((str(n), fix_sentence(fix, words), fix.setting) for n, fix in enumerate(first.fixes, 1))
        head = ("#", words("report.change"), words("report.setting"))
        yield Table(head, fixes, right=frozenset({0}), title=words("failure.fixes"))
    if len(group) > 1:
        cells, *rest = compared_cells(group, words)
        title = words("failure.others", count=len(group))
        yield Table(cells, tuple(rest), right=frozenset(range(len(cells))), title=title)


def _card(finding: Finding, words: Words) -> Iterator[Part]:
    """Who holds the card, where the figures add up to one."""
    total, shown = holders(finding)
    if shown:
        slices = tuple(
            Slice(name, words(f"held.{name}"), size, f"{format_bytes(size)} ({size / total:.0%})")
            for name, _, size in shown
        )
        yield Bars(words("failure.card"), (Bar(words("report.card"), slices, format_bytes(total)),))
