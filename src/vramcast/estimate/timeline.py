"""A run's phases through the caching allocator: what is reserved when."""

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
    allocator = Allocator(settings=Settings.parse(alloc_conf) if alloc_conf else Settings())
    live: dict[Tensor, list[int]] = {}
    marks: dict[Phase, Simulated] = {}
    for phase, program in phases.items():
        allocator.reset_peaks()
        _replay(allocator, program, live)
        marks[phase] = Simulated(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)
    return marks


def _replay(allocator: Allocator, program: Program, live: dict[Tensor, list[int]]) -> None:
    allocate, free = allocator.allocate, allocator.free
    for tensor, is_allocation in events(program):
        if not tensor.num_bytes:
            continue
        if is_allocation:
            live.setdefault(tensor, []).append(allocate(tensor.num_bytes))
        else:
            free(live[tensor].pop())
