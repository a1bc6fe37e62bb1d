"""A rank's run as a recording: the same nouns that memory snapshots are read into, so one viewer shows both.

Every tensor of the program is one allocation; its stack is its name and owner, then its phase; its label the
category. The clock counts events: a program says in which order things happen, not when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.allocator import Allocator, Settings
from vramcast.domain.job import Phase
from vramcast.domain.program import Program, Tensor, events
from vramcast.domain.snapshot import (
    Action,
    Annotation,
    DeviceSnapshot,
    Frame,
    SegmentView,
    Snapshot,
    Trace,
)
from vramcast.errors import OutOfMemory

MOST_EVENTS: Final = 1_000_000
"""The newest are kept, as torch's max_entries does."""
_COLUMNS: Final = Trace.__struct_fields__


def record(
    phases: Mapping[Phase, Program], *, name: str, alloc_conf: str = "", capacity_bytes: int | None = None,
    card_bytes: int | None = None, most_events: int = MOST_EVENTS,
) -> Snapshot:
    """The phases, one after the other, as a recording of one device.

    Leaves out rounds of a loop after the second, where each leaves memory as it found it; and what happens after an
    allocation failed, which ends the recording with an OOM event.

    Args:
        phases: program of each phase, in run order
        name: of the recording
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF
        capacity_bytes: what the driver can give to the allocator; None: without end [bytes]
        card_bytes: what the recording names as the capacity of the card [bytes]
        most_events: how many are kept
    """
    recorder = _Recorder(Settings.parse(alloc_conf) if alloc_conf else Settings(), capacity_bytes, most_events)
    spans = []
    for phase, program in phases.items():
        start = recorder.clock
        is_complete = recorder.play(phase, program)
        spans.append(Annotation(phase.value, 0, start, recorder.clock))
        if not is_complete:
            break
    device = DeviceSnapshot(
        device=0, trace=recorder.kept(), segments=tuple(recorder.segments()), capacity_bytes=card_bytes
    )
    return Snapshot(
        name=name, format="vramcast", devices=(device,), alloc_conf=alloc_conf, stacks=tuple(recorder.stacks),
        labels=tuple(recorder.labels), annotations=tuple(spans), remarks=tuple(recorder.remarks()),
    )  # fmt: skip


class _Live(NamedTuple):
    address: int
    stack: int
    label: int


class _Recorder:
    """The allocator of the process, what it holds, and the columns of what it did."""

    def __init__(self, settings: Settings, capacity_bytes: int | None, most_events: int) -> None:
        self.stacks: list[tuple[Frame, ...]] = [()]
        self.labels = [""]
        self.clock = 0
        self.is_full = False
        self._capacity, self._most = capacity_bytes, most_events
        self._trace = Trace.empty()
        self._allocator = Allocator(settings=settings, capacity_bytes=capacity_bytes, observer=self._segment_event)
        self._streams: dict[str, int] = {"": 0}  # name -> number, the default stream first
        self._stream = 0  # which asks
        self._owners: dict[int, int] = {}  # where memory was taken -> for which stream
        self._live: dict[Tensor, list[_Live]] = {}
        self._stack_of: dict[tuple[Frame, ...], int] = {(): 0}
        self._label_of = {"": 0}

    def play(self, phase: Phase, program: Program) -> bool:
        """Run one phase; False where memory ran out."""
        for tensor, is_allocation in events(program):
            if not tensor.num_bytes:
                continue
            if not is_allocation:
                self._free(tensor)
            elif not self._allocate(tensor, phase):
                self.is_full = True
                return False
        return True

    def segments(self) -> Iterator[SegmentView]:
        """What is held at the end, with the stacks of what is live."""
        stacks = {live.address: live.stack for many in self._live.values() for live in many}
        return (_marked(view, stacks) for view in self._allocator.segments())

    def kept(self) -> Trace:
        """The newest events."""
        self._trim(self._most)
        return self._trace

    def remarks(self) -> Iterator[str]:
        """What a reader should know of it."""
        yield "predicted: times count events, they are not microseconds"
        left_out = self.clock - len(self._trace)
        if left_out:
            yield f"the first {left_out:,} of {self.clock:,} events are left out, as max_entries does"
        if self.is_full:
            yield "memory runs out: the recording ends there"

    def _allocate(self, tensor: Tensor, phase: Phase) -> bool:
        stack, label = self._stack(tensor, phase), self._label(tensor.category.value)
        self._stream = stream = self._streams.setdefault(tensor.stream, len(self._streams))
        try:
            address = self._allocator.allocate(tensor.num_bytes, stream)
        except OutOfMemory:
            free_bytes = (self._capacity or 0) - self._allocator.reserved_bytes
            self._add(Action.OOM, max(0, free_bytes), tensor.num_bytes, stream, stack, label)
            return False
        self._add(Action.ALLOC, address, tensor.num_bytes, stream, stack, label)
        self._live.setdefault(tensor, []).append(_Live(address, stack, label))
        return True

    def _free(self, tensor: Tensor) -> None:
        live = self._live[tensor].pop()
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            self._add(action, live.address, tensor.num_bytes, self._streams[tensor.stream], live.stack, live.label)
        self._allocator.free(live.address)

    def _segment_event(self, action: str, address: int, num_bytes: int) -> None:
        done = Action[action.upper()]
        if done in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            self._owners[address] = self._stream
        stream = self._owners.get(address)
        if stream is None:  # pages inside a mapped run
            stream = self._owners[max(owned for owned in self._owners if owned <= address)]
        self._add(done, address, num_bytes, stream, 0, 0)

    def _stack(self, tensor: Tensor, phase: Phase) -> int:
        owner = (Frame(tensor.owner, "", 0),) if tensor.owner else ()
        stack = (Frame(tensor.name, "", 0), *owner, Frame(phase.value, "", 0))
        found = self._stack_of.get(stack)
        if found is None:
            found = self._stack_of[stack] = len(self.stacks)
            self.stacks.append(stack)
        return found

    def _label(self, category: str) -> int:
        if category not in self._label_of:
            self._label_of[category] = len(self.labels)
            self.labels.append(category)
        return self._label_of[category]

    def _add(self, action: Action, address: int, size: int, stream: int, stack: int, label: int) -> None:
        trace = self._trace
        trace.actions.append(action)
        trace.addresses.append(address)
        trace.sizes.append(size)
        trace.streams.append(stream)
        trace.times_us.append(self.clock)
        trace.stacks.append(stack)
        trace.pools.append(0)
        trace.labels.append(label)
        self.clock += 1
        if len(trace) > 2 * self._most:
            self._trim(self._most)

    def _trim(self, most: int) -> None:
        surplus = len(self._trace) - most
        if surplus > 0:
            for column in _COLUMNS:
                del getattr(self._trace, column)[:surplus]


def _marked(segment: SegmentView, stacks: Mapping[int, int]) -> SegmentView:
    """The segment, its live blocks with their stacks."""
    blocks = tuple(
        block if block.is_free else replace(block, stack=stacks.get(block.address, 0)) for block in segment.blocks
    )
    return replace(segment, blocks=blocks)
