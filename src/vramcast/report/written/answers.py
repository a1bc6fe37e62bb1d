"""The answer to one plan, of training or serving, as a report."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import groupby, pairwise
from statistics import median
from typing import Any, Final

from msgspec.structs import replace

from vramcast.domain.answer import Answer, Found, LedgerEntry, PostTrainingAnswer, RankAnswer, ServeAnswer
from vramcast.domain.program import Basis
from vramcast.estimate.interval import Case, measured_cases
from vramcast.report.messages import MESSAGES, Words, rare_messages
from vramcast.report.sentences import copies_of, cost_lines, run_length, stage_rows, tone_of
from vramcast.report.text import cache, change_cells, headlines, rates, step_time, tried_cells, under_traffic
from vramcast.report.written import parts
from vramcast.report.written.pictures import Course, Layer, bars_table, course_picture
from vramcast.units import format_bytes, format_seconds
from vramcast.version import __version__

LONG: Final = 100
"""Characters of a command that is broken into lines."""

MOST_ROLES: Final = 16
"""Bars of a picture; the table has every role."""

Numbers = Mapping[str, int]
"""Source -> its number in the list of sources."""


def answer_report(command: str, answer: Answer, words: Words, *, asked: str, today: date) -> parts.Report:
    """The report on `train`, `serve`, or the plan that an inverse question found."""
    answer = words.spoken(answer)
    name = words("report.on", **{part: answer.question[part] for part in ("model", "gpus", "engine")})
    sections = (question(asked, words), *answer_sections(answer, words, today), *_end(answer, words))
    return report(
        words, words(f"report.title.{command}", name=name), headlines(answer, words, today=today), tone_of(answer),
        sections, today=today, footer=(words("report.computed"),),
    )


def report(
    words: Words, title: str, verdict: Iterable[str], tone: str, sections: Iterable[parts.Section], *,
    today: date | None = None, footer: tuple[str, ...] = (),
) -> parts.Report:
    """A report of those sections that have parts; what indents lines on a terminal is left out of its verdict.

    `today`: when it was made, which stands at its foot; None: nowhere.
    """
    if today is not None:
        footer = (words("report.made", version=__version__, date=today.isoformat()), *footer)
    said = tuple(line.strip() for line in verdict)
    kept = tuple(section for section in sections if section.parts)
    return parts.Report(words.language, title, said, tone, kept, footer)


def answer_sections(answer: Answer, words: Words, today: date) -> tuple[parts.Section, ...]:
    """What explains an answer: memory, time, price, changes, ledgers, how right that is, sources."""
    return tuple(section for section in _sections(answer, words, today) if section.parts)


def _sections(answer: Answer, words: Words, today: date) -> Iterator[parts.Section]:
    if isinstance(answer, PostTrainingAnswer):
        (head, *rows) = stage_rows(answer, words)
        table = parts.Table((words("report.phase"), *head[1:-1], words("report.seconds")), tuple(rows),
                            right=frozenset(range(1, len(head))))
        yield parts.Section(words("stages"), (table,))
        answer = replace(answer, ranks=tuple(rank for rank in answer.ranks if rank.ledger))
    yield parts.Section(words("report.roles"), tuple(bars_parts(answer, words)))
    if answer.found is not None and answer.found.tried:
        yield parts.Section(words("tried", count=answer.found.num_tried), (tried_table(answer.found, words),))
    yield parts.Section(words("report.changes"), tuple(change_parts(answer, words)))
    if isinstance(answer, ServeAnswer):
        yield parts.Section(words("report.cache"), tuple(_cache(answer, words)))
        yield parts.Section(words("report.speed"), tuple(_speed(answer, words)))
        yield parts.Section(words("report.traffic"), tuple(_traffic(answer, words)))
    yield parts.Section(words("report.time"), tuple(time_parts(answer, words)))
    yield parts.Section(words("report.price"), tuple(_price(answer, words, today)))
    yield parts.Section(words("report.rests"), (_rests(answer.fullest, words),))
    numbers = numbered(answer)
    count = sum(rank.count for rank in answer.ranks)
    for rank in answer.ranks:
        title = words("ledger" if rank is answer.fullest else "role", role=rank.role, count=rank.count, total=count)
        tables = (ledger(rank, words, numbers), phases(rank, words))
        yield parts.Section(title, tables, folded=rank is not answer.fullest)
    yield parts.Section(words("report.sources"), (parts.Sources(tuple(numbers)),) if numbers else ())
    purpose = "serving" if isinstance(answer, ServeAnswer) else "training"
    yield _accuracy(str(answer.question["engine"]).partition("@")[0], purpose, words)


def _end(answer: Answer, words: Words) -> Iterator[parts.Section]:
    yield parts.Section(words("report.assumed"), listed(answer.assumptions))
    yield parts.Section(words("report.warned"), listed(answer.warnings))
    yield parts.Section(words("report.options"), (options(answer.question, words),), folded=True)


def question(asked: str, words: Words) -> parts.Section:
    """The command line that asks the question, an option a line where it is long."""
    try:
        typed = shlex.split(asked)
    except ValueError:  # not one of ours
        typed = [asked]
    starts = [place for place, word in enumerate(typed) if word.startswith("--")] if len(asked) > LONG else []
    edges = [0, *starts, len(typed)]
    lines = [shlex.join(typed[start:end]) for start, end in pairwise(edges)] if starts else [asked]
    return parts.Section(words("report.question"), (parts.Code(" \\\n  ".join(filter(None, lines))),) if asked else ())


def tried_table(found: Found, words: Words) -> parts.Table:
    (head, *rows), right = tried_cells(found, words)
    return parts.Table(tuple(name or words("report.verdict") for name in head), tuple(rows), right=right)


def listed(texts: Iterable[str]) -> tuple[parts.Part, ...]:
    found = tuple(texts)
    return (parts.Items(found),) if found else ()


def numbered(answer: Answer) -> dict[str, int]:
    """Every source of the answer, counted from 1: of the ledger, the largest entries first, of time, of the price."""
    entries = (entry for rank in answer.ranks for entry in sorted(rank.ledger, key=lambda entry: -entry.num_bytes))
    found = [entry.source for entry in entries]
    found += answer.time.sources if answer.time is not None else ()
    if isinstance(answer, ServeAnswer) and answer.speed is not None:
        found += answer.speed.sources
    if answer.cost is not None:
        found.append(answer.cost.price.source)
    return {source: number for number, source in enumerate(dict.fromkeys(filter(None, found)), 1)}


def options(question: Mapping[str, Any], words: Words) -> parts.Pairs:
    return parts.Pairs((words("report.option"), words("report.value")), tuple(_flat(question)))


def _flat(question: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in question.items():
        path = f"{above} {name}".strip().replace("_", "-")
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif value not in (None, "", [], ()):
            yield path, _said(value)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(_said, value)) if isinstance(value, (list, tuple)) else str(value)


def bars_parts(answer: Answer, words: Words) -> Iterator[parts.Part]:
    """Every rank role: bars, levels, and of several roles the categories side by side."""
    bars = role_bars(answer, words)
    yield bars
    yield _roles(answer, words)
    if len(bars.bars) > 1:
        yield bars_table(bars, words("report.category"))


def role_bars(answer: Answer, words: Words) -> parts.Bars:
    """A stacked bar for each rank role against what a process can use of the card."""
    total = sum(rank.count for rank in answer.ranks)
    bars = tuple(
        bar_of(rank, words("report.role_of", role=rank.role, count=rank.count, total=total), words)
        for rank in answer.ranks[:MOST_ROLES]
    )
    capacity = answer.capacity_bytes or None
    label = words("report.usable", capacity=format_bytes(answer.capacity_bytes))
    return parts.Bars(words("report.bars"), bars, limit=capacity, limit_label=label)


def bar_of(rank: RankAnswer, label: str, words: Words) -> parts.Bar:
    """The categories of a rank role as a bar, its highest moment marked where that is another."""
    higher = rank.needed_bytes if rank.needed_bytes > rank.peak.device_bytes else None
    phase = phase_name(rank.highest_phase, words)
    return parts.Bar(
        label,
        tuple(
            parts.Slice(name, category_name(name, words), size, format_bytes(size))
            for name, size in categories(rank) if size
        ),
        format_bytes(rank.peak.device_bytes),
        mark=higher, mark_label=words("report.mark", phase=phase, size=format_bytes(rank.needed_bytes)),
    )


def categories(rank: RankAnswer) -> list[tuple[str, int]]:
    """Categories of a ledger with their bytes, largest first."""
    found: dict[str, int] = {}
    for entry in rank.ledger:
        found[entry.category] = found.get(entry.category, 0) + entry.num_bytes
    return sorted(found.items(), key=lambda item: -item[1])


def category_name(name: str, words: Words) -> str:
    """The name of a category; engines may add some that have no word."""
    return words(f"category.{name}") if f"category.{name}" in MESSAGES else name


def phase_name(name: str, words: Words) -> str:
    return words(f"phase.{name}") if f"phase.{name}" in MESSAGES | rare_messages() else name


def _roles(answer: Answer, words: Words) -> parts.Table:
    keys = ("role", "gpus", "allocated", "reserved", "device", "interval", "needed", "highest")
    plain = ("allocated", "reserved", "device")
    head = tuple(words(key if key in plain else f"report.{key}") for key in keys)
    rows = tuple(
        (
            rank.role, f"{rank.count:,}", *_levels(rank.peak.allocated_bytes, rank.peak.reserved_bytes),
            format_bytes(rank.peak.device_bytes),
            words("report.range", low=format_bytes(rank.interval_bytes[0]), high=format_bytes(rank.interval_bytes[1])),
            format_bytes(rank.needed_bytes), phase_name(rank.highest_phase, words),
        )
        for rank in answer.ranks
    )
    return parts.Table(head, rows, right=frozenset(range(1, 7)))


def _levels(allocated: int, reserved: int) -> tuple[str, str]:
    """Both levels of a caching allocator; engines with an allocator of their own have none."""
    return (format_bytes(allocated), format_bytes(reserved)) if reserved else ("", "")


def phases(rank: RankAnswer, words: Words) -> parts.Table:
    head = (words("report.phase"), words("allocated"), words("reserved"), words("device"))
    rows = tuple(
        (
            phase_name(name, words), *_levels(peak.allocated_bytes, peak.reserved_bytes),
            format_bytes(peak.device_bytes),
        )
        for name, peak in rank.phases.items()
    )
    return parts.Table(head, rows, right=frozenset({1, 2, 3}), title=words("phases"))


def ledger(rank: RankAnswer, words: Words, numbers: Numbers) -> parts.Table:
    """Every entry by category, largest first; entries add up to the device peak of the steady step."""
    keys = ("report.entry", "report.size", "report.share", "formula", "basis", "source")
    whole = rank.peak.device_bytes or 1
    by_name = sorted(rank.ledger, key=lambda entry: entry.category)
    entries = {name: list(found) for name, found in groupby(by_name, lambda entry: entry.category)}
    rows: list[tuple[str | parts.Ref, ...]] = []
    strong: set[int] = set()
    for name, size in categories(rank):
        strong.add(len(rows))
        rows.append((category_name(name, words), format_bytes(size), f"{size / whole:.1%}", "", "", parts.Ref(0)))
        rows += (
            _entry(entry, whole, numbers, words) for entry in sorted(entries[name], key=lambda entry: -entry.num_bytes)
        )
    strong.add(len(rows))
    rows.append((words("total"), format_bytes(rank.peak.device_bytes), "100.0%", "", "", parts.Ref(0)))
    head = tuple(words(key) for key in keys)
    return parts.Table(head, tuple(rows), right=frozenset({1, 2}), strong=frozenset(strong))


def _entry(entry: LedgerEntry, whole: int, numbers: Numbers, words: Words) -> tuple[str | parts.Ref, ...]:
    times = f" x {entry.count}" if entry.count != 1 else ""
    formula = f"{entry.count} x ({entry.formula})" if times and entry.formula else entry.formula
    exact = words("report.exact", formula=formula, size=f"{entry.num_bytes:,}") if formula else f"{entry.num_bytes:,} B"
    name = entry.path.partition("/")[2] or entry.path
    return (
        name + times, format_bytes(entry.num_bytes), f"{entry.num_bytes / whole:.1%}", exact, words.said(entry.basis),
        parts.Ref(numbers.get(entry.source, 0)),
    )


def _rests(rank: RankAnswer, words: Words) -> parts.Table:
    """How much of a ledger is computed, traced, measured and assumed."""
    keys = ("basis", "report.means", "report.entries", "report.size", "report.share")
    whole = rank.peak.device_bytes or 1
    rows = []
    for basis in Basis:
        found = [entry.num_bytes for entry in rank.ledger if entry.basis == basis]
        if found:
            size, name = sum(found), words.said(basis)
            rows.append((name, words(f"basis.{basis}"), f"{len(found):,}", format_bytes(size), f"{size / whole:.1%}"))
    return parts.Table(tuple(words(key) for key in keys), tuple(rows), right=frozenset({2, 3, 4}))


def time_parts(answer: Answer, words: Words) -> Iterator[parts.Part]:
    time = answer.time
    if time is not None:
        yield parts.Text(step_time(time, words))
        causes = sorted(time.seconds.items(), key=lambda item: -item[1])
        if causes:
            slices = tuple(
                parts.Slice(cause, words(f"cause.{cause}"), value, format_seconds(value)) for cause, value in causes
            )
            shown = format_seconds(time.step_s)
            yield parts.Bars(words("report.time_bars"), (parts.Bar(words("report.one_step"), slices, shown),))
            rows = tuple((one.label, one.shown, f"{one.value / time.step_s:.1%}") for one in slices)
            head = (words("report.cause"), words("report.seconds"), words("report.share"))
            yield parts.Table(head, rows, right=frozenset({1, 2}))
    if answer.run_hours is not None:
        yield parts.Text(words("run_length", length=run_length(answer.run_hours, words)))


def _cache(answer: ServeAnswer, words: Words) -> Iterator[parts.Part]:
    """Tokens by what is counted, figures of the start, and what the load alone needs."""
    if answer.capacity is not None:
        yield parts.Items(tuple(cache(answer, words)))
        rows = tuple((name, f"{count:,}") for name, count in answer.capacity.tokens_by_count.items())
        yield parts.Table((words("report.counted"), words("report.tokens")), rows, right=frozenset({1}))
    if answer.startup:
        rows = tuple((name, format_bytes(size)) for name, size in answer.startup.items())
        head = (words("report.entry"), words("report.size"))
        yield parts.Table(head, rows, right=frozenset({1}), title=words("report.startup"))
    if answer.load is not None:
        total, each = format_bytes(answer.load.total_bytes), format_bytes(answer.load.per_gpu_bytes)
        yield parts.Text(words("report.load", total=total, each=each))


def _speed(answer: ServeAnswer, words: Words) -> Iterator[parts.Part]:
    speed = answer.speed
    if speed is None:
        return
    yield parts.Items(tuple(rates(speed, words)))
    bars = tuple(
        parts.Bar(words(phase), _shares(shares, words), "100%")
        for phase, shares in (("prefill", speed.prefill_shares), ("decode", speed.decode_shares)) if shares
    )
    if bars:
        drawn = parts.Bars(words("report.speed_bars"), bars)
        yield from (drawn, bars_table(drawn, words("report.cause")))


def _traffic(answer: ServeAnswer, words: Words) -> Iterator[parts.Part]:
    """What users get, and how full the pool was."""
    served = answer.served
    if served is None:
        return
    yield parts.Items(tuple(line.strip() for line in under_traffic(served, words)))
    course = served.course_bytes
    yield course_picture(Course(
        words("report.traffic_course"), (Layer("kv cache", words("report.traffic_course"), course),),
        [served.pool_bytes] * len(course), words("report.traffic_pool"),
        words("report.traffic_span", end=f"{served.duration_s:,.0f}"),
    ))


def _shares(shares: Mapping[str, float], words: Words) -> tuple[parts.Slice, ...]:
    causes = sorted(shares.items(), key=lambda item: -item[1])
    return tuple(parts.Slice(cause, words(f"cause.{cause}"), share, f"{share:.0%}") for cause, share in causes if share)


def _price(answer: Answer, words: Words, today: date) -> Iterator[parts.Part]:
    generated = isinstance(answer, ServeAnswer)
    lines = cost_lines(answer.cost, words, instance=answer.question["gpus"], today=today, generated=generated,
                       copies=copies_of(answer))
    yield from listed(lines)


def change_parts(answer: Answer, words: Words) -> Iterator[parts.Part]:
    if not answer.changes:
        return
    if not answer.fits and not any(change.fits for change in answer.changes):
        yield parts.Text(words("no_changes"))
    keys = ("change", "becomes", "verdict", "costs")
    rows = tuple(change_cells(change, answer, words) for change in answer.changes)
    yield parts.Table(tuple(words(f"report.{key}") for key in keys), rows, right=frozenset({1}))


def _accuracy(engine: str, purpose: str, words: Words) -> parts.Section:
    """A row for each group of measured runs of the engine for "training" or "serving"; a sentence where there is none.
    """
    groups: dict[str, list[Case]] = {}
    for case in measured_cases():
        if case.purpose == purpose and case.traits.engine == engine:
            groups.setdefault(case.harness, []).append(case)
    if not groups:
        others = len({case.harness for case in measured_cases() if case.purpose == purpose})
        none = words("report.accuracy_none", engine=engine, groups=others)
        return parts.Section(words("report.accuracy"), (parts.Text(none),))
    keys = ("group", "cases", "median", "lowest", "most_high")
    rows = tuple(_accuracy_row(group, cases) for group, cases in groups.items())
    table = parts.Table(tuple(words(f"report.{key}") for key in keys), rows, right=frozenset({1, 2, 3, 4}))
    said = parts.Text(words("report.accuracy_of", engine=engine))
    return parts.Section(words("report.accuracy"), (said, table, parts.Text(words("report.accuracy_note"))))


def _accuracy_row(group: str, cases: list[Case]) -> tuple[str, ...]:
    errors = [1 / ratio - 1 for case in cases for ratio in case.ratios]  # of the prediction, relative to the measured
    low, high = min(errors), max(errors)
    return (
        group, str(sum(case.num_runs for case in cases)), f"{median(map(abs, errors)):.1%}",
        f"{low:+.1%}" if low < 0 else "", f"{high:+.1%}" if high > 0 else "",
    )
