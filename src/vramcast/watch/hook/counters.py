"""What torch says of one card: its allocator's counters and the driver's free memory. Nothing here waits for the card.

`memory_stats` reads counters that the allocator keeps anyway; `cudaMemGetInfo` asks the driver and synchronises nothing
[torch] torch/cuda/memory.py, c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vramcast.domain.observation import TorchSample


class Place(NamedTuple):
    """The process and the card that samples are of."""

    pid: int
    device: int
    gpu_uuid: str
    gpu: str  # as torch names it
    simulated: bool
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def ready() -> bool:
    """Whether this process uses CUDA already: a hook must not be what makes a context on a card."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def place_of(device: int | None, pid: int, ranks: tuple[int, int, int]) -> Place:
    """The card by its number in torch, None for the current one; `ranks` are rank, local rank and world size."""
    import torch

    index = torch.cuda.current_device() if device is None else device
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return Place(
        pid, index, f"GPU-{uuid}" if uuid else "", properties.name,
        type(properties).__module__.startswith("vramcast."), *ranks,
    )


def read(place: Place, *, time_s: float, step: int, phase: str) -> TorchSample:
    """The counters now; peaks are since they were last reset."""
    import torch

    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(place.device)
    free, total = torch.cuda.mem_get_info(place.device)
    allocated, reserved = _all(stats, "allocated_bytes"), _all(stats, "reserved_bytes")
    return TorchSample(
        time_s=time_s, pid=place.pid, gpu_uuid=place.gpu_uuid, step=step, phase=phase, device=place.device,
        rank=place.rank, local_rank=place.local_rank, allocated_bytes=allocated.get("current"),
        peak_allocated_bytes=allocated.get("peak"), reserved_bytes=reserved.get("current"),
        peak_reserved_bytes=reserved.get("peak"), active_bytes=_all(stats, "active_bytes").get("current"),
        inactive_split_bytes=_all(stats, "inactive_split_bytes").get("current"),
        num_alloc_retries=stats.get("num_alloc_retries"), num_ooms=stats.get("num_ooms"),
        device_used_bytes=total - free, device_total_bytes=total,
    )


def forget_peaks(place: Place) -> None:
    """Peaks count from here."""
    import torch

    torch.cuda.reset_peak_memory_stats(place.device)


def _all(stats: dict[str, Any], name: str) -> dict[str, int]:
    found: dict[str, int] = stats.get(name, {}).get("all", {})
    return found
