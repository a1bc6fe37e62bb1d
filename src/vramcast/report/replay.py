"""A replayed recording as text: peak and how exact first, then what held it, holes, failures, other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from vramcast.domain.snapshot import BlockView
from vramcast.recordings.examine import Difference, Examined, in_order, main_device
from vramcast.recordings.fragmentation import Fragmentation, Hole, Pinned
from vramcast.recordings.peak import Group, Held, Point
from vramcast.recordings.replay import Basis, Outcome
from vramcast.recordings.steps import Leaks
from vramcast.report import replay_words as say
from vramcast.report.columns import table
from vramcast.report.messages import Words
from vramcast.units import format_bytes, format_seconds

UNCOMPARED: Final[dict[Basis, str]] = {Basis.RECORDED: "replay.recorded", Basis.SUMMED: "replay.summed"}
"""What is said of a course that was not replayed."""

COLUMNS: Final = 72
ROWS: Final = 9


def render(found: Sequence[Examined], words: Words, *, top: int) -> str:
    """The report of all devices; `top`: rows of each list."""
    lines: list[str] = [main_line(found, words)] if len(found) > 1 else []
    for examined in in_order(found):
        lines += [*device_lines(examined, words, top=top, several=len(found) > 1), ""]
    remarks = found[0].snapshot.remarks if found else ()
    if remarks:
        lines += [words("replay.notes"), *(f"  - {say.plain(words.said(text))}" for text in remarks), ""]
    return "\n".join(lines).rstrip() + "\n"


def main_line(found: Sequence[Examined], words: Words) -> str:
    shown = found[main_device(found)]
    if shown.num_failures:
        return words("replay.main_failed", count=len(found), device=shown.device)
    replayed = shown.replayed
    most = replayed.peak_allocated_bytes if replayed.peak_reserved_bytes is None else replayed.peak_reserved_bytes
    return words("replay.main", count=len(found), device=shown.device, size=format_bytes(most))


def opening(found: Sequence[Examined], words: Words) -> Iterator[str]:
    """Which of several devices to look at, and of each what there is to say in a sentence or two."""
    if len(found) > 1:
        yield main_line(found, words)
    for one in in_order(found):
        yield device_prefix(one, words, several=len(found) > 1) + headline(one, words)
        yield from about(one, words)


def device_prefix(found: Examined, words: Words, *, several: bool) -> str:
    return words("replay.device", device=found.device) if several else ""


def device_lines(found: Examined, words: Words, *, top: int, several: bool) -> Iterator[str]:
    yield device_prefix(found, words, several=several) + headline(found, words)
    yield from (f"  {line}" for line in about(found, words))
    for title, lines in _sections(found, words, top):
        shown = list(lines)
        if shown:
            yield ""
            yield title
            yield from (f"  {line}" for line in shown)


def _sections(found: Examined, words: Words, top: int) -> Iterator[tuple[str, Iterable[str]]]:
    """Titles with their lines; a section without lines is not shown."""
    stacks = say.Stacks(found, words)
    yield words("replay.failures"), _failures(found, stacks, words)
    yield say.variants_title(found.variants, words), _settings(found, words)
    yield words("replay.course"), _course(found, words)
    yield words("replay.held"), _held(found.held, words, top)
    yield words("replay.largest"), _largest(found.held, stacks, words, top, timed=say.has_times(found.snapshot))
    run = found.fragmentation_of_run
    parts = found.fragmentation
    if parts is not None:
        yield words("replay.fragmentation", run=say.share(run)), _fragmentation(parts, words)
        yield words("replay.holes"), _holes(parts.holes[:top], stacks, words)
        yield words("replay.pinned"), _pinned(parts.pinned[:top], stacks, words)
    elif run is not None:
        yield words("replay.fragmentation", run=say.share(run)), (words("replay.no_holes"),)
    if found.leaks is not None:
        yield words("replay.leaks"), _leaks(found.leaks, stacks, words, top)
    if found.difference is not None:
        yield words("replay.difference", name=say.plain(found.difference.before)), _difference(found.difference, words)


def headline(found: Examined, words: Words) -> str:
    replayed = found.replayed
    allocated, reserved = format_bytes(replayed.peak_allocated_bytes), replayed.peak_reserved_bytes
    if replayed.is_least:
        if reserved is None:
            return words("replay.peak_least", allocated=allocated)
        return words("replay.peak_simulated", allocated=allocated, reserved=format_bytes(reserved))
    if reserved is None:
        return words("replay.peak_allocated", allocated=allocated)
    return words("replay.peak", reserved=format_bytes(reserved), allocated=allocated)


def about(found: Examined, words: Words) -> Iterator[str]:
    """When the peak was, what was replayed and how exactly."""
    replayed, snapshot = found.replayed, found.snapshot
    if replayed.outcome is Outcome.FAILED:
        yield words("replay.failed")
    if replayed.peak_event < 0:
        yield words("replay.when_start")
    elif found.peak_time_us is None or not say.has_times(snapshot):
        yield words("replay.when", event=f"{replayed.peak_event:,}")
    else:
        time = format_seconds(found.peak_time_us / 1e6)
        yield words("replay.when_time", event=f"{replayed.peak_event:,}", time=time)
    name = say.plain(snapshot.name)
    said = words("replay.file", name=name, events=f"{replayed.events:,}", allocations=f"{replayed.allocations:,}")
    if snapshot.alloc_conf:
        said += ", " + words("replay.conf", conf=say.plain(snapshot.alloc_conf))
    yield said
    yield exactness(found, words)


def exactness(found: Examined, words: Words) -> str:
    """How much of the recording the replay repeats."""
    replayed = found.replayed
    if replayed.contradiction:
        return words("replay.contradiction", why=replayed.contradiction)
    if replayed.addresses_matched is None or replayed.segments_matched is None:
        key = UNCOMPARED.get(replayed.basis, "replay.not_exact")
        return words(key if found.source.has_addresses or key != "replay.recorded" else "replay.recorded_alone")
    parts = [
        words(
            "replay.exact" if replayed.segment_events else "replay.exact_addresses",
            matched=f"{replayed.addresses_matched:,}", allocations=f"{replayed.allocations:,}",
            segments=f"{replayed.segments_matched:,}", segment_events=f"{replayed.segment_events:,}",
        )
    ]
    if replayed.segments_surplus:
        parts.append(words("replay.surplus", count=f"{replayed.segments_surplus:,}"))
    parts.append(words(f"replay.final.{replayed.final_blocks_matched}"))
    return "; ".join(parts)


def _failures(found: Examined, stacks: say.Stacks, words: Words) -> Iterator[str]:
    """Failures of the recording, and whether free memory in one piece would have served them."""
    for failure in found.failures:
        yield say.failed(failure, words)
        yield f"  {say.could_have(failure, words)}"
        yield f"  {stacks(failure.stack)}"
    more = found.num_failures - len(found.failures)
    if more:
        yield words("replay.more_failures", count=f"{more:,}")


def _settings(found: Examined, words: Words) -> Iterator[str]:
    tried = say.settings(found, words)
    if tried is not None:
        yield from filter(None, (tried.advice, *table(tried.cells, right=say.FIGURES).splitlines(), tried.note))


def _leaks(leaks: Leaks, stacks: say.Stacks, words: Words, top: int) -> Iterator[str]:
    yield say.leaks_said(leaks, words)
    for leak in leaks.leaks[:top]:
        yield f"  {say.leak_line(leak, words)}"
        yield f"    {stacks(leak.stack)}"


def _difference(found: Difference, words: Words) -> Iterator[str]:
    process, segments = say.difference_sentences(found, words)
    yield from (process, *segments, *table(say.difference_rows(found, words), right=frozenset({0, 1, 2})).splitlines())


def _course(found: Examined, words: Words) -> Iterator[str]:
    points = found.timeline.points
    if not points:
        return
    allocated, line = [point.allocated_bytes for point in points], [line_of(point) for point in points]
    yield from say.scaled_chart(allocated, line, columns=COLUMNS, rows=ROWS)
    key = "replay.legend_allocated" if found.replayed.reserved is None else "replay.legend"
    yield words(key, events=f"{found.timeline.events:,}")


def line_of(point: Point) -> int:
    """What the line is drawn at: reserved memory, where it is not known that of tensors."""
    return point.allocated_bytes if point.reserved_bytes is None else point.reserved_bytes


def _held(held: Held, words: Words, top: int) -> Iterator[str]:
    every = len(held.by_category)
    yield from _groups(held.by_category, held, words, every, lambda name: say.category_name(name, words))
    yield from say.held_sentences(held, words)
    if any(group.name for group in held.by_module):
        yield words("replay.modules")
        rows = _groups(held.by_module, held, words, top, lambda name: say.plain(name) or words("replay.no_module"))
        yield from (f"  {line}" for line in rows)
    if any(group.name for group in held.by_line):
        yield words("replay.lines")
        rows = _groups(held.by_line, held, words, top, lambda name: say.plain(name) or words("replay.unnamed"))
        yield from (f"  {line}" for line in rows)


def _groups(
    groups: Sequence[Group], held: Held, words: Words, top: int, name: Callable[[str], str]
) -> list[str]:
    rows = say.group_rows(groups[:top], held, words, name)
    lines = table(rows, right=frozenset({1, 2, 3})).splitlines() if rows else []
    more = len(groups) - len(rows)
    return [*lines, words("replay.rest", count=f"{more:,}")] if more > 0 else lines


def _largest(held: Held, stacks: say.Stacks, words: Words, top: int, *, timed: bool) -> Iterator[str]:
    for block in held.blocks[:top]:
        since = say.age(block, words, has_times=timed)
        yield f"{format_bytes(block.size_bytes):>10}  {say.category_name(block.category, words)}, {since}"
        yield f"{'':>12}{stacks(block.stack)}"


def _fragmentation(found: Fragmentation, words: Words) -> Iterator[str]:
    if not found.reserved_bytes:
        return
    yield say.fragmentation_said(found, words)
    whole = found.reserved_bytes
    rows = [
        (name, format_bytes(size), say.share(size / whole)) for name, size in say.parts_of(found, words) if size
    ]
    for line in table(rows, right=frozenset({1, 2})).splitlines():
        yield f"  {line}"
        if line.startswith(words("replay.part.split")):
            yield from _classes(found, words)


def _classes(found: Fragmentation, words: Words) -> Iterator[str]:
    classes = say.hole_classes(found, words)
    rows = [(name, format_bytes(size), say.blocks(count, words)) for name, size, count in classes]
    if rows:
        yield from (f"    {line}" for line in table(rows, right=frozenset({1, 2})).splitlines())


def _holes(holes: Sequence[Hole], stacks: say.Stacks, words: Words) -> Iterator[str]:
    for hole in holes:
        yield say.hole_line(hole, words)
        yield from (f"  {side}: {_neighbour(block, stacks, words)}" for side, block in say.sides(hole, words))


def _pinned(pinned: Sequence[Pinned], stacks: say.Stacks, words: Words) -> Iterator[str]:
    for segment in pinned:
        yield say.pinned_line(segment, words)
        yield from (f"  {_neighbour(block, stacks, words)}" for block in segment.pins)


def _neighbour(block: BlockView | None, stacks: say.Stacks, words: Words) -> str:
    if block is None:
        return words("replay.edge")
    return f"{format_bytes(block.size_bytes)}  {stacks(block.stack)}"
