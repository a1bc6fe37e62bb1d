"""`torch.cuda.memory_stats` of a simulated card, in the nested form that torch flattens.

Peaks of the whole are those of the allocator; peaks of counts and of the two pools are not kept, the present values
stand for them.
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.allocator.settings import round_size
from vramcast.allocator.views import PARTS
from vramcast.tracing.memory import Device

COUNTS: Final = ("allocation", "segment", "active", "inactive_split")
SIZES: Final = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")


def nested_statistics(device: Device) -> dict[str, Any]:
    """What `torch._C._cuda_memoryStats` returns."""
    allocator = device.allocator
    now = allocator.statistics()
    peaks = {
        "allocated_bytes": allocator.peak_allocated_bytes, "reserved_bytes": allocator.peak_reserved_bytes,
        "requested_bytes": allocator.peak_requested_bytes, "active_bytes": allocator.peak_allocated_bytes,
    }
    totals = {"allocation": _counted(device), "allocated_bytes": _allocated(device)}
    found: dict[str, Any] = {}
    for name in (*COUNTS, *SIZES):
        found[name] = {part: _figures(getattr(getattr(now, part), name)) for part in PARTS}
        whole = found[name]["all"]
        whole["peak"] = max(whole["current"], peaks.get(name, 0))
        if name in totals:
            whole["allocated"] = totals[name]
            whole["freed"] = totals[name] - whole["current"]
    found["oversize_allocations"] = _figures(0)
    found["oversize_segments"] = _figures(0)
    return {
        **found, "num_alloc_retries": allocator.num_alloc_retries, "num_ooms": allocator.num_ooms,
        "num_sync_all_streams": 0, "num_device_alloc": now.all.segment, "num_device_free": 0, "max_split_size": -1,
    }


def _figures(current: int) -> dict[str, int]:
    return {"current": current, "peak": current, "allocated": current, "freed": 0}


def _counted(device: Device) -> int:
    return len(device.tape.blocks) - device.counted_from


def _allocated(device: Device) -> int:
    return sum(round_size(block.num_bytes) for block in device.tape.blocks[device.counted_from :])
