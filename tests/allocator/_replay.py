"""Feeds the events of a snapshot to an allocator and counts where it does as the real one did."""

from __future__ import annotations

from collections import deque

from vramcast.allocator import Allocator
from vramcast.errors import OutOfMemory

from ._snapshot import Event, Snapshot

_NOWHERE = 1 << 60


class Replay:
    """One run; the driver answers with the addresses that the real driver gave."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Run the whole trace."""
        self.allocations = self.addresses_matched = 0
        self.segment_events = self.segments_matched = self.segments_surplus = 0
        self._pending: deque[Event] = deque()  # segment events of the trace since its last other event
        self._handles: dict[int, int] = {}
        self._unknown_address = _NOWHERE
        self.allocator = Allocator(settings=snapshot.settings, driver=self._give, observer=self._compare)
        start = snapshot.start()
        self.allocator.restore(start)
        self._handles.update((b.address, b.address) for s in start for b in s.blocks if not b.is_free)
        for action, address, size in snapshot.events:
            self._step(action, address, size)
        self._flush()

    def _step(self, action: str, address: int, size: int) -> None:
        if action.startswith("segment_"):
            self._pending.append((action, address, size))
            self.segment_events += 1
        elif action == "alloc":
            if self._pending and self._pending[-1][0] == "segment_free":
                self._flush()  # returned by empty_cache, as no new segment followed
            handle = self.allocator.allocate(size)
            self._handles[address] = handle
            self.allocations += 1
            self.addresses_matched += handle == address
            self._pending.clear()  # what is left did not happen here: unmatched
        elif action == "free_completed":
            self._flush()
            self.allocator.free(self._handles.pop(address))

    def _flush(self) -> None:
        if self._pending:
            self.allocator.empty_cache()
            self._pending.clear()

    def _give(self, size: int) -> int:
        if self._pending and self._pending[0][0] == "segment_free":
            raise OutOfMemory  # the real device was full here: it released its cache first
        if self._pending and self._pending[0][2] == size:
            return self._pending[0][1]
        self._unknown_address += size
        return self._unknown_address

    def _compare(self, action: str, address: int, size: int) -> None:
        if self._pending and self._pending[0] == (action, address, size):
            self._pending.popleft()
            self.segments_matched += 1
        else:
            self.segments_surplus += 1
