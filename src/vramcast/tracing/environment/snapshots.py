"""`torch.cuda.memory._snapshot` of simulated cards: segments, blocks and the history that was asked for, with Python
stacks.

[snapshot] pytorch torch/csrc/cuda/memory_snapshot.cpp
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from vramcast.domain.snapshot import COUNTS_EVENTS, OWN_KEY, PREDICTED, Action, BlockView, Frame, SegmentView, Snapshot
from vramcast.tracing.history import LEVELS
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.origins import without_start
from vramcast.tracing.played import bare, recording

STATES: Final = {(True, False): "inactive", (False, True): "active_awaiting_free", (False, False): "active_allocated"}
"""(is free, awaits its free) -> state"""
OWN: Final = {"format": PREDICTED, "remarks": [COUNTS_EVENTS]}
"""What torch has no key for, and its viewers pass over: that nothing of this was measured."""
Frames = list[dict[str, Any]]


def memory_snapshot(memory: Memory) -> dict[str, Any]:
    """What `torch._C._cuda_memorySnapshot` returns: segments, and the events that the script asked to be kept."""
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    history = memory.history
    for index, device in enumerate(memory.devices):
        recorded = recording(
            device.tape, stacks=stacks_of(device), labels=[""] * len(device.tape.blocks),
            name=f"cuda:{index}", settings=device.allocator.settings, capacity_bytes=device.capacity_bytes,
            first=history.first(index), has_stack=partial(history.has_stack, index),
        )
        stacks = [[_frame(frame) for frame in stack] for stack in recorded.stacks]
        view = recorded.devices[0]
        segments += [_segment(segment, index, stacks) for segment in view.segments]
        events = _events(recorded, stacks if history.level >= LEVELS["alloc"] else [[] for _ in stacks])
        kept = [event for event in events if event["action"] not in history.skipped]
        traces.append(kept[max(0, len(kept) - history.most_entries) :])
    history.is_awaited = False
    return {
        "segments": segments, "device_traces": traces, "external_annotations": [],
        "allocator_settings": _settings(memory.devices[0]), OWN_KEY: OWN,
    }


def stacks_of(device: Device) -> tuple[tuple[Frame, ...], ...]:
    """All stacks of a run as torch records them."""
    return tuple(tuple(map(bare, without_start(stack))) for stack in device.origins.stacks.frames())


def _frame(frame: Frame) -> dict[str, Any]:
    return {"name": frame.name, "filename": frame.filename, "line": frame.line}


def _segment(segment: SegmentView, device: int, stacks: list[Frames]) -> dict[str, Any]:
    live = [block for block in segment.blocks if not block.is_free]
    return {
        "device": device, "address": segment.address, "total_size": segment.size_bytes,
        "allocated_size": sum(block.size_bytes for block in live if not block.awaits_free),
        "active_size": sum(block.size_bytes for block in live),
        "requested_size": sum(block.requested_bytes for block in live),
        "stream": segment.stream, "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": segment.pool, "is_expandable": segment.is_expandable, "frames": [],
        "blocks": [_block(block, stacks) for block in segment.blocks],
    }


def _block(block: BlockView, stacks: list[Frames]) -> dict[str, Any]:
    return {
        "address": block.address, "size": block.size_bytes, "requested_size": block.requested_bytes,
        "state": STATES[block.is_free, block.awaits_free], "frames": stacks[block.stack],
    }


def _events(recorded: Snapshot, stacks: list[Frames]) -> list[dict[str, Any]]:
    """The events as torch writes them; their times count events."""
    trace, pools = recorded.devices[0].trace, recorded.pools
    return [
        {
            "action": Action(action).name.lower(), "device_free" if action == Action.OOM else "addr": address,
            "size": trace.sizes[at], "stream": trace.streams[at], "time_us": trace.times_us[at],
            "compile_context": "N/A", "user_metadata": "", "pool_id": pools[trace.pools[at]],
            "frames": stacks[trace.stacks[at]],
        }
        for at, (action, address) in enumerate(zip(trace.actions, trace.addresses, strict=True))
    ]


def _settings(device: Device) -> dict[str, Any]:
    settings = device.allocator.settings
    return {"expandable_segments": settings.expandable_segments, "max_split_size": settings.max_split_size_mb or -1}
