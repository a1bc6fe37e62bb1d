"""A traced run as a report: the answer, its course, who held the peak, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final

from vramcast.domain.traced import Holding, TraceAnswer
from vramcast.report.messages import Words
from vramcast.report.replay_words import share
from vramcast.report.trace import VIEWS, merged, opening
from vramcast.report.verdicts import tone_of
from vramcast.report.written.answers import (
    change_parts,
    ledger,
    listed,
    made,
    numbered,
    options,
    phases,
    question,
    role_bars,
    tried_table,
)
from vramcast.report.written.parts import Code, Part, Report, Section, Sources, Table, Text
from vramcast.report.written.timeline import Course, Layer, course_picture
from vramcast.units import format_bytes

LIST: Final = 20
"""Rows of a list."""


def trace_report(command: str, answer: TraceAnswer, words: Words, *, asked: str, today: date) -> Report:
    """The report on a traced run."""
    answer = words.spoken(answer)
    return Report(
        language=words.language,
        title=words(f"report.title.{command}", name=answer.question["target"]),
        verdict=tuple(line.strip() for line in opening(answer, words)),
        tone=tone_of(answer),
        sections=tuple(section for section in _sections(answer, words, asked) if section.parts),
        footer=(made(words, today),),
    )


def _sections(answer: TraceAnswer, words: Words, asked: str) -> Iterator[Section]:
    yield question(asked, words)
    if answer.failure is not None:
        said = (f"torch.OutOfMemoryError: {answer.failure.message}", *(f"  {line}" for line in answer.failure.stack))
        yield Section(words("trace.would_print"), (Code("\n".join(said)),))
    if answer.found is not None and answer.found.tried:
        yield Section(words("trace.tried", count=answer.found.num_tried), (tried_table(answer.found, words),))
    yield Section(words("report.changes"), tuple(change_parts(answer, words)))
    yield Section(words("report.memory"), (role_bars(answer, words), phases(answer.fullest, words)))
    yield Section(words("trace.course"), tuple(course_parts(answer, words)))
    numbers = numbered(answer)
    yield Section(words("trace.ledger"), (ledger(answer.fullest, words, numbers),))
    for view in VIEWS:
        yield Section(words(f"trace.by.{view}"), tuple(_holders(getattr(answer.holdings, f"by_{view}"), answer, words)))
    yield Section(words("trace.unknown"), tuple(_unknown(answer, words)))
    yield Section(words("report.assumed"), listed(answer.assumptions))
    yield Section(words("report.warned"), listed(answer.warnings))
    yield Section(words("report.sources"), (Sources(tuple(numbers)),) if numbers else ())
    yield Section(words("report.options"), (options(answer.question, words),), folded=True)


def course_parts(answer: TraceAnswer, words: Words) -> Iterator[Part]:
    """Allocated and reserved memory from the first event to the last."""
    if answer.course:
        allocated = [point.allocated_bytes for point in answer.course]
        yield course_picture(Course(
            title=words("trace.course"), layers=[Layer("allocated", words("allocated"), allocated)],
            line=[point.reserved_bytes for point in answer.course], line_label=words("reserved"),
            span=words("report.span", events=f"{answer.events:,}"),
        ))


def _holders(holdings: Sequence[Holding], answer: TraceAnswer, words: Words) -> Iterator[Part]:
    whole, found = answer.peak.allocated_bytes or 1, merged(holdings)
    rows = tuple(
        (
            one.name or words("trace.unnamed"), format_bytes(one.num_bytes), share(one.num_bytes / whole),
            f"{one.count:,}",
        )
        for one in found[:LIST]
    )
    if rows:
        head = (words("report.entry"), words("report.size"), words("report.share"), words("report.blocks"))
        yield Table(head, rows, right=frozenset({1, 2, 3}))
    if len(found) > LIST:
        yield Text(words("trace.more", count=f"{len(found) - LIST:,}"))


def _unknown(answer: TraceAnswer, words: Words) -> Iterator[Part]:
    found, whole = answer.unknown_operators, answer.peak.allocated_bytes or 1
    if not found:
        return
    held = share(sum(one.peak_bytes for one in found) / whole)
    yield Text(words("trace.unknown_share", count=len(found), share=held))
    rows = tuple(
        (one.name, f"{one.calls:,}", format_bytes(one.num_bytes), format_bytes(one.peak_bytes),
         share(one.peak_bytes / whole))
        for one in found
    )
    keys = ("operator", "calls", "outputs", "at_peak", "share")
    yield Table(tuple(words(f"report.{key}") for key in keys), rows, right=frozenset({1, 2, 3, 4}))
