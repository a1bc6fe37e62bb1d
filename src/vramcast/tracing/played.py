"""A tape played through an allocator: what was allocated and reserved after every event, and a recording of it."""

from __future__ import annotations

from array import array
from collections import deque
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.failure import DeviceOutOfMemory
from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.errors import OutOfMemory
from vramcast.recordings.recorder import Recorder
from vramcast.tracing.tape import STEP, Block, Tape


class Failure(NamedTuple):
    """The first request that could not be served."""

    block: Block
    error: DeviceOutOfMemory


class Played(NamedTuple):
    """After each event; shorter than the tape where memory ran out."""

    allocated: array[int]  # "Q" [bytes]
    reserved: array[int]  # "Q" [bytes]
    failure: Failure | None


class Highest(NamedTuple):
    """The highest points among some events."""

    allocated_bytes: int
    reserved_bytes: int
    event: int  # where allocated is highest


class _Asides:
    """What a tape says of other streams, in order: uses of blocks and the moments when those are over."""

    def __init__(self, tape: Tape) -> None:
        self._all = deque(sorted(
            [*((position, 0, block, stream) for position, block, stream in tape.uses),
             *((position, 1, block, 0) for position, block in tape.completions)],
            key=itemgetter(0),
        ))
        self.position = self._all[0][0] if self._all else -1  # of the next, in events

    def play(self, position: int, handles: dict[int, int], allocator: Allocator | Recorder) -> None:
        """Everything at a position."""
        caching, use = (
            (allocator.allocator, allocator.use) if isinstance(allocator, Recorder)
            else (allocator, allocator.record_stream)
        )
        while self._all and self._all[0][0] <= position:
            _, is_over, block, stream = self._all.popleft()
            handle = handles.get(block)
            if handle is None:
                continue
            if not is_over:
                use(handle, stream)
            elif caching.awaits_free(handle):  # else a request that found no room waited for it already
                caching.complete(handle)
        self.position = self._all[0][0] if self._all else -1


def play(tape: Tape, *, settings: Settings | None = None, capacity_bytes: int | None = None) -> Played:
    """The tape on a device that holds nothing.

    Args:
        tape: of the run
        settings: of the caching allocator
        capacity_bytes: what the driver can give; None: without end [bytes]
    """
    allocator = Allocator(settings=settings or Settings(), capacity_bytes=capacity_bytes)
    handles: dict[int, int] = {}
    asides = _Asides(tape)
    allocated, reserved = array("Q"), array("Q")
    for index, event in enumerate(tape.events):
        if asides.position == index:
            asides.play(index, handles, allocator)
        if event > 0:
            block = tape.blocks[event - 1]
            try:
                handles[event - 1] = allocator.allocate(block.num_bytes, block.stream)
            except DeviceOutOfMemory as error:
                return Played(allocated, reserved, Failure(block, error))
        else:
            allocator.free(handles[-event - 1])
        allocated.append(allocator.allocated_bytes)
        reserved.append(allocator.reserved_bytes)
    return Played(allocated, reserved, None)


def highest(played: Played, first: int = 0, end: int | None = None) -> Highest:
    """The highest points among events `first` to `end`, counted with what was there before them."""
    allocated = played.allocated[max(0, first - 1) : end]
    if not allocated:
        return Highest(0, 0, 0)
    most = max(allocated)
    return Highest(most, max(played.reserved[max(0, first - 1) : end]), max(0, first - 1) + allocated.index(most))


def live_after(tape: Tape, event: int) -> list[Block]:
    """The blocks alive after an event, oldest first."""
    return [
        block for block in tape.blocks if block.born <= event and (block.died is None or block.died > event)
    ]


def recording(
    tape: Tape, *, stacks: tuple[tuple[Frame, ...], ...], labels: list[str], name: str,
    settings: Settings | None = None, capacity_bytes: int | None = None, alloc_conf: str = "",
) -> Snapshot:
    """The run as torch's memory history would record it.

    Args:
        tape: of the run
        stacks: which the blocks' origins point into
        labels: of every block, by index: its category
        name: of the recording
        settings: of the caching allocator
        capacity_bytes: what the driver can give; None: without end [bytes]
        alloc_conf: what the recording names as PYTORCH_CUDA_ALLOC_CONF
    """
    recorder = Recorder(settings=settings, capacity_bytes=capacity_bytes)
    handles: dict[int, int] = {}
    asides = _Asides(tape)
    ends = set(tape.step_ends())
    start = 0
    for index, event in enumerate(tape.events):
        if asides.position == index:
            asides.play(index, handles, recorder)
        if event > 0:
            block = tape.blocks[event - 1]
            try:
                handles[event - 1] = recorder.allocate(
                    block.num_bytes, block.stream, stack=stacks[block.origin.stack], label=labels[event - 1]
                )
            except OutOfMemory:
                break
        else:
            recorder.free(handles[-event - 1])
        if index + 1 in ends:
            recorder.annotate(STEP, start)
            start = recorder.clock
    recorded = recorder.snapshot(name=name, format_="vramcast", alloc_conf=alloc_conf)
    device = replace(recorded.devices[0], capacity_bytes=capacity_bytes)
    return replace(recorded, devices=(device,))
