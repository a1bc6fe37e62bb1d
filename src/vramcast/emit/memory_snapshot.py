"""Recordings in the form of `torch.cuda.memory._dump_snapshot()`, which pytorch.org/memory_viz and others open.

Keys are those of torch 2.13. What torch has no key for (that sizes are of blocks, that no segments were recorded, the
capacity) stands under a key of our own, which viewers pass over.
[snapshot] pytorch torch/csrc/cuda/Module.cpp, torch/cuda/_memory_viz.py

Memory over time in Chrome's Trace Event Format, for ui.perfetto.dev and chrome://tracing.

Each device is a process: counters of allocated, reserved and active bytes, annotations as spans, out-of-memory as
instants. [format] "Trace Event Format", google/trace-viewer documentation
"""

from __future__ import annotations

import gc
import pickle
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import json

from vramcast.domain.snapshot import (
    OWN_KEY,
    Action,
    Annotation,
    BlockView,
    DeviceSnapshot,
    Frame,
    SegmentView,
    Snapshot,
    Trace,
)
from vramcast.errors import text_of
from vramcast.sources.files import write_whole

MOST_POINTS: Final = 200_000
"""Counter values written for one device; more are thinned to the highest of each stretch."""
_ANNOTATIONS_THREAD: Final = 1


class Counted(Protocol):
    """What a replay knows about one device after each of its events."""

    @property
    def allocated(self) -> array[int]: ...
    @property
    def reserved(self) -> array[int] | None: ...


def write_counters(snapshot: Snapshot, counted: Mapping[int, Counted], *, most_points: int = MOST_POINTS) -> bytes:
    """The trace as JSON.

    Leaves out single allocations: their number makes viewers stand still; memory snapshots show them.

    Args:
        snapshot: the recording
        counted: by device: allocated and reserved bytes after each event
        most_points: counter values written for one device; a stretch keeps where allocated and where reserved is
            highest in it, and its last
    """
    events: list[dict[str, Any]] = []
    for device in snapshot.devices:
        if device.device in counted:
            events += _device(snapshot, device, counted[device.device], most_points)
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"recording": snapshot.name}}
    return json.encode(trace, enc_hook=text_of)


def _device(snapshot: Snapshot, device: DeviceSnapshot, counted: Counted, most_points: int) -> Iterator[dict[str, Any]]:
    trace, number = device.trace, device.device
    times = _times(trace)
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"GPU {number}"}}
    active = _active(trace, counted)
    for index in _kept(counted, len(trace), most_points):
        values = {"allocated": counted.allocated[index], "active": active[index]}
        if counted.reserved is not None:
            values["reserved"] = counted.reserved[index]
        yield {"ph": "C", "name": "memory [bytes]", "pid": number, "tid": 0, "ts": times[index], "args": values}
    for index, action in enumerate(trace.actions):
        if action == Action.OOM:
            said = {"requested_bytes": trace.sizes[index]}
            if device.has_segments:  # a profile does not say what was free
                said["device_free_bytes"] = trace.addresses[index]
            yield {
                "ph": "i", "s": "p", "name": "out of memory", "pid": number, "tid": 0, "ts": times[index], "args": said,
            }  # fmt: skip
    for span in snapshot.annotations:
        if span.device == number:
            yield {
                "ph": "X", "name": span.name, "cat": "annotation", "pid": number, "tid": _ANNOTATIONS_THREAD,
                "ts": span.start_us, "dur": max(0, span.end_us - span.start_us),
            }  # fmt: skip


def _times(trace: Trace) -> array[int]:
    """When each event was; a recording without times counts its events."""
    return trace.times_us if any(trace.times_us) else array("q", range(len(trace)))


def _active(trace: Trace, counted: Counted) -> array[int]:
    """Allocated bytes, and those whose free waits for another stream [bytes]."""
    waiting: dict[int, int] = {}
    total = before = 0
    active = array("Q")
    for action, address, allocated in zip(trace.actions, trace.addresses, counted.allocated, strict=True):
        if action == Action.FREE_REQUESTED and allocated < before:
            total += before - allocated - waiting.get(address, 0)
            waiting[address] = before - allocated
        elif action == Action.FREE_COMPLETED:
            total -= waiting.pop(address, 0)
        before = allocated
        active.append(allocated + total)
    return active


def _kept(counted: Counted, num_events: int, most_points: int) -> Iterable[int]:
    """The events whose values are written: all, or of each stretch the highest and the last."""
    stretch = -(-3 * num_events // most_points)
    if num_events <= most_points:
        return range(num_events)
    kept: list[int] = []
    for start in range(0, num_events, stretch):
        inside = range(start, min(start + stretch, num_events))
        columns = (counted.allocated, counted.reserved or counted.allocated)
        highest = {max(inside, key=values.__getitem__) for values in columns}
        kept += sorted(highest | {inside[-1]})
    return kept


PROTOCOL: Final = 4
_NO_CONTEXT: Final = "N/A"
_NAMES: Final = tuple(action.name.lower() for action in Action)

Frames = list[dict[str, Any]]


def write_snapshot(snapshot: Snapshot) -> bytes:
    """The pickle of the standard form: protocol 4, plain containers, each stack written once.

    Leaves out times of zero: `time_us` is 0 there. Takes about 500 bytes of memory an event while it works.
    """
    was_collecting = gc.isenabled()
    gc.disable()  # a million dicts and no cycle: collecting would take most of the time
    try:
        return pickle.dumps(_document(snapshot), protocol=PROTOCOL)
    finally:
        if was_collecting:
            gc.enable()


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """The same as a file.

    Raises: SourceError where it cannot be written
    """
    write_whole(path, write_snapshot(snapshot))


def _document(snapshot: Snapshot) -> dict[str, Any]:
    frames: dict[Frame, dict[str, Any]] = {}
    stacks = [[_frame(frame, frames) for frame in stack] for stack in snapshot.stacks]
    devices = {device.device: device for device in snapshot.devices}
    traces = [
        _events(devices[number].trace, snapshot, stacks) if number in devices else []
        for number in range(max(devices, default=-1) + 1)
    ]
    return {
        "segments": [_segment(device, segment, stacks) for device in snapshot.devices for segment in device.segments],
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": snapshot.alloc_conf},
        "external_annotations": [entry for span in snapshot.annotations for entry in _stages(span)],
        OWN_KEY: _own(snapshot),
    }


def _frame(frame: Frame, known: dict[Frame, dict[str, Any]]) -> dict[str, Any]:
    if frame not in known:
        known[frame] = {"name": str(frame.name), "filename": frame.filename, "line": frame.line}
    return known[frame]


def _events(trace: Trace, snapshot: Snapshot, stacks: list[Frames]) -> list[dict[str, Any]]:
    pools, labels = snapshot.pools, tuple(map(str, snapshot.labels))
    columns = zip(
        trace.actions, trace.addresses, trace.sizes, trace.streams, trace.times_us, trace.stacks, trace.pools,
        trace.labels, strict=True,
    )  # fmt: skip
    events = []
    for action, address, size, stream, time_us, stack, pool, label in columns:
        event = {
            "action": _NAMES[action],
            "device_free" if action == Action.OOM else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "compile_context": _NO_CONTEXT,
            "user_metadata": labels[label],
            "pool_id": pools[pool],
            "frames": stacks[stack],
        }
        if label:
            event["category"] = labels[label]  # what viewers colour by
        events.append(event)
    return events


def _segment(device: DeviceSnapshot, segment: SegmentView, stacks: list[Frames]) -> dict[str, Any]:
    live = [block for block in segment.blocks if not block.is_free and not block.awaits_free]
    return {
        "device": device.device,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": sum(block.size_bytes for block in live),
        "active_size": sum(block.size_bytes for block in segment.blocks if not block.is_free),
        "requested_size": sum(block.requested_bytes for block in segment.blocks),
        "stream": segment.stream,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [_block(block, stacks) for block in segment.blocks],
    }


def _block(block: BlockView, stacks: list[Frames]) -> dict[str, Any]:
    state = "inactive" if block.is_free else "active_awaiting_free" if block.awaits_free else "active_allocated"
    return {
        "address": block.address,
        "size": block.size_bytes,
        "requested_size": block.requested_bytes,
        "state": state,
        "frames": stacks[block.stack],
    }


def _stages(span: Annotation) -> Iterator[dict[str, Any]]:
    yield {"stage": "START", "name": span.name, "device": span.device, "time_us": span.start_us}
    if span.end_us != span.start_us:
        yield {"stage": "END", "name": span.name, "device": span.device, "time_us": span.end_us}


def _own(snapshot: Snapshot) -> dict[str, Any]:
    capacities = [(device.device, device.capacity_bytes) for device in snapshot.devices if device.capacity_bytes]
    own = {
        "format": snapshot.format,
        "sizes_are": snapshot.sizes_are.value,
        "devices": [device.device for device in snapshot.devices],
        "without_segments": [device.device for device in snapshot.devices if not device.has_segments],
        "capacity_bytes": capacities,
        "remarks": list(map(str, snapshot.remarks)),  # a note is a class of its own, which no reader of pickles loads
    }
    without_addresses = [device.device for device in snapshot.devices if not device.has_addresses]
    totals = [
        (device.device, list(device.totals.allocated), list(device.totals.reserved or ()))
        for device in snapshot.devices if device.totals is not None
    ]
    return own | ({"without_addresses": without_addresses} if without_addresses else {}) | (
        {"totals": totals} if totals else {}
    )
