"""The answer of a search as a report: the winner, the plans, why, what nearly fits, and the best plan in full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Final

from vramcast.domain.answer import Answer
from vramcast.domain.planning import PlanAnswer
from vramcast.report import plan as searched
from vramcast.report.messages import Words
from vramcast.report.picture import scatter, svg
from vramcast.report.plan_document import technique_words
from vramcast.report.sentences import tone_of
from vramcast.report.written import answers
from vramcast.report.written.parts import Bars, Items, Part, Picture, Report, Section, Table, Text
from vramcast.units import format_bytes

MOST_BARS: Final = 8
"""Plans drawn beside each other."""


def plan_report(command: str, answer: PlanAnswer | Answer, words: Words, *, asked: str, today: date) -> Report:
    """The report on a search; that of an inverse question is the report on the plan it found."""
    if not isinstance(answer, PlanAnswer):
        return answers.answer_report(command, answer, words, asked=asked, today=today)
    answer = words.spoken(answer)
    name = answer.question.get("model") or words("report.numbers")
    return answers.report(
        words, words(f"report.title.{command}", name=name), searched.opening(answer, words, today), tone_of(answer),
        _sections(answer, words, asked, today), today=today, footer=(words("report.computed"),),
    )


def _sections(answer: PlanAnswer, words: Words, asked: str, today: date) -> Iterator[Section]:
    yield answers.question(asked, words)
    yield Section(words("plan.table"), tuple(plan_parts(answer, words)))
    yield from reason_sections(answer, words)
    yield Section(words("plan.picture"), tuple(picture_parts(answer, words)))
    decisions = searched.decisions_of(answer.decisions, words, engine=searched.engine_of(answer))
    steps = tuple(line.partition(". ")[2] for line in searched.stripped(decisions))
    yield Section(words("plan.decisions"), (Items(steps, numbered=True),) if steps else ())
    yield Section(words("plan.techniques"), tuple(_techniques(answer, words)))
    yield Section(words("report.options"), (answers.options(answer.question, words),), folded=True)
    yield Section(words("report.assumed"), answers.listed(answer.assumptions))
    yield Section(words("report.warned"), answers.listed(answer.warnings))
    best = answer.plans[0] if answer.plans else answer.nearest_failing
    if best is not None:
        said = words("report.best" if answer.plans else "report.nearest")
        for section in answers.answer_sections(best, words, today):
            yield section._replace(title=words("report.of", what=said, section=section.title))


def reason_sections(answer: PlanAnswer, words: Words) -> Iterator[Section]:
    for key, lines in (
        (searched.reasons_key(answer), searched.reasons_of(answer, words)),
        (searched.nearest_key(answer), searched.nearest(answer, words)),
    ):
        yield Section(words(key), answers.listed(searched.stripped(lines)))


def plan_parts(answer: PlanAnswer, words: Words) -> Iterator[Part]:
    if not answer.plans:
        return
    above, (head, *rows), right, below = searched.plan_cells(answer, words)
    yield from map(Text, above)
    yield Table(("#", *head[1:]), tuple(rows), right=right)
    yield from map(Text, below)
    first = answer.plans[:MOST_BARS]
    bars = tuple(
        answers.bar_of(plan.fullest, words("report.plan", rank=rank, capacity=format_bytes(plan.capacity_bytes)), words)
        for rank, plan in enumerate(first, 1)
    )
    same = len({plan.capacity_bytes for plan in first}) == 1
    label = words("report.usable", capacity=format_bytes(first[0].capacity_bytes))
    yield Bars(words("report.plan_bars"), bars, limit=first[0].capacity_bytes if same else None, limit_label=label)


def picture_parts(answer: PlanAnswer, words: Words) -> Iterator[Part]:
    """Cost against speed; nothing where there is nothing to compare."""
    drawn = "\n".join(line.removeprefix("  ") for line in scatter(answer.front, words))
    if drawn:
        yield Picture(words("plan.picture"), svg(answer.front, words, own_ground=False), drawn)


def _techniques(answer: PlanAnswer, words: Words) -> Iterator[Part]:
    """Every technique for this case, with when to use it and what it needs."""
    if not answer.techniques:
        return
    (head, *rows), right = searched.technique_cells(answer.techniques, answer, words)
    yield Table(tuple(name or words("report.share") for name in head), tuple(rows), right=right)
    said = [technique_words(row, words) for row in answer.techniques]
    yield Items(tuple(f"{row.name}: {words('plan.when', when=row.when, needs=row.needs)}" for row in said))
