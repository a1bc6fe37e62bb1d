"""Recordings in the form of `torch.cuda.memory._dump_snapshot()`, which pytorch.org/memory_viz and others open.

Keys are those of torch 2.13. What torch has no key for (that sizes are of blocks, that no segments were recorded, the
capacity) stands under a key of our own, which viewers pass over.
[snapshot] pytorch torch/csrc/cuda/Module.cpp, torch/cuda/_memory_viz.py
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

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
from vramcast.sources.files import write_whole

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
