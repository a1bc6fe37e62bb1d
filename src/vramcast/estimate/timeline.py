"""A run's phases through the caching allocator: what is reserved when."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from vramcast.allocator import Allocator, Settings
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Loop, Program, Tensor, events, played_rounds

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
    allocator = device.allocator
    for phase, program in phases.items():
        allocator.reset_peaks()
        device.replay(program)
        marks[phase] = Simulated(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)
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
    """The allocator of one process, and where its live tensors are."""

    def __init__(self, settings: Settings, capacity_bytes: int | None) -> None:
        self.allocator = Allocator(settings=settings, capacity_bytes=capacity_bytes)
        self.live: dict[Tensor, list[int]] = {}
        self.streams: dict[str, int] = {"": 0}  # name -> number, the default stream first

    def replay(self, program: Program) -> None:
        """Run one phase."""
        allocate, free = self.allocator.allocate, self.allocator.free
        live, streams = self.live, self.streams
        for tensor, is_allocation in events(program):
            if not tensor.num_bytes:
                continue
            if is_allocation:
                stream = streams.setdefault(tensor.stream, len(streams)) if tensor.stream else 0
                live.setdefault(tensor, []).append(allocate(tensor.num_bytes, stream))
            else:
                free(live[tensor].pop())
