"""A run's phases through the caching allocator: what is reserved when.

numba takes a third of a second to import, and once a machine some seconds to compile: more than one question costs.
`Loop` loads it when a process has answered enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from vramcast import allocator
from vramcast.allocator import Settings
from vramcast.allocator.gaps import BeyondAddresses, Gaps, OutOfCapacity, Run
from vramcast.domain.job import Phase
from vramcast.domain.program import Program, Tensor, events
from vramcast.errors import InvalidSpec, OutOfMemory
from vramcast.estimate.script import Script, count_events, digest, play

_DEFAULTS: Final = Settings()
_EXPANDABLE: Final = Settings(expandable_segments=True)

MOST_KNOWN: Final = 1 << 14
"""Runs whose marks are kept, about 10 MB of them [count]."""


class Simulated(Struct, frozen=True):
    """High-water marks of one phase in the simulated allocator [bytes]."""

    allocated_bytes: int  # with rounding and the slack of large blocks
    reserved_bytes: int


MOST_IN_FULL: Final = 1 << 20
"""Events of a run beyond every card that are still looked at one by one: a second or two [count]."""
_known: dict[tuple[int, int], tuple[Simulated, ...] | None] = {}
"""Marks of the phases of runs, None where memory is out, by what decides them; the oldest go first."""


def simulate(
    phases: Mapping[Phase, Program], *, alloc_conf: str = "", capacity_bytes: int | None = None,
    script: Script[Phase] | None = None,
) -> dict[Phase, Simulated]:
    """Replay the phases one after the other.

    Args:
        phases: program of each phase, in run order
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF
        capacity_bytes: what the driver can give; when it is reached, cached memory is given back first [bytes].
            None: without end, nothing is ever given back
        script: of the phases, where they are read already

    Returns: the high-water marks of each phase [bytes]
    Raises: OutOfMemory when a request cannot be served within the capacity, InvalidSpec where no card could be so large
    """
    run = (script or Script(phases)).run
    # Many questions of a search or sweep differ in cards or ranks alone, and their ranks do the same to memory.
    try:
        key = digest(run, f"{alloc_conf} {capacity_bytes}")
    except OverflowError:  # a tensor of 2^63 bytes and more
        raise InvalidSpec("the question is larger than can be answered") from None
    if key not in _known:
        marks = _simulated(phases, run, alloc_conf, capacity_bytes)
        if len(_known) >= MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[key] = marks
    found = _known[key]
    if found is None and capacity_bytes is None:  # one tensor alone is larger than the range that a process reserves
        raise InvalidSpec("the question is larger than can be answered")
    if found is None:
        raise OutOfMemory("a request cannot be served within the capacity")
    return dict(zip(phases, found, strict=True))


def _simulated(
    phases: Mapping[Phase, Program], run: Run, alloc_conf: str, capacity_bytes: int | None
) -> tuple[Simulated, ...] | None:
    """Of each phase, by the gaps between blocks where that can be, else in full; None where memory is out."""
    settings = Settings.parse(alloc_conf) if alloc_conf else _DEFAULTS
    try:
        if settings in (_DEFAULTS, _EXPANDABLE) and all(num_bytes >= 0 for num_bytes, _ in run.requests):
            found = _marks(run, settings.expandable_segments, capacity_bytes)
            if found is not None:
                return tuple(Simulated(*mark) for mark in found)
            if capacity_bytes is None and count_events(run) > MOST_IN_FULL:  # 32 TiB and more, which no card has
                raise InvalidSpec("the question is larger than can be answered")
        return tuple(simulated_in_full(phases, settings, capacity_bytes).values())
    except (OutOfCapacity, OutOfMemory):
        return None


def _marks(run: Run, expands: bool, capacity_bytes: int | None) -> list[tuple[int, int]] | None:
    """Of each phase; None where only the full allocator can tell."""
    try:
        if LOOP.marks is not None:
            return LOOP.marks(run, expands=expands, capacity_bytes=capacity_bytes)
        if not expands or capacity_bytes is None:
            return _by_gaps(run, expands, capacity_bytes)
    except BeyondAddresses:
        pass
    return None


def _by_gaps(run: Run, expands: bool, capacity_bytes: int | None) -> list[tuple[int, int]]:
    gaps = Gaps(run.requests, expands=expands, capacity_bytes=capacity_bytes)
    marks, num_events = [], 0
    for phase in run.phases:
        gaps.reset_peaks()
        num_events += play(run, phase, gaps)
        marks.append((gaps.peak_allocated_bytes, gaps.peak_reserved_bytes))
    LOOP.waited(num_events)
    return marks


def simulated_in_full(
    phases: Mapping[Phase, Program], settings: Settings, capacity_bytes: int | None
) -> dict[Phase, Simulated]:
    """By the allocator with all its options, every event of the program.

    Raises: OutOfMemory when a request cannot be served within the capacity
    """
    device = Device(settings, capacity_bytes)
    marks: dict[Phase, Simulated] = {}
    for phase, program in phases.items():
        device.allocator.reset_peaks()
        device.replay(program)
        marks[phase] = Simulated(device.allocator.peak_allocated_bytes, device.allocator.peak_reserved_bytes)
    return marks


class Device:
    """The allocator of one process, and where its live tensors are."""

    def __init__(self, settings: Settings, capacity_bytes: int | None) -> None:
        self.allocator = allocator.Allocator(settings=settings, capacity_bytes=capacity_bytes)
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


PATIENCE: Final = 8_000_000
"""Events that a process plays interpreted first, four seconds of work: no single question has so many [count]."""


class Loop:
    """The compiled loop, from where it is loaded."""

    def __init__(self) -> None:
        """Not loaded."""
        self.marks: Callable[..., list[tuple[int, int]]] | None = None
        self._patience = PATIENCE

    def load(self) -> bool:
        """Load it now; whether numba is there (the extra `fast`)."""
        if self.marks is None and find_spec("numba") is not None:
            marks = import_module("vramcast.allocator.compiled").marks
            marks(Run([(1, "")], [(0,)], [0]), expands=False, capacity_bytes=None)  # the first run compiles it
            self.marks = marks
        return self.marks is not None

    def waited(self, num_events: int) -> None:
        """So many events were played without it, which may have been the last ones."""
        if self._patience > 0:
            self._patience -= num_events
            if self._patience <= 0:
                self.load()


LOOP: Final = Loop()
"""Of this process."""
