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
        self._queues: dict[int, deque[Block]] = {}  # stream -> a block per event
        self._reached: dict[int, int] = {}  # stream -> events at the front that are over
        self._deferred: list[Block] = []

    def __bool__(self) -> bool:
        """Whether any block waits."""
        return bool(self._queues or self._deferred)

    def add(self, block: Block, *, is_capturing: bool) -> None:
        """A freed block with foreign uses: events are recorded, after the capture where one is under way."""
        if is_capturing:
            self._deferred.append(block)
        else:
            self._record(block)

    def _record(self, block: Block) -> None:
        foreign = block.foreign
        assert foreign is not None
        for stream in foreign.streams:
            self._queues.setdefault(stream, deque()).append(block)
        foreign.num_events = len(foreign.streams)
        if not foreign.num_events:
            self._free(block)

    def _record_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for block in deferred:
            foreign = block.foreign
            assert foreign is not None
            # What a capture recorded is over when the capture is: the graph orders its streams itself.
            foreign.streams = [stream for stream in foreign.streams if stream not in foreign.captured]
            self._record(block)

    def reach(self, stream: int | None) -> None:
        """The GPU has done what was recorded on a stream so far, or on all."""
        for queued in list(self._queues) if stream is None else [stream]:
            if queued in self._queues:
                self._reached[queued] = len(self._queues[queued])

    def poll(self) -> None:
        """Free what is known to be over: at the start of every request outside captures."""
        self._record_deferred()
        for stream, count in self._reached.items():
            queue = self._queues[stream]
            for _ in range(count):
                self._end_event(queue.popleft())
            if not queue:
                del self._queues[stream]
        self._reached.clear()

    def synchronize(self) -> None:
        """Wait for everything."""
        self._record_deferred()
        self.reach(None)
        self.poll()

    def complete(self, block: Block) -> None:
        """Free one block now, whatever its place in the queues."""
        for stream, queue in list(self._queues.items()):
            if block in queue:
                before_end = list(queue)[: self._reached.get(stream, 0)]
                if stream in self._reached:
                    self._reached[stream] -= before_end.count(block)
                self._queues[stream] = kept = deque(other for other in queue if other is not block)
                if not kept:
                    del self._queues[stream]
                    self._reached.pop(stream, None)
        self._deferred = [other for other in self._deferred if other is not block]
        self._free(block)

    def _end_event(self, block: Block) -> None:
        foreign = block.foreign
        assert foreign is not None
        foreign.num_events -= 1
        if not foreign.num_events:
            self._free(block)
