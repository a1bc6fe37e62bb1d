"""What the text, the report and the page of a recording share: its sentences, figures and rows, and curves of dots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

from vramcast.domain.snapshot import PREDICTED, BlockView, Snapshot
from vramcast.recordings.examine import Difference, Examined, Failure, Grown, Moment
from vramcast.recordings.fragmentation import Fragmentation, Hole, Pinned
from vramcast.recordings.lives import Category
from vramcast.recordings.peak import Group, Held, Holder
from vramcast.recordings.replay import Outcome
from vramcast.recordings.stacks import top_frames
from vramcast.recordings.start import RecordedDevice
from vramcast.recordings.steps import Leak, Leaks
from vramcast.recordings.variants import Advice, Variant, ran_out
from vramcast.report.messages import Words
from vramcast.units import format_bytes, format_seconds

FRAMES: Final = 4
"""Shown of a stack."""

SHOWN_CHANGES: Final = 8
"""Stacks named that grew or shrank [count]."""

NOTHING: Final = "-"

SENTENCES: Final[dict[str, str]] = {Category.UNKNOWN: "replay.unknown", Category.HELD: "replay.held_before"}
"""Categories that need a sentence."""

BLANK: Final = 0x2800
DOTS: Final = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a character's two columns, the lowest dot first [Unicode chapter 21.1, Braille Patterns]."""


class Stacks:
    """Stacks of a recording by index, as lines."""

    def __init__(self, found: Examined, words: Words) -> None:
        self._stacks = found.snapshot.stacks
        self._words = words

    def __call__(self, stack: int, most: int = FRAMES) -> str:
        frames = top_frames(self._stacks[stack], most) if 0 <= stack < len(self._stacks) else ()
        return " < ".join(map(plain, frames)) or self._words("replay.no_stack")


def plain(text: str) -> str:
    """Text of a file without what would move a terminal's cursor.

    >>> plain("a" + chr(27) + "[2J")
    'a?[2J'
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def blocks(count: int, words: Words) -> str:
    """How many blocks; none: of what holds them nothing is listed."""
    if not count:
        return words("replay.unlisted")
    return words("replay.block") if count == 1 else words("replay.blocks", count=f"{count:,}")


def known_size(num_bytes: int | None, words: Words) -> str:
    return words("replay.not_known") if num_bytes is None else format_bytes(num_bytes)


def signed(num_bytes: int) -> str:
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes)}"


def category_name(category: str, words: Words) -> str:
    return words(f"replay.category.{category}")


def has_times(snapshot: Snapshot) -> bool:
    """Whether the clock of a recording is one of time: that of a predicted one counts events."""
    return snapshot.format != PREDICTED


def age(block: Holder, words: Words, *, has_times: bool) -> str:
    if block.since is None:
        return words("replay.before")
    if block.age_us is None or not has_times:
        return words("replay.since", event=f"{block.since:,}")
    return words("replay.age", age=format_seconds(block.age_us / 1e6))


def held_sentences(held: Held, words: Words) -> Iterator[str]:
    """What is said of categories that say little."""
    for group in held.by_category:
        if group.name not in SENTENCES:
            continue
        unlisted = held.unlisted_bytes if group.name == held.unlisted else 0
        if group.size_bytes > unlisted:
            size = format_bytes(group.size_bytes - unlisted)
            yield words(SENTENCES[group.name], size=size, count=blocks(group.num_blocks, words))
        if unlisted and group.name == Category.HELD:
            yield words("replay.held_unlisted", size=format_bytes(unlisted))


def group_rows(
    groups: Sequence[Group], held: Held, words: Words, name: Callable[[str], str]
) -> list[tuple[str, ...]]:
    """Name, size, share of the peak and blocks of each group."""
    whole = held.size_bytes or 1
    return [
        (name(group.name), format_bytes(group.size_bytes), share(group.size_bytes / whole),
         blocks(group.num_blocks, words))
        for group in groups
    ]


def failed(failure: Failure, words: Words) -> str:
    said = {
        "event": f"{failure.event:,}", "request": format_bytes(failure.request_bytes),
        "allocated": format_bytes(failure.allocated_bytes),
    }
    if failure.reserved_bytes is None:
        return words("replay.failure_allocated", **said)
    return words("replay.failure", **said, reserved=format_bytes(failure.reserved_bytes))


def could_have(failure: Failure, words: Words) -> str:
    """Whether free memory in one piece would have served a request that failed."""
    room = failure.contiguity
    known = room.if_contiguous if room.largest_bytes is not None else None
    return words(
        f"replay.contiguous.{known}", free=known_size(room.free_bytes, words),
        largest=known_size(room.largest_bytes, words), driver=known_size(room.driver_free_bytes, words),
    )


def variants_title(variants: Sequence[Variant], words: Words) -> str:
    capacity = variants[0].capacity_bytes if variants else None
    if capacity is None:
        return words("replay.variants")
    return words("replay.variants_capacity", capacity=format_bytes(capacity))


class Settings(NamedTuple):
    """What a recording comes to under other settings of the allocator."""

    advice: str
    cells: list[tuple[str, ...]]  # the head first: name, peak reserved, change, retries, out of memory
    note: str  # why the recording's own may differ from what it did


FIGURES: Final = frozenset({1, 2, 3})
"""Columns of a table of settings or of what holds the peak."""


def settings(found: Examined, words: Words) -> Settings | None:
    if not found.variants:
        return None
    keys = ("setting", "peak_reserved", "change", "retries", "oom")
    cells = [tuple(words(f"replay.{key}") for key in keys), *_variant_rows(found, words)]
    advice = "" if found.advice is None else _advised(found.advice, found.variants[0], words)
    return Settings(advice, cells, _laid_anew(found, words))


def _variant_rows(found: Examined, words: Words) -> Iterator[tuple[str, ...]]:
    own = found.variants[0]
    is_known = own.conf or found.replayed.outcome is not Outcome.NOT_COMPARED  # a replay that agrees shows them
    for variant in found.variants:
        conf = plain(variant.conf) or words("replay.defaults")
        name = words("replay.as_recorded" if is_known else "replay.as_assumed", conf=conf) if variant is own else conf
        more = variant.peak_reserved_bytes - own.peak_reserved_bytes
        change = "" if variant is own or ran_out(variant) or ran_out(own) else signed(more)
        stopped = _stopped(variant, words)
        reserved = format_bytes(variant.peak_reserved_bytes)
        yield name, reserved, change, f"{variant.num_alloc_retries:,}", stopped


def _laid_anew(found: Examined, words: Words) -> str:
    """Why the settings of the recording may reserve another amount than it did; "" where they do not."""
    reserved = found.replayed.peak_reserved_bytes
    if ran_out(found.variants[0]):
        return ""
    if found.replayed.is_least:
        return words("replay.least_laid")
    if reserved is None:
        return ""
    unlisted = RecordedDevice(found.snapshot, found.source).unlisted_bytes
    if unlisted:
        return words("replay.unlisted_laid", size=format_bytes(unlisted), reserved=format_bytes(reserved))
    if found.variants[0].peak_reserved_bytes == reserved:
        return ""
    return words("replay.laid_anew", reserved=format_bytes(reserved))


def _stopped(variant: Variant, words: Words) -> str:
    if variant.out_of_memory is not None:
        size = format_bytes(variant.failed_bytes or 0)
        if variant.out_of_memory < 0:
            return words("replay.oom_start", size=size)
        return words("replay.oom_at", event=f"{variant.out_of_memory:,}", size=size)
    return words("replay.oom_again", count=variant.num_ooms) if variant.num_ooms else words("replay.no_oom")


def _advised(said: Advice, own: Variant, words: Words) -> str:
    if said.best is None:
        return words(f"replay.advice.{said.kind}", tried=said.tried)
    saved = said.saved_bytes
    return words(
        f"replay.advice.{said.kind}", conf=plain(said.best.conf) or words("replay.defaults"),
        saved=format_bytes(saved), reserved=format_bytes(said.best.peak_reserved_bytes),
        share=share(-saved / own.peak_reserved_bytes if own.peak_reserved_bytes else None),
    )


def fragmentation_said(found: Fragmentation, words: Words) -> str:
    reserved = format_bytes(found.reserved_bytes)
    return words("replay.fragmentation_then", share=share(found.at_the_moment), reserved=reserved)


def parts_of(found: Fragmentation, words: Words) -> list[tuple[str, int]]:
    """Where reserved memory is; the parts add up to it."""
    return [
        (words("replay.part.requested"), found.requested_bytes),
        (words("replay.part.rounding"), found.rounding_bytes),
        (words("replay.part.awaiting"), found.awaiting_bytes),
        (words("replay.part.split"), found.split_free_bytes),
        (words("replay.part.cached"), found.cached_bytes),
    ]


def hole_classes(found: Fragmentation, words: Words) -> Iterator[tuple[str, int, int]]:
    """The holes by size: name, bytes and count of each class that has any."""
    lows = (0, *(entry.up_to_bytes or 0 for entry in found.classes))
    for low, entry in zip(lows, found.classes, strict=False):
        if entry.num_blocks:
            low_size, high = format_bytes(low), entry.up_to_bytes
            name = words("replay.class_last", low=low_size) if high is None else words(
                "replay.class", low=low_size, high=format_bytes(high)
            )
            yield name, entry.size_bytes, entry.num_blocks


def hole_line(hole: Hole, words: Words) -> str:
    size, segment = format_bytes(hole.size_bytes), format_bytes(hole.segment_bytes)
    return words("replay.hole", size=size, address=f"{hole.address:#x}", segment=segment)


def sides(hole: Hole, words: Words) -> tuple[tuple[str, BlockView | None], ...]:
    """What stands before and behind a hole; None: the end of its segment."""
    return (words("replay.neighbour_before"), hole.before), (words("replay.neighbour_after"), hole.after)


def pinned_line(segment: Pinned, words: Words) -> str:
    free, size, live = map(format_bytes, (segment.free_bytes, segment.size_bytes, segment.live_bytes))
    return words("replay.pin", free=free, size=size, address=f"{segment.address:#x}", live=live)


def leak_line(leak: Leak, words: Words) -> str:
    return words(
        "replay.leak", size=format_bytes(leak.bytes_per_step), blocks=f"{leak.blocks_per_step:.3g}",
        live=format_bytes(leak.live_bytes), category=category_name(leak.category, words),
    )


def leaks_said(leaks: Leaks, words: Words) -> str:
    if not leaks.has_addresses:
        return words("replay.leaks_no_addresses")
    if not leaks.can_be_told:
        counts = {0: words("replay.no_steps"), 1: words("replay.step")}
        steps = counts.get(leaks.steps) or words("replay.steps", count=leaks.steps)
        return words("replay.leaks_untold", steps=steps)
    by = words(f"replay.by.{leaks.found_by}")
    if not leaks.leaks:
        return words("replay.leaks_none", steps=leaks.steps, by=by)
    places = len(leaks.leaks)
    count = words("replay.place") if places == 1 else words("replay.places", count=f"{places:,}")
    return words("replay.leaks_some", size=format_bytes(leaks.bytes_per_step), steps=leaks.steps, by=by, count=count)


def difference_sentences(found: Difference, words: Words) -> tuple[str, list[str]]:
    """Whether both recordings are of one process, and which segments are new or gone at the end."""
    changed = [
        words(f"replay.segments.{one.is_new}", count=f"{one.num_segments:,}", size=format_bytes(one.size_bytes))
        for one in found.segments
    ]
    return words(f"replay.same_process.{found.same_process}"), changed


def difference_rows(found: Difference, words: Words) -> list[tuple[str, ...]]:
    """Change, before, now and what: the peaks, then what grew at the peak and at the end."""
    peak, end = found.at_peak, found.at_end
    before, after = found.peak_reserved_before_bytes, found.peak_reserved_after_bytes
    reserved = () if before is None or after is None else (_changed(words("replay.what.reserved"), before, after),)
    return [
        (words("replay.change"), words("replay.was"), words("replay.is"), ""),
        *reserved,
        _changed(words("replay.what.peak"), peak.before_bytes, peak.after_bytes),
        *_moment(peak, words),
        _changed(words("replay.what.end"), end.before_bytes, end.after_bytes),
        *_moment(end, words),
    ]


def _moment(moment: Moment, words: Words) -> Iterator[tuple[str, ...]]:
    for row in moment.by_category:
        yield _changed("  " + category_name(row.name[0], words), row.before_bytes, row.after_bytes)
    for row in islice(moment.by_stack, SHOWN_CHANGES):
        yield _changed("  " + _stack_name(row, words), row.before_bytes, row.after_bytes)


def _stack_name(row: Grown, words: Words) -> str:
    return " < ".join(plain(name) for name in row.name[:FRAMES]) or words("replay.no_stack")


def _changed(what: str, before: int, after: int) -> tuple[str, ...]:
    return signed(after - before), format_bytes(before), format_bytes(after), what


def chart(filled: Sequence[int], line: Sequence[int], *, columns: int, rows: int) -> list[str]:
    """Lines of characters, the highest first; the same scale for both, from 0 to the largest value.

    Args:
        filled: values drawn as an area
        line: values drawn as a line, as many
        columns: characters from left to right
        rows: characters from top to bottom

    >>> chart([4, 8], [8, 8], columns=1, rows=1)
    ['⣽']
    """
    most = max(max(filled, default=0), max(line, default=0), 1)
    area = [_height(value, most, rows) for value in _spread(filled, columns * 2)]
    top = [_height(value, most, rows) for value in _spread(line, columns * 2)]
    return [
        "".join(_character(area, top, column, row) for column in range(columns)) for row in range(rows - 1, -1, -1)
    ]


def scaled_chart(
    filled: Sequence[int], line: Sequence[int], *, columns: int, rows: int, most: int | None = None
) -> Iterator[str]:
    """The same with what the highest and the lowest line stand for before them [bytes]."""
    top = format_bytes(max(max(filled, default=0), max(line, default=0)) if most is None else most)
    for row, drawn in enumerate(chart(filled, line, columns=columns, rows=rows)):
        yield f"{top if row == 0 else '0' if row == rows - 1 else '':>{len(top)}} {drawn}"


def _spread(values: Sequence[int], places: int) -> list[int]:
    """The largest value of each place; a value that covers several places is in all of them."""
    count = len(values)
    if not count:
        return [0] * places
    edges = [count * place // places for place in range(places + 1)]
    return [max(values[low : max(high, low + 1)]) for low, high in pairwise(edges)]


def _height(value: int, most: int, rows: int) -> int:
    """Dots from the ground; what is more than nothing has at least one."""
    return min(4 * rows, max(round(4 * rows * value / most), 1 if value else 0))


def _character(area: list[int], top: list[int], column: int, row: int) -> str:
    bits = 0
    for side in (0, 1):
        place = 2 * column + side
        for dot in range(4):
            height = 4 * row + dot + 1
            if height <= area[place] or height == top[place]:
                bits |= DOTS[side][dot]
    return chr(BLANK + bits)
