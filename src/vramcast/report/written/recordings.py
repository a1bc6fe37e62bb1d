"""Reports on runs: a replayed recording, the static sister of the page with a timeline; a traced run; a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from typing import Final

from vramcast.domain.failure import Diagnosis, Finding
from vramcast.domain.snapshot import BlockView
from vramcast.domain.trace_job import Holding, TraceAnswer
from vramcast.recordings.examine import Difference, Examined, in_order
from vramcast.recordings.peak import Group, Held
from vramcast.report import replay_words as say
from vramcast.report.failure import (
    compared_cells,
    fix_sentence,
    grouped,
    holders,
    number_cells,
    sentence,
    whereabouts,
)
from vramcast.report.failure import headline as failure_headline
from vramcast.report.messages import Words
from vramcast.report.replay import device_prefix, line_of, opening
from vramcast.report.sentences import NO_TONE, tone_of
from vramcast.report.shown import ShownReplay
from vramcast.report.trace import VIEWS, merged, step_time, time_rows
from vramcast.report.trace import opening as trace_opening
from vramcast.report.written import answers, parts
from vramcast.report.written.pictures import Course, Layer, course_picture
from vramcast.units import format_bytes

LIST: Final = 20
"""Rows of a list of a traced run."""


def replay_report(command: str, found: ShownReplay, words: Words, *, asked: str, today: date) -> parts.Report:
    first = found.devices[0]
    sections = [answers.question(asked, words)]
    for one in in_order(found.devices):
        prefix = device_prefix(one, words, several=len(found.devices) > 1)
        sections += (part._replace(title=prefix + part.title) for part in device_sections(one, words, found.top))
    sections.append(parts.Section(words("replay.notes"), answers.listed(map(words.said, first.snapshot.remarks))))
    title = words(f"report.title.{command}", name=first.snapshot.name)
    return answers.report(words, title, opening(found.devices, words), NO_TONE, sections, today=today)


def device_sections(found: Examined, words: Words, top: int) -> Iterator[parts.Section]:
    stacks = say.Stacks(found, words)
    yield parts.Section(words("replay.failures"), tuple(_failures(found, stacks, words)))
    yield parts.Section(say.variants_title(found.variants, words), tuple(_variants(found, words)))
    yield parts.Section(words("replay.course"), tuple(course_of(found, words)))
    yield parts.Section(words("replay.held"), tuple(held_parts(found.held, words, top)))
    yield parts.Section(words("replay.largest"), tuple(_largest(found, stacks, words, top)))
    title = words("replay.fragmentation", run=say.share(found.fragmentation_of_run))
    yield parts.Section(title, tuple(_fragmentation(found, stacks, words, top)))
    if found.leaks is not None:
        said = [f"{say.leak_line(leak, words)}: {stacks(leak.stack)}" for leak in found.leaks.leaks[:top]]
        first = parts.Text(say.leaks_said(found.leaks, words))
        yield parts.Section(words("replay.leaks"), (first, *answers.listed(said)))
    if found.difference is not None:
        title = words("replay.difference", name=found.difference.before)
        yield parts.Section(title, tuple(_difference(found.difference, words)))


def _failures(found: Examined, stacks: say.Stacks, words: Words) -> Iterator[parts.Part]:
    yield from answers.listed(
        f"{say.failed(one, words)}; {say.could_have(one, words)}; {stacks(one.stack)}" for one in found.failures
    )
    more = found.num_failures - len(found.failures)
    if more:
        yield parts.Text(words("replay.more_failures", count=f"{more:,}"))


def _variants(found: Examined, words: Words) -> Iterator[parts.Part]:
    tried = say.settings(found, words)
    if tried is not None:
        head, *rows = tried.cells
        yield from map(parts.Text, filter(None, [tried.advice]))
        yield parts.Table(head, tuple(rows), right=say.FIGURES)
        yield from map(parts.Text, filter(None, [tried.note]))


def course_of(found: Examined, words: Words) -> Iterator[parts.Part]:
    """The timeline by category; what tensors do not take of their blocks is a layer of its own."""
    points, names = found.timeline.points, found.timeline.categories
    if not points:
        return
    layers = [
        Layer(name, say.category_name(name, words), [point.by_category[number] for point in points])
        for number, name in enumerate(names)
    ]
    rest = [max(0, point.allocated_bytes - sum(point.by_category)) for point in points]
    layers.append(Layer("slack", words("replay.page.rounding"), rest))
    events = max(1, found.timeline.events)
    yield course_picture(Course(
        title=words("report.course"), layers=layers, line=[line_of(point) for point in points],
        line_label=words("allocated" if found.replayed.reserved is None else "reserved"),
        span=words("report.span", events=f"{found.timeline.events:,}"),
        failures=[failure.event / events for failure in found.failures],
    ))


def held_parts(held: Held, words: Words, top: int) -> Iterator[parts.Part]:
    """What was live at the peak: by category as a bar and a table, by module, by line."""
    slices = tuple(
        parts.Slice(group.name, say.category_name(group.name, words), group.size_bytes, format_bytes(group.size_bytes))
        for group in held.by_category
    )
    if not slices:
        return
    yield parts.Bars(words("report.live"), (parts.Bar(words("allocated"), slices, format_bytes(held.size_bytes)),))
    yield _groups(held.by_category, held, words, words("report.category"), lambda name: say.category_name(name, words))
    yield from answers.listed(say.held_sentences(held, words))
    for groups, head, none in (
        (held.by_module, words("replay.modules"), words("replay.no_module")),
        (held.by_line, words("replay.lines"), words("replay.unnamed")),
    ):
        if any(group.name for group in groups):
            yield _groups(groups[:top], held, words, head, partial(_named, none=none))


def _named(name: str, *, none: str) -> str:
    return name or none


def _groups(groups: Sequence[Group], held: Held, words: Words, head: str, name: Callable[[str], str]) -> parts.Table:
    rows = tuple(say.group_rows(groups, held, words, name))
    figures = (words(f"report.{key}") for key in ("size", "share", "blocks"))
    return parts.Table((head, *figures), rows, right=say.FIGURES)


def _largest(found: Examined, stacks: say.Stacks, words: Words, top: int) -> Iterator[parts.Part]:
    rows = tuple(
        (format_bytes(block.size_bytes), say.category_name(block.category, words),
         say.age(block, words, has_times=say.has_times(found.snapshot)), stacks(block.stack))
        for block in found.held.blocks[:top]
    )
    if rows:
        head = (words("report.size"), *(words(f"replay.page.{key}") for key in ("category", "age", "stack")))
        yield parts.Table(head, rows, right=frozenset({0}))


def _fragmentation(found: Examined, stacks: say.Stacks, words: Words, top: int) -> Iterator[parts.Part]:
    """Where reserved memory is, the holes by size, the largest of them, and what pins segments."""
    split = found.fragmentation
    if split is None:
        if found.fragmentation_of_run is not None:
            yield parts.Text(words("replay.no_holes"))
        return
    if not split.reserved_bytes:
        return

    def near(block: BlockView | None) -> str:
        return words("replay.edge") if block is None else f"{format_bytes(block.size_bytes)}, {stacks(block.stack)}"

    yield parts.Text(say.fragmentation_said(split, words))
    rows = [
        (name, format_bytes(size), say.share(size / split.reserved_bytes))
        for name, size in say.parts_of(split, words) if size
    ]
    rows += [
        (f"{name} ({say.blocks(count, words)})", format_bytes(size), "")
        for name, size, count in say.hole_classes(split, words)
    ]
    head = (words("report.entry"), words("report.size"), words("report.share"))
    yield parts.Table(head, tuple(rows), right=say.FIGURES)
    holes = tuple(
        "; ".join((say.hole_line(hole, words), *(f"{side}: {near(block)}" for side, block in say.sides(hole, words))))
        for hole in split.holes[:top]
    )
    pinned = tuple("; ".join((say.pinned_line(one, words), *map(near, one.pins))) for one in split.pinned[:top])
    for key, texts in (("replay.holes", holes), ("replay.pinned", pinned)):
        if texts:
            yield from (parts.Text(words(key)), parts.Items(texts))


def _difference(difference: Difference, words: Words) -> Iterator[parts.Part]:
    process, segments = say.difference_sentences(difference, words)
    yield parts.Text(process)
    yield from answers.listed(segments)
    (*head, _), *rows = say.difference_rows(difference, words)
    yield parts.Table((*head, words("report.entry")), tuple(rows), right=frozenset({0, 1, 2}))


def trace_report(command: str, answer: TraceAnswer, words: Words, *, asked: str, today: date) -> parts.Report:
    answer = words.spoken(answer)
    title, said = words(f"report.title.{command}", name=answer.question["target"]), trace_opening(answer, words)
    sections = _trace_sections(answer, words, asked)
    return answers.report(words, title, said, tone_of(answer), sections, today=today)


def _trace_sections(answer: TraceAnswer, words: Words, asked: str) -> Iterator[parts.Section]:
    yield answers.question(asked, words)
    if answer.failure is not None:
        said = (f"torch.OutOfMemoryError: {answer.failure.message}", *(f"  {line}" for line in answer.failure.stack))
        yield parts.Section(words("trace.would_print"), (parts.Code("\n".join(said)),))
    if answer.found is not None and answer.found.tried:
        title = words("trace.tried", count=answer.found.num_tried)
        yield parts.Section(title, (answers.tried_table(answer.found, words),))
    yield parts.Section(words("report.changes"), tuple(answers.change_parts(answer, words)))
    memory = (answers.role_bars(answer, words), answers.phases(answer.fullest, words))
    yield parts.Section(words("report.memory"), memory)
    yield parts.Section(words("report.time"), tuple(time_parts(answer, words)))
    yield parts.Section(words("trace.course"), tuple(course_parts(answer, words)))
    numbers = answers.numbered(answer)
    yield parts.Section(words("trace.ledger"), (answers.ledger(answer.fullest, words, numbers),))
    for view in VIEWS:
        holders = _holders(getattr(answer.holdings, f"by_{view}"), answer, words)
        yield parts.Section(words(f"trace.by.{view}"), tuple(holders))
    yield parts.Section(words("trace.unknown"), tuple(_unknown(answer, words)))
    yield parts.Section(words("report.assumed"), answers.listed(answer.assumptions))
    yield parts.Section(words("report.warned"), answers.listed(answer.warnings))
    yield parts.Section(words("report.sources"), (parts.Sources(tuple(numbers)),) if numbers else ())
    yield parts.Section(words("report.options"), (answers.options(answer.question, words),), folded=True)


def time_parts(answer: TraceAnswer, words: Words) -> Iterator[parts.Part]:
    """How long a step takes, what it goes to, by module, and what is left out."""
    time = answer.traced_time
    if time is None:
        return
    yield parts.Text(step_time(time, words))
    for key, rows in zip(("cause", "module"), time_rows(time, words), strict=True):
        head = (words(f"report.{key}"), words("report.seconds"), words("report.share"))
        yield parts.Table(head, tuple(rows), right=frozenset({1, 2}))
    yield from answers.listed((*time.left_out, *time.sources))


def course_parts(answer: TraceAnswer, words: Words) -> Iterator[parts.Part]:
    """Allocated and reserved memory from the first event to the last."""
    if answer.course:
        allocated = [point.allocated_bytes for point in answer.course]
        yield course_picture(Course(
            title=words("trace.course"), layers=[Layer("allocated", words("allocated"), allocated)],
            line=[point.reserved_bytes for point in answer.course], line_label=words("reserved"),
            span=words("report.span", events=f"{answer.events:,}"),
        ))


def _holders(holdings: Sequence[Holding], answer: TraceAnswer, words: Words) -> Iterator[parts.Part]:
    whole, found = answer.peak.allocated_bytes or 1, merged(holdings)
    rows = tuple(
        (
            one.name or words("trace.unnamed"), format_bytes(one.num_bytes), say.share(one.num_bytes / whole),
            f"{one.count:,}",
        )
        for one in found[:LIST]
    )
    if rows:
        head = (words("report.entry"), words("report.size"), words("report.share"), words("report.blocks"))
        yield parts.Table(head, rows, right=frozenset({1, 2, 3}))
    if len(found) > LIST:
        yield parts.Text(words("trace.more", count=f"{len(found) - LIST:,}"))


def _unknown(answer: TraceAnswer, words: Words) -> Iterator[parts.Part]:
    found, whole = answer.unknown_operators, answer.peak.allocated_bytes or 1
    if not found:
        return
    held = say.share(sum(one.peak_bytes for one in found) / whole)
    yield parts.Text(words("trace.unknown_share", count=len(found), share=held))
    rows = tuple(
        (one.name, f"{one.calls:,}", format_bytes(one.num_bytes), format_bytes(one.peak_bytes),
         say.share(one.peak_bytes / whole))
        for one in found
    )
    keys = ("operator", "calls", "outputs", "at_peak", "share")
    yield parts.Table(tuple(words(f"report.{key}") for key in keys), rows, right=frozenset({1, 2, 3, 4}))


def diagnosis_report(command: str, found: Diagnosis, words: Words, *, asked: str, today: date) -> parts.Report:
    """The report on a diagnosis; its verdict is the first failure's."""
    groups = grouped(found.findings)
    said = [failure_headline(group[0], words) for group in groups] or [words("failure.none", name=found.name)]
    if not groups and found.checks:
        said = [words("failure.checks")]
    title = words(f"report.title.{command}", name=words("report.text") if found.name == "-" else found.name)
    sections = _diagnosis_sections(found, groups, words, asked)
    return answers.report(words, title, said, "bad" if groups else NO_TONE, sections, today=today)


def _diagnosis_sections(
    found: Diagnosis, groups: list[list[Finding]], words: Words, asked: str
) -> Iterator[parts.Section]:
    yield answers.question(asked, words)
    for group in groups:  # the verdict is the headline of the first
        title = failure_headline(group[0], words) if len(groups) > 1 else words("why")
        yield parts.Section(title, tuple(_finding(group, found, words)))
    yield parts.Section(words("failure.checks"), answers.listed(sentence(check, words) for check in found.checks))
    notes = [words("failure.left_out", count=found.left_out)] if found.left_out else []
    notes += [words("failure.cut")] if found.cut else []
    yield parts.Section(words("report.notes"), answers.listed(notes))


def _finding(group: list[Finding], found: Diagnosis, words: Words) -> Iterator[parts.Part]:
    """The first of a group in full, then what differs in the others."""
    first = group[0]
    yield from map(parts.Text, whereabouts(first, found, words))
    if first.statement.text:
        yield parts.Code(first.statement.text)
    yield from answers.listed(sentence(remark, words) for remark in first.why)
    yield from _card(first, words)
    head = (words("report.number"), words("report.value"), words("report.means"))
    rows = tuple(number_cells(first, words))
    if rows:
        yield parts.Table(head, rows, right=frozenset({1}), title=words("failure.numbers"))
    if first.fixes:
        fixes = tuple((str(n), fix_sentence(fix, words), fix.setting) for n, fix in enumerate(first.fixes, 1))
        head = ("#", words("report.change"), words("report.setting"))
        yield parts.Table(head, fixes, right=frozenset({0}), title=words("failure.fixes"))
    if len(group) > 1:
        cells, *rest = compared_cells(group, words)
        title = words("failure.others", count=len(group))
        yield parts.Table(cells, tuple(rest), right=frozenset(range(len(cells))), title=title)


def _card(finding: Finding, words: Words) -> Iterator[parts.Part]:
    total, shown = holders(finding)
    if shown:
        slices = tuple(
            parts.Slice(name, words(f"held.{name}"), size, f"{format_bytes(size)} ({size / total:.0%})")
            for name, _, size in shown
        )
        yield parts.Bars(words("failure.card"), (parts.Bar(words("report.card"), slices, format_bytes(total)),))
