"""`torch.cuda.memory._snapshot` of simulated cards: segments, blocks and the whole history, with Python stacks.

[snapshot] pytorch torch/csrc/cuda/memory_snapshot.cpp
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.domain.snapshot import Action, BlockView, Frame, SegmentView, Trace
from vramcast.tracing.categories import categorise
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.played import recording

STATES: Final = {(True, False): "inactive", (False, True): "active_awaiting_free", (False, False): "active_allocated"}
"""(is free, awaits its free) -> state"""
Frames = list[dict[str, Any]]


def memory_snapshot(memory: Memory) -> dict[str, Any]:
    """What `torch._C._cuda_memorySnapshot` returns."""
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    for index, device in enumerate(memory.devices):
        recorded = recording(
            device.tape, stacks=device.origins.stacks.frames(), labels=[str(c) for c in categorise(device.tape)],
            name=f"cuda:{index}", settings=device.allocator.settings, capacity_bytes=device.capacity_bytes,
        )
        stacks = [[_frame(frame) for frame in stack] for stack in recorded.stacks]
        view = recorded.devices[0]
        segments += [_segment(segment, index, stacks) for segment in view.segments]
        traces.append(_events(view.trace, stacks))
    return {
        "segments": segments, "device_traces": traces, "external_annotations": [],
        "allocator_settings": _settings(memory.devices[0]),
    }


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


def _events(trace: Trace, stacks: list[Frames]) -> list[dict[str, Any]]:
    return [
        {
            "action": Action(trace.actions[at]).name.lower(), "addr": trace.addresses[at], "size": trace.sizes[at],
            "stream": trace.streams[at], "time_us": trace.times_us[at], "frames": stacks[trace.stacks[at]],
        }
        for at in range(len(trace))
    ]


def _settings(device: Device) -> dict[str, Any]:
    settings = device.allocator.settings
    return {"expandable_segments": settings.expandable_segments, "max_split_size": settings.max_split_size_mb or -1}
