"""A replayed recording as JSON: `"schema": 1`, integers in bytes, what is unknown is absent.

`web/page/parts/blocks.js` draws it, in the page and in the files that `--html` writes.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from enum import Enum
from sys import byteorder
from typing import Any, Final

from vramcast.domain.snapshot import BlockView, Frame, Snapshot
from vramcast.recordings.examine import Difference, Examined, Failure, Grown, Moment, main_device
from vramcast.recordings.fragmentation import Bar, Contiguity, Fragmentation, Hole, HoleClass, Pinned
from vramcast.recordings.lives import CATEGORIES
from vramcast.recordings.peak import Group, Held, Holder, Timeline
from vramcast.recordings.replay import Replayed
from vramcast.recordings.stacks import is_python, shown
from vramcast.recordings.steps import Leak, Leaks
from vramcast.recordings.variants import Variant
from vramcast.report.document import SCHEMA, as_text

MOST_FRAMES: Final = 24
"""Of one stack; those of Python first in line [count]."""

MOST_POINTS: Final = 240
"""Of the timeline [count]."""

KEYS: Final[dict[type, tuple[str | tuple[str, str], ...]]] = {
    Replayed: (
        "basis", "outcome", "events", "allocations", "addresses_matched", "segment_events", "segments_matched",
        "segments_surplus", "final_blocks_matched",
    ),
    Group: ("name", ("bytes", "size_bytes"), ("blocks", "num_blocks")),
    Holder: (
        "address", "size_bytes", "requested_bytes", "category", ("since_event", "since"), "age_us", ("frames", "stack"),
    ),
    Fragmentation: (
        ("share", "at_the_moment"), "reserved_bytes", "requested_bytes", "rounding_bytes",
        ("awaiting_free_bytes", "awaiting_bytes"), "split_free_bytes", "cached_bytes", ("hole_classes", "classes"),
        "num_holes",
    ),
    HoleClass: (("below_bytes", "up_to_bytes"), ("bytes", "size_bytes"), ("holes", "num_blocks")),
    Hole: ("address", "size_bytes", "segment", "segment_bytes", "before", "after"),
    Pinned: (("segment", "address"), "size_bytes", "free_bytes", "live_bytes", ("held_by", "pins")),
    BlockView: ("address", "size_bytes", ("frames", "stack")),
    Bar: (
        "address", "size_bytes", "live_bytes", "free_bytes", "largest_free_bytes", ("kind", "is_small"),
        ("expandable", "is_expandable"), "stream", "pool",
    ),
    Failure: ("event", "request_bytes", "allocated_bytes", "reserved_bytes"),
    Contiguity: (
        ("free_in_allocator_bytes", "free_bytes"), ("largest_free_bytes", "largest_bytes"),
        ("free_on_device_bytes", "driver_free_bytes"), ("fits_if_contiguous", "if_contiguous"),
    ),
    Variant: (
        "conf", "capacity_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "num_alloc_retries", "num_ooms",
        "num_ooms_avoided",
    ),
    Leaks: ("can_be_told", "steps", ("steps_found_by", "found_by"), "bytes_per_step"),
    Leak: (
        "bytes_per_step", "blocks_per_step", "live_bytes", "category", ("history_bytes", "history"),
        ("frames", "stack"),
    ),
    Grown: (
        "before_bytes", "after_bytes", ("before_blocks", "before_count"), ("after_blocks", "after_count"),
    ),
}
"""Noun -> the keys of its object in order, each with the attribute that it shows where that has another name."""


def replay_document(found: Sequence[Examined], *, top: int, blocks: bool = False) -> dict[str, Any]:
    """Plain data of all devices; `top`: rows of each list; `blocks`: with every block, for a picture."""
    plain: dict[str, Any] = {"schema": SCHEMA}
    if found:
        snapshot = found[0].snapshot
        plain |= {"snapshot": snapshot.name, "format": snapshot.format, "alloc_conf": snapshot.alloc_conf}
        plain["warnings"] = list(snapshot.remarks)
        plain["main_device"] = found[main_device(found)].device
    plain["devices"] = [_Writer(examined, top).device() for examined in found]
    if blocks:
        for device, examined in zip(plain["devices"], found, strict=True):
            device |= _present({"blocks": blocks_plain(examined)})
    return plain


def to_json(found: Sequence[Examined], *, top: int) -> str:
    return as_text(replay_document(found, top=top))


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _Writer:
    """One device as plain data; lists have so many rows."""

    def __init__(self, found: Examined, top: int) -> None:
        self.found = found
        self.top = top

    def plain(self, value: Any) -> Any:
        """A noun by its keys, without what is not known; of anything else what stands in JSON for it."""
        keys = KEYS.get(type(value))
        if keys is not None:
            pairs = ((key, key) if isinstance(key, str) else key for key in keys)
            return _present({key: self._shown(key, getattr(value, name)) for key, name in pairs})
        if isinstance(value, tuple):
            return [self.plain(one) for one in value]
        return value.value if isinstance(value, Enum) else value

    def _shown(self, key: str, value: Any) -> Any:
        if key == "frames":
            return self.frames(value)
        return ("small" if value else "large") if key == "kind" else self.plain(value)

    def frames(self, stack: int) -> list[str]:
        """The frames of Python in a stack; all of one that has none."""
        table = self.found.snapshot.stacks
        frames: tuple[Frame, ...] = table[stack] if 0 <= stack < len(table) else ()
        python = [shown(frame) for frame in frames if is_python(frame)]
        return (python or [shown(frame) for frame in frames])[:MOST_FRAMES]

    def device(self) -> dict[str, Any]:
        found, replayed, said = self.found, self.found.replayed, self.found.advice
        return _present({
            "device": found.device,
            **self.plain(replayed),
            "contradiction": replayed.contradiction or None,
            "num_alloc_retries": replayed.num_alloc_retries,
            "num_ooms": found.num_failures,
            "peak": self.peak(replayed),
            "fragmentation": found.fragmentation_of_run,
            "unallocated": None if found.fragmentation is None else self.unallocated(found.fragmentation),
            "segments": self.plain(found.segments),
            "timeline": _timeline(found.timeline),
            "out_of_memory": [
                self.plain(failure) | self.plain(failure.contiguity) | {"frames": self.frames(failure.stack)}
                for failure in found.failures
            ],
            "variants": [self.variant(variant) for variant in found.variants] or None,
            "advice": None if said is None else _present({
                "kind": said.kind, "tried": said.tried, "conf": None if said.best is None else said.best.conf,
                "peak_reserved_bytes": None if said.best is None else said.best.peak_reserved_bytes,
                "saves_bytes": said.saved_bytes if said.kind in ("lowers", "unsure") else None,
            }),
            "leaks": None if found.leaks is None else self.plain(found.leaks) | {
                "leaks": self.plain(found.leaks.leaks[: self.top])
            },
            "difference": None if found.difference is None else self.difference(found.difference),
        })

    def peak(self, replayed: Replayed) -> dict[str, Any]:
        held = self.found.held
        return _present({
            "allocated_bytes": replayed.peak_allocated_bytes,
            "requested_bytes": replayed.peak_requested_bytes,
            "reserved_bytes": replayed.peak_reserved_bytes,
            "at_least": replayed.is_least or None,
            "unlisted_bytes": held.unlisted_bytes or None,
            "event": None if replayed.peak_event < 0 else replayed.peak_event,
            "reserved_event": None if replayed.peak_reserved_event < 0 else replayed.peak_reserved_event,
            "time_us": self.found.peak_time_us,
        }) | self.held(held)

    def held(self, held: Held) -> dict[str, Any]:
        return {
            "categories": self.plain(held.by_category),
            "modules": self.plain(held.by_module[: self.top]),
            "lines": self.plain(held.by_line[: self.top]),
            "stacks": [
                {"bytes": group.size_bytes, "blocks": group.num_blocks, "frames": self.frames(group.stack)}
                for group in held.by_stack[: self.top]
            ],
            "num_blocks": len(held.blocks),
            "blocks": self.plain(held.blocks[: self.top]),
        }

    def unallocated(self, parts: Fragmentation) -> dict[str, Any]:
        event = {} if parts.event < 0 else {"event": parts.event}
        lists = {"holes": self.plain(parts.holes[: self.top]), "pinned": self.plain(parts.pinned[: self.top])}
        return {**event, **self.plain(parts), **lists}

    def variant(self, variant: Variant) -> dict[str, Any]:
        failed, plain = variant.out_of_memory, self.plain(variant)
        if failed is not None:
            event = None if failed < 0 else failed
            plain["out_of_memory"] = _present({"event": event, "request_bytes": variant.failed_bytes})
        return dict(plain)

    def difference(self, found: Difference) -> dict[str, Any]:
        before, after = found.peak_reserved_before_bytes, found.peak_reserved_after_bytes
        both = None if before is None or after is None else [before, after]
        return {
            "against": found.before,
            **_present({"same_process": found.same_process, "peak_reserved_bytes": both}),
            "peak": self.moment(found.at_peak),
            "end": self.moment(found.at_end),
            "segments": {
                "new" if changed.is_new else "gone": {"count": changed.num_segments, "bytes": changed.size_bytes}
                for changed in found.segments
            },
        }

    def moment(self, moment: Moment) -> dict[str, Any]:
        return {
            "allocated_bytes": [moment.before_bytes, moment.after_bytes],
            "categories": [{"name": row.name[0]} | self.plain(row) for row in moment.by_category],
            "stacks": [{"frames": list(row.name)} | self.plain(row) for row in moment.by_stack[: self.top]],
        }


def _timeline(found: Timeline) -> list[dict[str, Any]]:
    """The points that hold the most of every stretch of as many points as there is room for; `"by_category"`: what was
    asked for of those bytes, by kind."""
    points = found.points
    stretch = max(1, -(-len(points) // MOST_POINTS))
    plain = []
    for first in range(0, len(points), stretch):
        part = points[first : first + stretch]
        top = max(part, key=lambda point: point.allocated_bytes)
        reserved = [point.reserved_bytes for point in part if point.reserved_bytes is not None]
        plain.append(_present({
            "event": top.highest, "allocated_bytes": top.allocated_bytes,
            "reserved_bytes": max(reserved, default=None),
            "by_category": {
                name: size for name, size in zip(found.categories, top.by_category, strict=True) if size
            },
        }))
    return plain


PAGE: Final = 512
"""What all sizes of the allocator are multiples of [bytes]."""
MOST_BLOCK_FRAMES: Final = 24
"""Of one stack."""
MOST_TIMES: Final = 1024
"""Moments whose time is told."""


def blocks_plain(found: Examined) -> dict[str, Any] | None:
    """Plain data of a device's blocks; None without events. What frees do not tell apart has totals and no block."""
    blocks = found.blocks
    events = len(found.replayed.allocated)
    if not events:
        return None
    used = {stack: place for place, stack in enumerate(dict.fromkeys(blocks.stacks))}
    frames: dict[str, int] = {}
    reserved = found.replayed.reserved
    times = found.source.trace.times_us
    step = max(1, events // MOST_TIMES)
    plain = {
        "events": events,
        "starts": packed(blocks.starts), "ends": packed(blocks.ends), "sizes": packed(blocks.sizes),
        "categories": packed(blocks.categories), "stacks": packed(array("I", (used[one] for one in blocks.stacks))),
        "names": [category.value for category in CATEGORIES],
        "stack_frames": [_frames(found.snapshot, stack, frames) for stack in used],
        "frames": list(frames),
        "allocated": packed(_pages(found.replayed.allocated)),
    }
    if reserved is not None:
        plain["reserved"] = packed(_pages(reserved))
    if times and times[0]:
        plain["times_us"] = [times[event] - times[0] for event in range(0, events, step)]
    capacity = found.source.capacity_bytes
    return plain if capacity is None else plain | {"capacity_bytes": capacity}


def packed(column: array[Any]) -> str:
    """A column in little-endian bytes, in base64."""
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return b64encode(column.tobytes()).decode()


def _pages(sizes: Iterable[int]) -> array[int]:
    return array("I", (-(-size // PAGE) for size in sizes))


def _frames(snapshot: Snapshot, stack: int, frames: dict[str, int]) -> list[int]:
    """A stack as numbers of frames: those of Python, or all of one that has none."""
    whole = snapshot.stacks[stack] if 0 <= stack < len(snapshot.stacks) else ()
    python = [frame for frame in whole if is_python(frame)]
    return [frames.setdefault(shown(frame), len(frames)) for frame in (python or list(whole))[:MOST_BLOCK_FRAMES]]
