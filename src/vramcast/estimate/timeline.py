"""A run's phases through the caching allocator: what is reserved when.

Free blocks belong to the stream they were allocated on and never serve another one [pytorch
c10/cuda/CUDACachingAllocator.cpp, `BlockPool::blocks` is ordered by stream]: each stream has its own allocator.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from vramcast.allocator import Allocator, Settings
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Loop, Program, Tensor, events, played_rounds
from vramcast.errors import OutOfMemory

MOST_KNOWN: Final = 1 << 14
"""Runs whose marks are kept, about 10 MB of them [count]."""


class Simulated(NamedTuple):
    """High-water marks of one phase in the simulated allocator [bytes]."""

    allocated_bytes: int  # with rounding and the slack of large blocks
    reserved_bytes: int


_known: dict[bytes, dict[Phase, Simulated]] = {}
"""Marks of runs without a capacity, by what decides them; the oldest go first."""


def simulate(
    phases: Mapping[Phase, Program], *, alloc_conf: str = "", capacity_bytes: int | None = None
) -> dict[Phase, Simulated]:
    """Replay the phases one after the other.

    Args:
        phases: program of each phase, in run order
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF
        capacity_bytes: what the driver can give; when it is reached, cached memory is given back first [bytes].
            None: without end, nothing is ever given back

    Returns: the high-water marks of each phase [bytes]
    Raises: OutOfMemory when a request cannot be served within the capacity
    """
    if capacity_bytes is not None:
        return _simulated(phases, alloc_conf, capacity_bytes)
    # Many questions of a search or sweep differ in cards or ranks alone, and their ranks do the same to memory.
    key = _digest(phases, alloc_conf)
    if key not in _known:
        marks = _simulated(phases, alloc_conf, None)
        if len(_known) >= MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[key] = marks
    return dict(_known[key])


def _simulated(
    phases: Mapping[Phase, Program], alloc_conf: str, capacity_bytes: int | None
) -> dict[Phase, Simulated]:
    device = _Device(Settings.parse(alloc_conf) if alloc_conf else Settings(), capacity_bytes)
    marks: dict[Phase, Simulated] = {}
    for phase, program in phases.items():
        for allocator in device.streams.values():
            allocator.reset_peaks()
        allocated = device.replay(program)
        reserved = sum(allocator.peak_reserved_bytes for allocator in device.streams.values())
        marks[phase] = Simulated(allocated, reserved if capacity_bytes is None else min(reserved, capacity_bytes))
    return marks


def _digest(phases: Mapping[Phase, Program], alloc_conf: str) -> bytes:
    """What decides the marks of a run: sizes and streams in order, which tensor is which, and the settings."""
    numbers: dict[Tensor, int] = {}
    parts: list[object] = [alloc_conf]
    for phase, program in phases.items():
        parts.append(phase.value)
        _describe(program, numbers, parts)
    return blake2b(repr(parts).encode(), digest_size=20).digest()


def _describe(program: Program, numbers: dict[Tensor, int], parts: list[object]) -> None:
    for node in program:
        if isinstance(node, Loop):
            parts.append(f"{played_rounds(node)}(")
            _describe(node.body, numbers, parts)
            parts.append(")")
            continue
        tensor = node.tensor
        number = numbers.get(tensor)
        if number is None:
            numbers[tensor] = number = len(numbers)
            parts.append((tensor.num_bytes, tensor.stream))
        parts.append(number if isinstance(node, Alloc) else -1 - number)


class _Device:
    """The allocators of all streams of one process, and the memory they share."""

    def __init__(self, settings: Settings, capacity_bytes: int | None) -> None:
        self.settings = settings
        self.capacity_bytes = capacity_bytes
        self.live: dict[Tensor, list[int]] = {}
        self.streams = {"": Allocator(settings=settings, capacity_bytes=capacity_bytes)}

    def replay(self, program: Program) -> int:
        """Run one phase; returns the peak of allocated bytes over all streams together."""
        default, live = self.streams[""], self.live
        others = sum(allocator.allocated_bytes for name, allocator in self.streams.items() if name)
        peak = others + default.allocated_bytes
        for tensor, is_allocation in events(program):
            if not tensor.num_bytes:
                continue
            allocator = default
            if tensor.stream:
                allocator = self._of(tensor.stream)
                others -= allocator.allocated_bytes
            if is_allocation:
                handle = (
                    allocator.allocate(tensor.num_bytes)
                    if self.capacity_bytes is None
                    else self._allocate_within(allocator, tensor.num_bytes)
                )
                live.setdefault(tensor, []).append(handle)
            else:
                allocator.free(live[tensor].pop())
            if tensor.stream:
                others += allocator.allocated_bytes
            if is_allocation:
                peak = max(peak, others + default.allocated_bytes)
        return peak

    def _of(self, stream: str) -> Allocator:
        if stream not in self.streams:
            self.streams[stream] = Allocator(settings=self.settings, capacity_bytes=self.capacity_bytes)
        return self.streams[stream]

    def _allocate_within(self, allocator: Allocator, num_bytes: int) -> int:
        """A request on a device that can be full: the caches of all streams are given back before it fails."""
        self._share(allocator)
        try:
            return allocator.allocate(num_bytes)
        except OutOfMemory:
            for other in self.streams.values():
                other.empty_cache()
            self._share(allocator)
            return allocator.allocate(num_bytes)

    def _share(self, allocator: Allocator) -> None:
        assert self.capacity_bytes is not None
        taken = sum(other.reserved_bytes for other in self.streams.values() if other is not allocator)
        allocator.limit_to(self.capacity_bytes - taken)
