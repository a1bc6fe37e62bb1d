"""Blocks that their owner freed while other streams may still use them.

How far the GPU is decides when such a block becomes free: it is the only input of the allocator that a record of
its calls does not hold. Callers say it: `reach` for a stream, `complete` for one block.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: insert_events, process_events, synchronize_and_free_events,
insert_events_deferred_until_no_capture
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vramcast.allocator.blocks import Block, ForeignUse


def record_use(block: Block, stream: int, *, is_capturing: bool) -> None:
    """Note that a stream uses the block; its own stream needs no note."""
    if stream == block.pool.stream:
        return
    if block.foreign is None:
        block.foreign = ForeignUse()
    if stream not in block.foreign.streams:
        block.foreign.streams.append(stream)
    if is_capturing:
        block.foreign.captured.add(stream)


class AwaitedFrees:
    """Events on foreign streams, in the order in which they were recorded, and frees put off by a capture."""

    def __init__(self, free: Callable[[Block], None]) -> None:
        """None yet.

        Args:
            free: completes the free of a block whose events are over
        """
        self._free = free
        self._waiting: dict[ForeignUse, Block] = {}
        self._queues: dict[int, deque[ForeignUse]] = {}  # stream -> one per event; some may wait no longer
        self._reached: dict[int, int] = {}  # stream -> events at the front that are over
        self._deferred: list[ForeignUse] = []

    def __bool__(self) -> bool:
        """Whether any block waits."""
        return bool(self._waiting)

    def add(self, block: Block, *, is_capturing: bool) -> None:
        """A freed block with foreign uses: events are recorded, after the capture where one is under way."""
        foreign = block.foreign
        assert foreign is not None
        self._waiting[foreign] = block
        if is_capturing:
            self._deferred.append(foreign)
        else:
            self._record(foreign)

    def _record(self, foreign: ForeignUse) -> None:
        for stream in foreign.streams:
            self._queues.setdefault(stream, deque()).append(foreign)
        foreign.num_events = len(foreign.streams)
        if not foreign.num_events:
            self._end(foreign)

    def _record_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for foreign in deferred:
            if foreign in self._waiting:
                # What a capture recorded is over when the capture is: the graph orders its streams itself.
                foreign.streams = [stream for stream in foreign.streams if stream not in foreign.captured]
                self._record(foreign)

    def reach(self, stream: int | None) -> None:
        """The GPU has done what was recorded on a stream so far, or on all."""
        for queued in list(self._queues) if stream is None else [stream]:
            if queued in self._queues:
                self._reached[queued] = len(self._queues[queued])

    def poll(self) -> None:
        """Free what is known to be over: at the start of every request outside captures."""
        self._record_deferred()
        reached, self._reached = self._reached, {}
        for stream, count in reached.items():
            queue = self._queues[stream]
            over = [queue.popleft() for _ in range(min(count, len(queue)))]
            for foreign in over:
                foreign.num_events -= 1
                if not foreign.num_events and foreign in self._waiting:
                    self._end(foreign)

    def synchronize(self) -> None:
        """Wait for everything."""
        self._record_deferred()
        self.reach(None)
        self.poll()

    def complete(self, block: Block) -> None:
        """Free one block now, whatever its place in the queues."""
        assert block.foreign is not None
        self._end(block.foreign)

    def _end(self, foreign: ForeignUse) -> None:
        self._free(self._waiting.pop(foreign))
        if not self._waiting:  # what is left in the queues was completed before its turn
            for queue in self._queues.values():
                queue.clear()
