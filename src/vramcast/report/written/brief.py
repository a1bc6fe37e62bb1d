"""Reports that are short enough for the output of a notebook: the answer, its picture, the largest entries.

The answer of a search as a report: the winner, the plans, why, what nearly fits, and the best plan in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final, cast

from vramcast.domain.answer import Answer, RankAnswer
from vramcast.domain.failure import Diagnosis
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.trace_job import TraceAnswer
from vramcast.recordings.examine import in_order
from vramcast.report import plan as searched
from vramcast.report.document import technique_words
from vramcast.report.messages import Words
from vramcast.report.picture import scatter, svg
from vramcast.report.plan import opening as plan_opening
from vramcast.report.replay import device_prefix
from vramcast.report.replay import opening as replay_opening
from vramcast.report.sentences import NO_TONE, tone_of
from vramcast.report.shown import ShownReplay
from vramcast.report.text import headlines
from vramcast.report.trace import opening
from vramcast.report.written import answers
from vramcast.report.written.html import cell
from vramcast.report.written.markdown import markdown
from vramcast.report.written.parts import Bars, Items, Part, Picture, Report, Section, Table, Text
from vramcast.report.written.recordings import (
    course_of,
    course_parts,
    device_sections,
    diagnosis_report,
    held_parts,
)
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


SHOWN_ENTRIES: Final = 20
SHOWN_ROWS: Final = 50
"""Of a sweep."""

WHOLE: Final = 1000
"""From here on figures have no fraction."""

SHOWN_COLUMNS: Final = (
    "verdict", "found", "needed_bytes", "capacity_bytes", "step_s", "tokens_per_s", "kv_tokens", "max_concurrency",
    "price_per_million_tokens", "price_currency", "shortfall", "error", "message",
)
"""Of a sweep's answers; the rest is in its rows."""


def brief_of(answer: object, words: Words) -> Report:
    """The short report on what a function of `vramcast` returned: of a diagnosis all of it."""
    today = date.today()
    if isinstance(answer, Diagnosis):
        return diagnosis_report("oom", answer, words, asked="", today=today)._replace(title="", footer=())
    if isinstance(answer, PlanAnswer):
        answer = words.spoken(answer)
        return answers.report(words, "", plan_opening(answer, words, today), tone_of(answer), _plan(answer, words))
    if isinstance(answer, TraceAnswer):
        answer = words.spoken(answer)
        return answers.report(words, "", opening(answer, words), tone_of(answer), _trace(answer, words))
    if isinstance(answer, Answer):
        answer = words.spoken(answer)
        said = headlines(answer, words, today=today)
        return answers.report(words, "", said, tone_of(answer), _answer(answer, words))
    return replay_brief(cast(ShownReplay, answer), words)


def cell_of(answer: object, words: Words) -> str:
    """That report as output of a notebook."""
    return cell(brief_of(answer, words))


def markdown_of(answer: object, words: Words) -> str:
    """The same for notebooks that show Markdown."""
    return markdown(brief_of(answer, words))


def _answer(answer: Answer, words: Words) -> Iterator[Section]:
    yield Section("", tuple(answers.bars_parts(answer, words)))
    if answer.found is not None and answer.found.tried:
        yield Section(words("tried", count=answer.found.num_tried), (answers.tried_table(answer.found, words),))
    if not answer.fits:
        yield Section(words("changes"), tuple(answers.change_parts(answer, words)))
    yield Section(words("report.time"), tuple(answers.time_parts(answer, words))[:2])
    count = sum(rank.count for rank in answer.ranks)
    rank = answer.fullest
    title = words("ledger", role=rank.role, count=rank.count, total=count)
    yield Section(title, tuple(_entries(rank, words)), folded=True)
    yield Section(words("phases"), (answers.phases(rank, words)._replace(title=""),), folded=True)
    yield Section(words("report.assumed"), answers.listed(answer.assumptions), folded=True)
    yield Section(words("report.warned"), answers.listed(answer.warnings))


def _entries(rank: RankAnswer, words: Words) -> Iterator[Part]:
    """The largest entries of a ledger with formula and source."""
    entries = sorted(rank.ledger, key=lambda entry: -entry.num_bytes)
    rows = tuple(
        (
            answers.category_name(entry.category, words), entry.path.partition("/")[2], str(entry.count),
            format_bytes(entry.num_bytes), entry.formula, words.said(entry.basis), entry.source,
        )
        for entry in entries[:SHOWN_ENTRIES]
    )
    keys = ("report.category", "report.entry", "report.times", "report.size", "formula", "basis", "source")
    yield Table(tuple(words(key) for key in keys), rows, right=frozenset({2, 3}))
    if len(entries) > SHOWN_ENTRIES:
        yield Text(words("report.top", shown=SHOWN_ENTRIES, total=len(entries)))


def _plan(answer: PlanAnswer, words: Words) -> Iterator[Section]:
    yield Section(words("plan.table"), tuple(plan_parts(answer, words)))
    yield from reason_sections(answer, words)
    yield Section(words("plan.picture"), tuple(picture_parts(answer, words)))
    yield Section(words("report.assumed"), answers.listed(answer.assumptions), folded=True)
    yield Section(words("report.warned"), answers.listed(answer.warnings))


def replay_brief(found: ShownReplay, words: Words) -> Report:
    """Of `replay`: the course of each device and what held its peak; failures and other settings."""
    return answers.report(words, "", replay_opening(found.devices, words), NO_TONE, _devices(found, words))


def _devices(found: ShownReplay, words: Words) -> Iterator[Section]:
    for one in in_order(found.devices):
        prefix = device_prefix(one, words, several=len(found.devices) > 1)
        failed, variants, *_ = device_sections(one, words, found.top)
        course = Section(words("replay.course"), tuple(course_of(one, words)))
        held = Section(words("replay.held"), tuple(held_parts(one.held, words, found.top)))
        yield from (part._replace(title=prefix + part.title) for part in (failed, course, held, variants))


def _trace(answer: TraceAnswer, words: Words) -> Iterator[Section]:
    yield Section("", (answers.role_bars(answer, words),))
    yield Section(words("trace.course"), tuple(course_parts(answer, words)))
    if not answer.fits:
        yield Section(words("changes"), tuple(answers.change_parts(answer, words)))
    yield Section(words("trace.ledger"), tuple(_entries(answer.fullest, words)), folded=True)
    yield Section(words("report.assumed"), answers.listed(answer.assumptions), folded=True)
    yield Section(words("report.warned"), answers.listed(answer.warnings))


def sweep_brief(
    counts: Mapping[str, int], asked: Sequence[str], rows: Sequence[Mapping[str, Any]], words: Words
) -> Report:
    """Of a sweep: how many fit, fail and cannot be answered, the columns of its questions, and its first rows."""
    said = words("sweep_result", **{name: f"{count:,}" for name, count in counts.items()})
    return answers.report(words, "", [said], NO_TONE, _sweep(counts["total"], asked, rows, words))


def _sweep(
    total: int, asked: Sequence[str], rows: Sequence[Mapping[str, Any]], words: Words
) -> Iterator[Section]:
    alike = {name for name in asked if len(rows) > 1 and len({str(row.get(name)) for row in rows}) == 1}
    kept = [name for name in (*asked, *SHOWN_COLUMNS) if name not in alike and any(name in row for row in rows)]
    cells = tuple(tuple(_value(name, row.get(name)) for name in kept) for row in rows)
    figures = (place for place, name in enumerate(kept) if type(_first(name, rows)) in (int, float))
    if cells:
        title = words("report.first_rows", shown=len(rows), total=f"{total:,}")
        yield Section(title, (Table(tuple(kept), cells, right=frozenset(figures)),))


def _first(name: str, rows: Sequence[Mapping[str, Any]]) -> object:
    return next((row[name] for row in rows if name in row), None)


def _value(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return format_bytes(value) if name.endswith("_bytes") else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= WHOLE else f"{value:.4g}"
    return str(value)
