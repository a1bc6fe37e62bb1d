"""A simulated process that records itself as torch records a real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from vramcast.allocator import Allocator, Settings
from vramcast.domain.snapshot import (
    DEFAULT_POOL,
    Action,
    Annotation,
    DeviceSnapshot,
    Frame,
    PoolId,
    SegmentView,
    Snapshot,
    Trace,
)
from vramcast.errors import OutOfMemory

MOST_EVENTS: Final = 1_000_000
"""The newest are kept, as torch's max_entries does."""
_COLUMNS: Final = Trace.__struct_fields__

Stack = tuple[Frame, ...]


class _Live:
    """What a recording has to know of a live block."""

    __slots__ = ("is_used_elsewhere", "label", "num_bytes", "pool", "stack", "stream")

    def __init__(self, num_bytes: int, stream: int, pool: int, stack: int, label: int) -> None:
        self.num_bytes, self.stream, self.pool = num_bytes, stream, pool
        self.stack, self.label = stack, label
        self.is_used_elsewhere = False


class Recorder:
    """An allocator, and the columns of what it did.

    A free has the stack that allocated, unless it is given one of its own. The clock counts events.
    """

    def __init__(
        self, *, settings: Settings | None = None, capacity_bytes: int | None = None, total_bytes: int | None = None,
        most_events: int = MOST_EVENTS,
    ) -> None:
        """A process that has done nothing yet.

        Args:
            capacity_bytes: what the driver can give to the allocator; None: without end [bytes]
            total_bytes: what the driver reports as the size of the card; None: the capacity [bytes]
            most_events: how many are kept, the newest
        """
        self.allocator = Allocator(
            settings=settings or Settings(), capacity_bytes=capacity_bytes, total_bytes=total_bytes,
            observer=self._segment_event,
        )
        self.clock = 0
        self.trace = Trace.empty()
        self.live: dict[int, _Live] = {}  # handle -> what it is
        self.annotations: list[Annotation] = []
        self._capacity, self._most = capacity_bytes, most_events
        self._waiting: dict[int, _Live] = {}
        self._stacks: dict[Stack, int] = {(): 0}
        self._labels = {"": 0}
        self._pools: dict[PoolId, int] = {DEFAULT_POOL: 0}
        self._begun = [0]  # pools that requests go to, the last one now
        self._owners: dict[int, tuple[int, int]] = {}  # where memory was taken -> for which stream and pool
        self._now = 0, 0  # stream and stack that segment events belong to

    def allocate(self, num_bytes: int, stream: int = 0, *, stack: Stack = (), label: str = "") -> int:
        """Serve and record a request.

        Raises: DeviceOutOfMemory, which is recorded as an OOM event.
        """
        place = self._stacks.setdefault(stack, len(self._stacks))
        named = self._labels.setdefault(label, len(self._labels))
        self._now, pool = (stream, place), self._begun[-1]
        try:
            handle = self.allocator.allocate(num_bytes, stream)
        except OutOfMemory:
            self._note_completed()
            free_bytes = max(0, (self._capacity or 0) - self.allocator.reserved_bytes)
            self._add(Action.OOM, free_bytes, _Live(num_bytes, stream, pool, place, named))
            raise
        self._note_completed()
        live = _Live(num_bytes, stream, pool, place, named)
        self._add(Action.ALLOC, handle, live)
        if handle:
            self.live[handle] = live
        return handle

    def record_stream(self, handle: int, stream: int) -> None:
        """Another stream uses a block: see Allocator.record_stream."""
        self.allocator.record_stream(handle, stream)
        live = self.live[handle]
        live.is_used_elsewhere = live.is_used_elsewhere or stream != live.stream

    def free(self, handle: int, *, stack: Stack | None = None) -> None:
        """Take a block back."""
        live = self.live.pop(handle)
        if stack is not None:
            live.stack = self._stacks.setdefault(stack, len(self._stacks))
        self._add(Action.FREE_REQUESTED, handle, live)
        self.allocator.free(handle)
        if live.is_used_elsewhere:
            self._waiting[handle] = live
        else:
            self._add(Action.FREE_COMPLETED, handle, live)

    def awaits_free(self, handle: int) -> bool:
        """Whether a block was freed and waits for another stream."""
        return self.allocator.awaits_free(handle)

    def complete(self, handle: int) -> None:
        """End the wait of one freed block."""
        self.allocator.complete(handle)
        self._note_completed()

    def begin_pool(self, pool: PoolId) -> None:
        """Send all requests to a private pool: see Allocator.begin_pool."""
        self.allocator.begin_pool(pool)
        self._begun.append(self._pools.setdefault(pool, len(self._pools)))

    def end_pool(self, pool: PoolId) -> None:
        """Send them where they went before."""
        self.allocator.end_pool(pool)
        self._begun.remove(self._pools[pool])

    def release_pool(self, pool: PoolId) -> None:
        """One user of a pool less."""
        self.allocator.release_pool(pool)

    def empty_cache(self, *, stack: Stack = ()) -> None:
        """Give everything unused back to the driver."""
        self._now = 0, self._stacks.setdefault(stack, len(self._stacks))
        self.allocator.empty_cache()
        self._note_completed()

    def annotate(self, name: str, start: int) -> None:
        """Mark what happened since a value of the clock."""
        self.annotations.append(Annotation(name, 0, start, self.clock))

    def snapshot(self, *, name: str, format_: str = "torch", alloc_conf: str = "") -> Snapshot:
        """What a dump now would hold."""
        self._trim()
        stacks = {handle: live.stack for handle, live in self.live.items()}
        segments = tuple(_marked(segment, stacks) for segment in self.allocator.segments())
        device = DeviceSnapshot(device=0, trace=self.trace, segments=segments)
        return Snapshot(
            name=name, format=format_, devices=(device,), alloc_conf=alloc_conf, stacks=tuple(self._stacks),
            labels=tuple(self._labels), annotations=tuple(self.annotations), pools=tuple(self._pools),
        )

    def _segment_event(self, action: str, address: int, num_bytes: int) -> None:
        # Waits that a request on a full device brought to an end come before the memory that it gives back.
        self._note_completed()
        done = Action[action.upper()]
        stream, stack = self._now
        if done in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            self._owners[address] = stream, self._begun[-1]
        owner = self._owners.get(address)
        if owner is None:  # pages inside a mapped run
            owner = self._owners[max(owned for owned in self._owners if owned <= address)]
        self._add(done, address, _Live(num_bytes, *owner, stack, 0))

    def _note_completed(self) -> None:
        """Record the ends of waits for other streams that the allocator has found out about."""
        for handle in [handle for handle in self._waiting if not self.allocator.awaits_free(handle)]:
            live = self._waiting.pop(handle)
            self._add(Action.FREE_COMPLETED, handle, live)

    def _add(self, action: Action, address: int, live: _Live) -> None:
        self.trace.add(
            action, address, live.num_bytes, stream=live.stream, time_us=self.clock, stack=live.stack, pool=live.pool,
            label=live.label,
        )
        self.clock += 1
        if len(self.trace) > 2 * self._most:
            self._trim()

    def _trim(self) -> None:
        surplus = len(self.trace) - self._most
        if surplus > 0:
            for column in _COLUMNS:
                del getattr(self.trace, column)[:surplus]


def _marked(segment: SegmentView, stacks: Mapping[int, int]) -> SegmentView:
    """The segment, its live blocks with their stacks."""
    blocks = tuple(
        block if block.is_free else replace(block, stack=stacks.get(block.address, 0)) for block in segment.blocks
    )
    return replace(segment, blocks=blocks)
