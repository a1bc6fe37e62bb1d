"""Small recordings as torch writes them, and what a snapshot says with its tables resolved."""

import os
import pickle
from pathlib import Path
from typing import Any

from vramcast.domain.snapshot import Snapshot
from vramcast.sources.snapshots import read_snapshot

_REPO = Path(__file__).resolve().parents[3]
TRUTH = Path(os.environ.get("VRAMCAST_TRUTH", _REPO.parent / "shared" / "truth")) / "snapshots"

MIB = 2**20
HEAP = 0x7F0000000000


def frame(name: str, line: int = 1) -> dict[str, Any]:
    """A frame as torch writes it."""
    return {"name": name, "filename": "/job/train.py", "line": line}


def event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    """An event of torch 2.9 and later."""
    place = "device_free" if action == "oom" else "addr"
    return {
        "action": action, place: address, "size": size, "stream": 0, "time_us": 1_760_000_000_000_000,
        "compile_context": "".join(("N", "/A")), "user_metadata": "", "pool_id": (0, 0), "frames": [],
    } | more  # fmt: skip


def block(size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    """A block of torch 2.1, without an address."""
    return {"size": size, "requested_size": size - 12, "state": state, "frames": []} | more


def segment(address: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A segment that its blocks tile."""
    return {
        "device": 0, "address": address, "total_size": sum(row["size"] for row in blocks), "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks,
    } | more  # fmt: skip


def recording(num_events: int = 12, num_devices: int = 2) -> dict[str, Any]:
    """Allocations and frees with shared frames, an OOM, a second stream, and a segment for each device."""
    frames = [frame(f"layer_{index}", index) for index in range(7)]
    traces = []
    for device in range(num_devices):
        trace = [event("segment_alloc", HEAP, 20 * MIB)]
        while len(trace) < num_events - 1:
            index = len(trace)
            stack = frames[: 1 + index % 7]
            for action in ("alloc", "free_requested", "free_completed"):
                trace.append(event(action, HEAP + 512 * index, 100 * index, frames=list(stack), stream=device * 2**40))
        trace = [*trace[: num_events - 1], event("oom", 12 * MIB, 30 * MIB, frames=list(frames))]
        traces.append(trace)
    segments = [
        segment(HEAP, [block(MIB, frames=list(frames[:3])), block(19 * MIB, "inactive")], device=device)
        for device in range(num_devices)
    ]
    annotations = [
        {"stage": "START", "name": "step", "device": 0, "time_us": 10},
        {"stage": "END", "name": "step", "device": 0, "time_us": 30},
    ]
    return {
        "segments": segments, "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, "external_annotations": annotations,
    }  # fmt: skip


def read(tmp_path: Path, content: bytes | dict[str, Any] | list[Any], name: str = "recording.pickle") -> Snapshot:
    """The content, as a pickle where it is none yet, through a file."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=4))
    return read_snapshot(path)


def resolved(snapshot: Snapshot) -> dict[str, Any]:
    """All that a snapshot says but its name, indices replaced by what they stand for."""
    devices = []
    for device in snapshot.devices:
        trace = device.trace
        columns = [getattr(trace, column) for column in trace.__struct_fields__]
        events = [
            (*row[:5], snapshot.stacks[row[5]], snapshot.pools[row[6]], snapshot.labels[row[7]])
            for row in zip(*columns, strict=True)
        ]
        segments = [
            (
                held.address, held.size_bytes, held.is_small, held.is_expandable, held.stream, held.pool,
                [
                    (b.address, b.size_bytes, b.requested_bytes, b.is_free, b.awaits_free, snapshot.stacks[b.stack])
                    for b in held.blocks
                ],
            )
            for held in device.segments
        ]  # fmt: skip
        devices.append((device.device, device.has_segments, device.capacity_bytes, events, segments))
    return {
        "format": snapshot.format, "alloc_conf": snapshot.alloc_conf, "sizes_are": snapshot.sizes_are,
        "annotations": snapshot.annotations, "remarks": snapshot.remarks, "devices": devices,
    }  # fmt: skip
