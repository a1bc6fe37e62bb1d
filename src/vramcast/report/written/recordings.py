"""Reports on runs: a replayed recording, the static sister of the page with a timeline; a traced run; a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from typing import Final, Protocol

from vramcast.domain.failure import Diagnosis, Finding
from vramcast.domain.snapshot import BlockView
from vramcast.domain.traced import Holding, TraceAnswer
from vramcast.recordings.examine import Difference, Examined, in_order
from vramcast.recordings.peak import Group, Held
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
from vramcast.report.replay_words import (
    FIGURES,
    Stacks,
    age,
    blocks,
    category_name,
    could_have,
    difference_rows,
    difference_sentences,
    failed,
    group_rows,
    has_times,
    held_sentences,
    hole_classes,
    hole_line,
    leak_line,
    leaks_said,
    parts_of,
    pinned_line,
    settings,
    share,
    sides,
    variants_title,
)
from vramcast.report.trace import VIEWS, merged
from vramcast.report.trace import opening as trace_opening
from vramcast.report.verdicts import NO_TONE, tone_of
from vramcast.report.written.answers import (
    change_parts,
    ledger,
    listed,
    made,
    numbered,
    options,
    phases,
    question,
    report,
    role_bars,
    tried_table,
)
from vramcast.report.written.parts import (
    Bar,
    Bars,
    Code,
    Items,
    Part,
    Report,
    Section,
    Slice,
    Sources,
    Table,
    Text,
)
from vramcast.report.written.pictures import Course, Layer, course_picture
from vramcast.units import format_bytes

LIST: Final = 20
"""Rows of a list of a traced run."""


class Replayed(Protocol):
    """What `vramcast.replay` returns."""

    @property
    def devices(self) -> tuple[Examined, ...]:
        """One for each device."""
        ...

    @property
    def top(self) -> int:
        """Rows of each list."""
        ...


def replay_report(command: str, found: Replayed, words: Words, *, asked: str, today: date) -> Report:
    first = found.devices[0]
    sections = [question(asked, words)]
    for one in in_order(found.devices):
        prefix = device_prefix(one, words, several=len(found.devices) > 1)
        sections += (part._replace(title=prefix + part.title) for part in device_sections(one, words, found.top))
    sections.append(Section(words("replay.notes"), listed(map(words.said, first.snapshot.remarks))))
    title = words(f"report.title.{command}", name=first.snapshot.name)
    return report(words, title, opening(found.devices, words), NO_TONE, sections, footer=(made(words, today),))


def device_sections(found: Examined, words: Words, top: int) -> Iterator[Section]:
    """One device; a section without parts is not shown."""
    stacks = Stacks(found, words)
    yield Section(words("replay.failures"), tuple(_failures(found, stacks, words)))
    yield Section(variants_title(found.variants, words), tuple(_variants(found, words)))
    yield Section(words("replay.course"), tuple(course_of(found, words)))
    yield Section(words("replay.held"), tuple(held_parts(found.held, words, top)))
    yield Section(words("replay.largest"), tuple(_largest(found, stacks, words, top)))
    title = words("replay.fragmentation", run=share(found.fragmentation_of_run))
    yield Section(title, tuple(_fragmentation(found, stacks, words, top)))
    if found.leaks is not None:
        said = [f"{leak_line(leak, words)}: {stacks(leak.stack)}" for leak in found.leaks.leaks[:top]]
        yield Section(words("replay.leaks"), (Text(leaks_said(found.leaks, words)), *listed(said)))
    if found.difference is not None:
        title = words("replay.difference", name=found.difference.before)
        yield Section(title, tuple(_difference(found.difference, words)))


def _failures(found: Examined, stacks: Stacks, words: Words) -> Iterator[Part]:
    yield from listed(
        f"{failed(one, words)}; {could_have(one, words)}; {stacks(one.stack)}" for one in found.failures
    )
    more = found.num_failures - len(found.failures)
    if more:
        yield Text(words("replay.more_failures", count=f"{more:,}"))


def _variants(found: Examined, words: Words) -> Iterator[Part]:
    tried = settings(found, words)
    if tried is not None:
        head, *rows = tried.cells
        yield from map(Text, filter(None, [tried.advice]))
        yield Table(head, tuple(rows), right=FIGURES)
        yield from map(Text, filter(None, [tried.note]))


def course_of(found: Examined, words: Words) -> Iterator[Part]:
    """The timeline by category; what tensors do not take of their blocks is a layer of its own."""
    points, names = found.timeline.points, found.timeline.categories
    if not points:
        return
    layers = [
        Layer(name, category_name(name, words), [point.by_category[number] for point in points])
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


def held_parts(held: Held, words: Words, top: int) -> Iterator[Part]:
    """What was live at the peak: by category as a bar and a table, by module, by line."""
    slices = tuple(
        Slice(group.name, category_name(group.name, words), group.size_bytes, format_bytes(group.size_bytes))
        for group in held.by_category
    )
    if not slices:
        return
    yield Bars(words("report.live"), (Bar(words("allocated"), slices, format_bytes(held.size_bytes)),))
    yield _groups(held.by_category, held, words, words("report.category"), lambda name: category_name(name, words))
    yield from listed(held_sentences(held, words))
    for groups, head, none in (
        (held.by_module, words("replay.modules"), words("replay.no_module")),
        (held.by_line, words("replay.lines"), words("replay.unnamed")),
    ):
        if any(group.name for group in groups):
            yield _groups(groups[:top], held, words, head, partial(_named, none=none))


def _named(name: str, *, none: str) -> str:
    return name or none


def _groups(groups: Sequence[Group], held: Held, words: Words, head: str, name: Callable[[str], str]) -> Table:
    rows = tuple(group_rows(groups, held, words, name))
    return Table((head, *(words(f"report.{key}") for key in ("size", "share", "blocks"))), rows, right=FIGURES)


def _largest(found: Examined, stacks: Stacks, words: Words, top: int) -> Iterator[Part]:
    rows = tuple(
        (format_bytes(block.size_bytes), category_name(block.category, words),
         age(block, words, has_times=has_times(found.snapshot)), stacks(block.stack))
        for block in found.held.blocks[:top]
    )
    if rows:
        head = (words("report.size"), *(words(f"replay.page.{key}") for key in ("category", "age", "stack")))
        yield Table(head, rows, right=frozenset({0}))


def _fragmentation(found: Examined, stacks: Stacks, words: Words, top: int) -> Iterator[Part]:
    """Where reserved memory is, the holes by size, the largest of them, and what pins segments."""
    parts = found.fragmentation
    if parts is None:
        if found.fragmentation_of_run is not None:
            yield Text(words("replay.no_holes"))
        return
    if not parts.reserved_bytes:
        return

    def near(block: BlockView | None) -> str:
        return words("replay.edge") if block is None else f"{format_bytes(block.size_bytes)}, {stacks(block.stack)}"

    reserved = format_bytes(parts.reserved_bytes)
    yield Text(words("replay.fragmentation_then", share=share(parts.at_the_moment), reserved=reserved))
    rows = [
        (name, format_bytes(size), share(size / parts.reserved_bytes)) for name, size in parts_of(parts, words) if size
    ]
    rows += [
        (f"{name} ({blocks(count, words)})", format_bytes(size), "") for name, size, count in hole_classes(parts, words)
    ]
    yield Table((words("report.entry"), words("report.size"), words("report.share")), tuple(rows), right=FIGURES)
    holes = tuple(
        "; ".join((hole_line(hole, words), *(f"{side}: {near(block)}" for side, block in sides(hole, words))))
        for hole in parts.holes[:top]
    )
    pinned = tuple("; ".join((pinned_line(one, words), *map(near, one.pins))) for one in parts.pinned[:top])
    for key, texts in (("replay.holes", holes), ("replay.pinned", pinned)):
        if texts:
            yield from (Text(words(key)), Items(texts))


def _difference(difference: Difference, words: Words) -> Iterator[Part]:
    process, segments = difference_sentences(difference, words)
    yield Text(process)
    yield from listed(segments)
    (*head, _), *rows = difference_rows(difference, words)
    yield Table((*head, words("report.entry")), tuple(rows), right=frozenset({0, 1, 2}))


def trace_report(command: str, answer: TraceAnswer, words: Words, *, asked: str, today: date) -> Report:
    answer = words.spoken(answer)
    title, said = words(f"report.title.{command}", name=answer.question["target"]), trace_opening(answer, words)
    sections = _trace_sections(answer, words, asked)
    return report(words, title, said, tone_of(answer), sections, footer=(made(words, today),))


def _trace_sections(answer: TraceAnswer, words: Words, asked: str) -> Iterator[Section]:
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


def diagnosis_report(command: str, found: Diagnosis, words: Words, *, asked: str, today: date) -> Report:
    """The report on a diagnosis; its verdict is the first failure's."""
    groups = grouped(found.findings)
    said = [failure_headline(group[0], words) for group in groups] or [words("failure.none", name=found.name)]
    if not groups and found.checks:
        said = [words("failure.checks")]
    title = words(f"report.title.{command}", name=words("report.text") if found.name == "-" else found.name)
    sections = _diagnosis_sections(found, groups, words, asked)
    return report(words, title, said, "bad" if groups else NO_TONE, sections, footer=(made(words, today),))


def _diagnosis_sections(found: Diagnosis, groups: list[list[Finding]], words: Words, asked: str) -> Iterator[Section]:
    yield question(asked, words)
    for group in groups:  # the verdict is the headline of the first
        title = failure_headline(group[0], words) if len(groups) > 1 else words("why")
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
