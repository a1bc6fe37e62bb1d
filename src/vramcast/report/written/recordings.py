"""A replayed recording of GPU memory as a report: the static sister of the page with a timeline to look into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from typing import Final, Protocol

from vramcast.domain.snapshot import BlockView
from vramcast.recordings.examine import Examined, in_order
from vramcast.recordings.peak import Group, Held
from vramcast.report.messages import Words
from vramcast.report.replay import device_prefix, line_of, opening
from vramcast.report.replay_parts import (
    advised,
    could_have,
    difference_rows,
    failed,
    laid_anew,
    leak_line,
    leaks_said,
    variant_rows,
    variants_title,
)
from vramcast.report.replay_words import (
    Stacks,
    age,
    blocks,
    category_name,
    class_name,
    has_times,
    held_sentences,
    parts_of,
    share,
)
from vramcast.report.verdicts import NO_TONE
from vramcast.report.written.answers import listed, made, question
from vramcast.report.written.parts import Bar, Bars, Items, Part, Report, Section, Slice, Table, Text
from vramcast.report.written.timeline import Course, Layer, course_picture
from vramcast.units import format_bytes

FIGURES: Final = frozenset({1, 2, 3})


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
    """The report on a recording, device by device."""
    first = found.devices[0]
    sections = [question(asked, words)]
    for one in in_order(found.devices):
        prefix = device_prefix(one, words, several=len(found.devices) > 1)
        sections += (part._replace(title=prefix + part.title) for part in device_sections(one, words, found.top))
    sections.append(Section(words("replay.notes"), listed(map(words.said, first.snapshot.remarks))))
    return Report(
        language=words.language,
        title=words(f"report.title.{command}", name=first.snapshot.name),
        verdict=tuple(opening(found.devices, words)),
        tone=NO_TONE,
        sections=tuple(section for section in sections if section.parts),
        footer=(made(words, today),),
    )


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
        yield Section(words("replay.difference", name=found.difference.before), tuple(_difference(found, words)))


def _failures(found: Examined, stacks: Stacks, words: Words) -> Iterator[Part]:
    yield from listed(
        f"{failed(one, words)}; {could_have(one, words)}; {stacks(one.stack)}" for one in found.failures
    )
    more = found.num_failures - len(found.failures)
    if more:
        yield Text(words("replay.more_failures", count=f"{more:,}"))


def _variants(found: Examined, words: Words) -> Iterator[Part]:
    if not found.variants:
        return
    said = found.advice
    if said is not None:
        yield Text(advised(said, found.variants[0], words))
    keys = ("setting", "peak_reserved", "change", "retries", "oom")
    head = tuple(words(f"replay.{key}") for key in keys)
    yield Table(head, tuple(variant_rows(found, words)), right=FIGURES)
    note = laid_anew(found, words)
    if note:
        yield Text(note)


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
    rows = tuple(
        (name(group.name), format_bytes(group.size_bytes), share(group.size_bytes / (held.size_bytes or 1)),
         blocks(group.num_blocks, words))
        for group in groups
    )
    return Table((head, words("report.size"), words("report.share"), words("report.blocks")), rows, right=FIGURES)


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
    reserved = format_bytes(parts.reserved_bytes)
    yield Text(words("replay.fragmentation_then", share=share(parts.at_the_moment), reserved=reserved))
    rows = [
        (name, format_bytes(size), share(size / parts.reserved_bytes)) for name, size in parts_of(parts, words) if size
    ]
    lows = (0, *(entry.up_to_bytes or 0 for entry in parts.classes))
    rows += [
        (f"{class_name(low, entry.up_to_bytes, words)} ({blocks(entry.num_blocks, words)})",
         format_bytes(entry.size_bytes), "")
        for low, entry in zip(lows, parts.classes, strict=False) if entry.num_blocks
    ]
    yield Table((words("report.entry"), words("report.size"), words("report.share")), tuple(rows), right=FIGURES)
    holes = tuple(
        words("replay.hole", size=format_bytes(hole.size_bytes), address=f"{hole.address:#x}",
              segment=format_bytes(hole.segment_bytes))
        + f"; {words('replay.neighbour_before')}: {_neighbour(hole.before, stacks, words)}"
        + f"; {words('replay.neighbour_after')}: {_neighbour(hole.after, stacks, words)}"
        for hole in parts.holes[:top]
    )
    pinned = tuple(
        words("replay.pin", free=format_bytes(one.free_bytes), size=format_bytes(one.size_bytes),
              address=f"{one.address:#x}", live=format_bytes(one.live_bytes))
        + "".join(f"; {_neighbour(block, stacks, words)}" for block in one.pins)
        for one in parts.pinned[:top]
    )
    for key, texts in (("replay.holes", holes), ("replay.pinned", pinned)):
        if texts:
            yield from (Text(words(key)), Items(texts))


def _neighbour(block: BlockView | None, stacks: Stacks, words: Words) -> str:
    return words("replay.edge") if block is None else f"{format_bytes(block.size_bytes)}, {stacks(block.stack)}"


def _difference(found: Examined, words: Words) -> Iterator[Part]:
    difference = found.difference
    if difference is None:
        return
    yield Text(words(f"replay.same_process.{difference.same_process}"))
    yield from listed(
        words(f"replay.segments.{one.is_new}", count=f"{one.num_segments:,}", size=format_bytes(one.size_bytes))
        for one in difference.segments
    )
    (*head, _), *rows = difference_rows(difference, words)
    yield Table((*head, words("report.entry")), tuple(rows), right=frozenset({0, 1, 2}))
