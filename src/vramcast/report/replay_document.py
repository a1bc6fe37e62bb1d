"""A replayed recording as JSON: `"schema": 1`, integers in bytes, what is unknown is absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from vramcast.domain.snapshot import BlockView, Frame
from vramcast.recordings.examine import Difference, Examined, Failure, Grown, Moment, main_device
from vramcast.recordings.fragmentation import Bar, Fragmentation, Hole, Pinned
from vramcast.recordings.peak import Group, Held, Holder, Timeline
from vramcast.recordings.stacks import is_python, shown
from vramcast.recordings.steps import Leaks
from vramcast.recordings.variants import Variant
from vramcast.report.plain import SCHEMA, as_text

MOST_FRAMES: Final = 24
"""Of one stack; those of Python first in line [count]."""

MOST_POINTS: Final = 240
"""Of the timeline [count]."""


def replay_document(found: Sequence[Examined], *, top: int) -> dict[str, Any]:
    """Plain data of all devices.

    Args:
        found: one for each device
        top: rows of each list
    """
    plain: dict[str, Any] = {"schema": SCHEMA}
    if found:
        snapshot = found[0].snapshot
        plain |= {"snapshot": snapshot.name, "format": snapshot.format, "alloc_conf": snapshot.alloc_conf}
        plain["warnings"] = list(snapshot.remarks)
        plain["main_device"] = found[main_device(found)].device
    plain["devices"] = [_device(examined, top) for examined in found]
    return plain


def to_json(found: Sequence[Examined], *, top: int) -> str:
    return as_text(replay_document(found, top=top))


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _device(found: Examined, top: int) -> dict[str, Any]:
    replayed = found.replayed
    said = found.advice
    return _present({
        "device": found.device,
        "basis": replayed.basis.value,
        "outcome": replayed.outcome.value,
        "events": replayed.events,
        "allocations": replayed.allocations,
        "addresses_matched": replayed.addresses_matched,
        "segment_events": replayed.segment_events,
        "segments_matched": replayed.segments_matched,
        "segments_surplus": replayed.segments_surplus,
        "final_blocks_matched": replayed.final_blocks_matched,
        "contradiction": replayed.contradiction or None,
        "num_alloc_retries": replayed.num_alloc_retries,
        "num_ooms": found.num_failures,
        "peak": _peak(found, top),
        "fragmentation": found.fragmentation_of_run,
        "unallocated": None if found.fragmentation is None else _unallocated(found, found.fragmentation, top),
        "segments": [_segment(bar) for bar in found.segments],
        "timeline": _timeline(found.timeline),
        "out_of_memory": [_failure(found, failure) for failure in found.failures],
        "variants": [_variant(variant) for variant in found.variants] or None,
        "advice": None if said is None else _present({
            "kind": said.kind, "tried": said.tried, "conf": None if said.best is None else said.best.conf,
            "peak_reserved_bytes": None if said.best is None else said.best.peak_reserved_bytes,
            "saves_bytes": said.saved_bytes if said.kind in ("lowers", "unsure") else None,
        }),
        "leaks": None if found.leaks is None else _leaks(found, found.leaks, top),
        "difference": None if found.difference is None else _difference(found.difference, top),
    })


def _peak(found: Examined, top: int) -> dict[str, Any]:
    replayed, held = found.replayed, found.held
    return _present({
        "allocated_bytes": replayed.peak_allocated_bytes,
        "requested_bytes": replayed.peak_requested_bytes,
        "reserved_bytes": replayed.peak_reserved_bytes,
        "at_least": replayed.is_least or None,
        "unlisted_bytes": held.unlisted_bytes or None,
        "event": None if replayed.peak_event < 0 else replayed.peak_event,
        "reserved_event": None if replayed.peak_reserved_event < 0 else replayed.peak_reserved_event,
        "time_us": found.peak_time_us,
    }) | _held(found, held, top)


def _held(found: Examined, held: Held, top: int) -> dict[str, Any]:
    return {
        "categories": _groups(held.by_category),
        "modules": _groups(held.by_module[:top]),
        "lines": _groups(held.by_line[:top]),
        "stacks": [
            {"bytes": group.size_bytes, "blocks": group.num_blocks, "frames": _frames(found, group.stack)}
            for group in held.by_stack[:top]
        ],
        "num_blocks": len(held.blocks),
        "blocks": [_holder(found, block) for block in held.blocks[:top]],
    }


def _groups(groups: Iterable[Group]) -> list[dict[str, Any]]:
    return [{"name": str(group.name), "bytes": group.size_bytes, "blocks": group.num_blocks} for group in groups]


def _holder(found: Examined, block: Holder) -> dict[str, Any]:
    return _present({
        "address": block.address, "size_bytes": block.size_bytes, "requested_bytes": block.requested_bytes,
        "category": str(block.category), "since_event": block.since, "age_us": block.age_us,
        "frames": _frames(found, block.stack),
    })


def _frames(found: Examined, stack: int) -> list[str]:
    table = found.snapshot.stacks
    frames: tuple[Frame, ...] = table[stack] if 0 <= stack < len(table) else ()
    python = [shown(frame) for frame in frames if is_python(frame)]
    return (python or [shown(frame) for frame in frames])[:MOST_FRAMES]


def _unallocated(found: Examined, parts: Fragmentation, top: int) -> dict[str, Any]:
    plain: dict[str, Any] = {} if parts.event < 0 else {"event": parts.event}
    return plain | {
        "share": parts.at_the_moment,
        "reserved_bytes": parts.reserved_bytes,
        "requested_bytes": parts.requested_bytes,
        "rounding_bytes": parts.rounding_bytes,
        "awaiting_free_bytes": parts.awaiting_bytes,
        "split_free_bytes": parts.split_free_bytes,
        "cached_bytes": parts.cached_bytes,
        "hole_classes": [
            _present({"below_bytes": entry.up_to_bytes, "bytes": entry.size_bytes, "holes": entry.num_blocks})
            for entry in parts.classes
        ],
        "num_holes": parts.num_holes,
        "holes": [_hole(found, hole) for hole in parts.holes[:top]],
        "pinned": [_pinned(found, segment) for segment in parts.pinned[:top]],
    }


def _hole(found: Examined, hole: Hole) -> dict[str, Any]:
    return _present({
        "address": hole.address, "size_bytes": hole.size_bytes, "segment": hole.segment,
        "segment_bytes": hole.segment_bytes, "before": _block(found, hole.before), "after": _block(found, hole.after),
    })


def _block(found: Examined, block: BlockView | None) -> dict[str, Any] | None:
    """A block beside a hole or in a segment; None: the end of the segment."""
    if block is None:
        return None
    return {"address": block.address, "size_bytes": block.size_bytes, "frames": _frames(found, block.stack)}


def _pinned(found: Examined, segment: Pinned) -> dict[str, Any]:
    return {
        "segment": segment.address, "size_bytes": segment.size_bytes, "free_bytes": segment.free_bytes,
        "live_bytes": segment.live_bytes, "held_by": [_block(found, block) for block in segment.pins],
    }


def _segment(bar: Bar) -> dict[str, Any]:
    return {
        "address": bar.address, "size_bytes": bar.size_bytes, "live_bytes": bar.live_bytes,
        "free_bytes": bar.free_bytes, "largest_free_bytes": bar.largest_free_bytes,
        "kind": "small" if bar.is_small else "large", "expandable": bar.is_expandable, "stream": bar.stream,
        "pool": list(bar.pool),
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


def _failure(found: Examined, failure: Failure) -> dict[str, Any]:
    room = failure.contiguity
    return _present({
        "event": failure.event, "request_bytes": failure.request_bytes, "allocated_bytes": failure.allocated_bytes,
        "reserved_bytes": failure.reserved_bytes, "free_in_allocator_bytes": room.free_bytes,
        "largest_free_bytes": room.largest_bytes, "free_on_device_bytes": room.driver_free_bytes,
        "fits_if_contiguous": room.if_contiguous, "frames": _frames(found, failure.stack),
    })


def _variant(variant: Variant) -> dict[str, Any]:
    failed = variant.out_of_memory
    return _present({
        "conf": variant.conf,
        "capacity_bytes": variant.capacity_bytes,
        "peak_allocated_bytes": variant.peak_allocated_bytes,
        "peak_reserved_bytes": variant.peak_reserved_bytes,
        "num_alloc_retries": variant.num_alloc_retries,
        "num_ooms": variant.num_ooms,
        "num_ooms_avoided": variant.num_ooms_avoided,
        "out_of_memory": None if failed is None else _present({
            "event": None if failed < 0 else failed, "request_bytes": variant.failed_bytes,
        }),
    })


def _leaks(found: Examined, leaks: Leaks, top: int) -> dict[str, Any]:
    return _present({
        "can_be_told": leaks.can_be_told,
        "steps": leaks.steps,
        "steps_found_by": leaks.found_by,
        "bytes_per_step": leaks.bytes_per_step,
        "leaks": [
            {
                "bytes_per_step": leak.bytes_per_step, "blocks_per_step": leak.blocks_per_step,
                "live_bytes": leak.live_bytes, "category": str(leak.category), "history_bytes": list(leak.history),
                "frames": _frames(found, leak.stack),
            }
            for leak in leaks.leaks[:top]
        ],
    })


def _difference(found: Difference, top: int) -> dict[str, Any]:
    return {
        "against": found.before,
        **_present({"same_process": found.same_process, "peak_reserved_bytes": _both(found)}),
        "peak": _moment(found.at_peak, top),
        "end": _moment(found.at_end, top),
        "segments": {
            "new" if changed.is_new else "gone": {"count": changed.num_segments, "bytes": changed.size_bytes}
            for changed in found.segments
        },
    }


def _both(found: Difference) -> list[int] | None:
    before, after = found.peak_reserved_before_bytes, found.peak_reserved_after_bytes
    return None if before is None or after is None else [before, after]


def _moment(moment: Moment, top: int) -> dict[str, Any]:
    def rows(groups: Sequence[Grown], key: str) -> list[dict[str, Any]]:
        return [
            {
                key: list(row.name) if key == "frames" else row.name[0], "before_bytes": row.before_bytes,
                "after_bytes": row.after_bytes, "before_blocks": row.before_count, "after_blocks": row.after_count,
            }
            for row in groups
        ]

    return {
        "allocated_bytes": [moment.before_bytes, moment.after_bytes],
        "categories": rows(moment.by_category, "name"),
        "stacks": rows(moment.by_stack[:top], "frames"),
    }
