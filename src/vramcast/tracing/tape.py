"""What a run asked of one device, in order: every block, who asked for it, when it came and went; and the tape played.

Played through an allocator, a tape says what was allocated and reserved after every event, and becomes a recording.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum, StrEnum
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.failure import DeviceOutOfMemory
from vramcast.domain.program import Category
from vramcast.domain.snapshot import PREDICTED, Frame, PoolId, Snapshot, Trace
from vramcast.recordings.recorder import Recorder
from vramcast.timing.roofline import Operation

STEP: Final = "step"  # the name of marks behind a step
LATER: Final = "later"  # the name of the mark behind the steps that count: what comes is evaluation, or the next epoch
BACKWARD: Final = "backward"  # the name of marks behind a backward, in runs without an optimizer of torch.optim


class Phase(StrEnum):
    """What the run was doing."""

    SETUP = "setup"  # before the first forward
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


UNTOLD: Final = (None, Category.INPUTS)
"""Categories that say nothing of who holds a block: weights were copied to the device, too."""


class Origin(Struct, frozen=True, gc=False, array_like=True):
    """Who asked for a block. Stacks are indices into the run's `Stacks`."""

    phase: Phase
    module: str  # qualified name of the innermost module, "" outside of all
    stack: int  # where Python was
    forward_stack: int  # of a backward operator: where its forward was; else the same as `stack`


class Block(Struct, eq=False, gc=False, array_like=True):
    """One allocation. Positions count events of its tape."""

    index: int  # in the tape
    num_bytes: int  # as requested
    stream: int
    operator: str  # "aten.mm.default"
    origin: Origin
    born: int
    died: int | None = None  # None: alive at the end
    category: Category | None = None  # where the run knows it: from a rule, or from who holds the block
    name: str = ""  # of the parameter, state or workspace, where there is one
    handle: int = 0  # of the live allocator


class Action(IntEnum):
    """What a run told the allocator beside its requests and frees."""

    USE = 0  # another stream uses a block
    COMPLETE = 1  # the other streams of a freed block are done
    EMPTY_CACHE = 2  # what is unused goes back to the driver
    BEGIN_POOL = 3  # requests go to a private pool from now on: a capture of a graph
    END_POOL = 4
    RELEASE_POOL = 5  # a graph is gone
    REFUSED = 6  # a request that found no room


class Aside(NamedTuple):
    """One of these, and when."""

    position: int  # events before it
    action: Action
    block: int = -1  # index, of USE and COMPLETE
    number: int = 0  # stream of USE, number of a pool, bytes of REFUSED
    stream: int = 0  # of REFUSED
    stack: int = 0  # of REFUSED, index into the run's `Stacks`


class Called(NamedTuple):
    """One call of an operator, where a run writes them down: see `varied.calls`."""

    begin: int  # events before it
    end: int  # events before its end
    template: str  # the operator and what its arguments are
    ints: tuple[int, ...]  # sizes, strides and other integers among them
    floats: tuple[float, ...]


class Mark(NamedTuple):
    """A moment that has a name."""

    position: int  # events before it
    name: str
    optimizer: int = 0  # whose step ended, numbered from 1; 0: the caller says so
    operations: int = 0  # before it


class Tape(Struct, eq=False, gc=False):
    """The blocks and events of one device.

    An event is the index of the block plus one, negative where it is freed.
    """

    blocks: list[Block] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    asides: list[Aside] = field(default_factory=list)
    freed_at: dict[int, int] = field(default_factory=dict)
    """Index of a block -> index of the stack that freed it, where a script asked for that."""
    operations: list[int] = field(default_factory=list)
    """What ran on the card, in order: indices of `costs`."""
    costs: list[Operation] = field(default_factory=list)
    """Every distinct operation once."""
    _known: dict[Operation, int] = field(default_factory=dict)
    calls: list[Called] = field(default_factory=list)
    """Where a run writes them down, in order."""

    def add(self, num_bytes: int, stream: int, operator: str, origin: Origin) -> Block:
        block = Block(len(self.blocks), num_bytes, stream, operator, origin, len(self.events))
        self.blocks.append(block)
        self.events.append(block.index + 1)
        return block

    def end(self, block: Block) -> None:
        block.died = len(self.events)
        self.events.append(-block.index - 1)

    def tell(self, action: Action, *, block: int = -1, number: int = 0) -> None:
        self.asides.append(Aside(len(self.events), action, block, number))

    def refuse(self, num_bytes: int, stream: int, origin: Origin) -> None:
        self.asides.append(
            Aside(len(self.events), Action.REFUSED, number=num_bytes, stream=stream, stack=origin.stack)
        )

    def mark(self, name: str, optimizer: int = 0) -> None:
        self.marks.append(Mark(len(self.events), name, optimizer, len(self.operations)))

    def moments(self) -> dict[int, list[Mark | Aside]]:
        """What it has beside events, by position."""
        found: dict[int, list[Mark | Aside]] = {}
        every: list[Mark | Aside] = [*self.asides, *self.marks]
        for moment in every:
            found.setdefault(moment.position, []).append(moment)
        return found

    def ran(self, operation: Operation) -> None:
        """A kernel, or something else that takes time."""
        index = self._known.setdefault(operation, len(self.costs))
        if index == len(self.costs):
            self.costs.append(operation)
        self.operations.append(index)

    def last_step(self) -> list[Operation]:
        """What ran in the last step; empty where none was marked."""
        ends = self._steps()
        if not ends:
            return []
        begin = ends[-2].operations if len(ends) > 1 else 0
        found = [self.costs[index] for index in self.operations[begin : ends[-1].operations]]
        return found if len(ends) > 1 else [one for one in found if one.phase != Phase.SETUP]

    def step_ends(self) -> tuple[int, ...]:
        """Where steps end: positions among its events."""
        return tuple(mark.position for mark in self._steps())

    def _steps(self) -> list[Mark]:
        """Where steps end: where the caller says so, else with the step of the optimizer that makes fewest. Without
        any, a backward ends a step.

        Several optimizers share a step: one for matrices and one for the rest, one a parameter within backward,
        generator and discriminator. Of those that make as many, the last ends it.
        """
        counted = list(takewhile(lambda mark: mark.name != LATER, self.marks))
        marks = [mark for mark in counted if mark.name == STEP] or counted
        own = [mark for mark in marks if not mark.optimizer]
        if own or not marks:
            return own
        counts = Counter(mark.optimizer for mark in marks)
        last_of = {mark.optimizer: index for index, mark in enumerate(marks)}
        slowest = min(counts, key=lambda each: (counts[each], -last_of[each]))
        ends = [mark for mark in marks if mark.optimizer == slowest]
        return [*ends[:-1], marks[-1]]  # what others did since is part of the last step


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


def play(tape: Tape, *, settings: Settings | None = None, capacity_bytes: int | None = None) -> Played:
    """The tape on a device that holds nothing; capacity: what the driver can give, None: without end [bytes]."""
    allocator = Allocator(settings=settings or Settings(), capacity_bytes=capacity_bytes)
    allocated, reserved = array("Q"), array("Q")
    blocks, allocate = tape.blocks, allocator.allocate

    def refuse(aside: Aside) -> None:
        if capacity_bytes is not None:  # what the card had no room for is no part of a run that has all it needs
            with suppress(DeviceOutOfMemory):
                allocator.free(allocate(aside.number, aside.stream))

    walk = _walk(
        tape, allocator, lambda index: allocate(blocks[index].num_bytes, blocks[index].stream), allocator.free, refuse
    )
    try:
        for _ in walk:
            allocated.append(allocator.allocated_bytes)
            reserved.append(allocator.reserved_bytes)
    except DeviceOutOfMemory as error:
        block = blocks[tape.events[len(allocated)] - 1]
        return Played(allocated, reserved, Failure(block, error))
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
    settings: Settings | None = None, capacity_bytes: int | None = None, alloc_conf: str = "", first: int = 0,
    has_stack: Callable[[int], bool] = lambda _position: True,
) -> Snapshot:
    """The run as torch's memory history would record it.

    Args:
        tape: of the run
        stacks: which the blocks' origins point into
        labels: of every block, by index: its category
        first: events of the tape that the recording leaves out
        has_stack: whether an allocation at this position of the tape is recorded with its stack
    """
    recorder = Recorder(settings=settings, capacity_bytes=capacity_bytes)
    ends = set(tape.step_ends())
    start = kept_from = 0
    indices: dict[int, int] = {}  # handle -> index of its block

    def allocate(index: int) -> int:
        block = tape.blocks[index]
        stack = stacks[block.origin.stack] if has_stack(block.born) else ()
        handle = recorder.allocate(block.num_bytes, block.stream, stack=stack, label=labels[index])
        indices[handle] = index
        return handle

    def free(handle: int) -> None:
        freed_at = tape.freed_at.get(indices.pop(handle))
        recorder.free(handle, stack=None if freed_at is None else stacks[freed_at])

    def refuse(aside: Aside) -> None:
        if capacity_bytes is not None:
            with suppress(DeviceOutOfMemory):  # it is in the recording
                recorder.free(recorder.allocate(aside.number, aside.stream, stack=stacks[aside.stack]))

    try:
        for events in _walk(tape, recorder, allocate, free, refuse):
            if events == first:
                kept_from = recorder.clock
            if events in ends:
                recorder.annotate(STEP, start)
                start = recorder.clock
    except DeviceOutOfMemory:
        pass  # it is in the recording
    recorded = recorder.snapshot(name=name, format_=PREDICTED, alloc_conf=alloc_conf)
    trace = recorded.devices[0].trace
    if first:
        kept = slice(kept_from if first <= len(tape.events) else len(trace), None)
        trace = Trace(**{name: getattr(trace, name)[kept] for name in Trace.__struct_fields__})
    device = replace(recorded.devices[0], capacity_bytes=capacity_bytes, trace=trace)
    return replace(recorded, devices=(device,))


def bare(frame: Frame) -> Frame:
    """With the plain name of its function, as torch records it.

    [pytorch] torch/csrc/profiler/python/combined_traceback.cpp
    """
    return replace(frame, name=frame.name.rpartition(".")[2])


class _Told(Protocol):
    """What takes asides: an allocator, or a recorder of one."""

    def record_stream(self, handle: int, stream: int, /) -> None: ...
    def awaits_free(self, handle: int, /) -> bool: ...
    def complete(self, handle: int, /) -> None: ...
    def empty_cache(self) -> None: ...
    def begin_pool(self, pool: PoolId, /) -> None: ...
    def end_pool(self, pool: PoolId, /) -> None: ...
    def release_pool(self, pool: PoolId, /) -> None: ...


def _walk(
    tape: Tape, told: _Told, allocate: Callable[[int], int], free: Callable[[int], None],
    refuse: Callable[[Aside], None],
) -> Iterator[int]:
    """The only way through a tape: blocks are served by index, freed by handle; yields how many events there were."""
    handles: dict[int, int] = {}
    asides = iter(tape.asides)
    aside = next(asides, None)
    for position, event in enumerate(tape.events):
        while aside is not None and aside.position <= position:
            _tell(told, aside, handles, refuse)
            aside = next(asides, None)
        if event > 0:
            handles[event - 1] = allocate(event - 1)
        else:
            free(handles[-event - 1])
        yield position + 1
    while aside is not None:
        _tell(told, aside, handles, refuse)
        aside = next(asides, None)


def _tell(told: _Told, aside: Aside, handles: dict[int, int], refuse: Callable[[Aside], None]) -> None:
    match aside.action:
        case Action.REFUSED:
            refuse(aside)
        case Action.USE:
            told.record_stream(handles[aside.block], aside.number)
        case Action.COMPLETE:
            if told.awaits_free(handles[aside.block]):  # else a request that found no room waited for it already
                told.complete(handles[aside.block])
        case Action.EMPTY_CACHE:
            told.empty_cache()
        case Action.BEGIN_POOL:
            told.begin_pool((0, aside.number))
        case Action.END_POOL:
            told.end_pool((0, aside.number))
        case Action.RELEASE_POOL:
            told.release_pool((0, aside.number))
