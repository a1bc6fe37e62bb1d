"""A run's phases through the caching allocator: what is reserved when.

Free blocks belong to the stream they were allocated on and never serve another one [pytorch
c10/cuda/CUDACachingAllocator.cpp, `BlockPool::blocks` is ordered by stream], so each stream has an allocator of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vramcast.allocator import Allocator, Settings
from vramcast.domain.job import Phase
from vramcast.domain.program import Program, Tensor, events


class Simulated(NamedTuple):
    """High-water marks of one phase in the simulated allocator [bytes]."""

    allocated_bytes: int  # with rounding and the slack of large blocks
    reserved_bytes: int


def simulate(phases: Mapping[Phase, Program], *, alloc_conf: str = "") -> dict[Phase, Simulated]:
    """Replay the phases one after the other; nothing is returned to the driver in between.

    Args:
        phases: program of each phase, in run order
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF

    Returns: the high-water marks of each phase [bytes]
    """
    settings = Settings.parse(alloc_conf) if alloc_conf else Settings()
    streams = {"": Allocator(settings=settings)}
    live: dict[Tensor, list[int]] = {}
    marks: dict[Phase, Simulated] = {}
    for phase, program in phases.items():
        for allocator in streams.values():
            allocator.reset_peaks()
        allocated = _replay(streams, program, live, settings)
        reserved = sum(allocator.peak_reserved_bytes for allocator in streams.values())
        marks[phase] = Simulated(allocated, reserved)
    return marks


def _replay(
    streams: dict[str, Allocator], program: Program, live: dict[Tensor, list[int]], settings: Settings
) -> int:
    """Run one phase; returns the peak of allocated bytes over all streams together."""
    default = streams[""]
    others = peak = sum(allocator.allocated_bytes for name, allocator in streams.items() if name)
    peak += default.allocated_bytes
    for tensor, is_allocation in events(program):
        if not tensor.num_bytes:
            continue
        allocator = default
        if tensor.stream:
            if tensor.stream not in streams:
                streams[tensor.stream] = Allocator(settings=settings)
            allocator = streams[tensor.stream]
            others -= allocator.allocated_bytes
        if is_allocation:
            live.setdefault(tensor, []).append(allocator.allocate(tensor.num_bytes))
        else:
            allocator.free(live[tensor].pop())
        if tensor.stream:
            others += allocator.allocated_bytes
        if is_allocation:
            peak = max(peak, others + default.allocated_bytes)
    return peak
