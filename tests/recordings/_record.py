"""Recordings of the simulated allocator itself: what a snapshot of such a process would hold."""

from __future__ import annotations

import random

from vramcast.allocator import Allocator, Settings
from vramcast.domain.snapshot import Action, DeviceSnapshot, Snapshot, Trace
from vramcast.errors import OutOfMemory
from vramcast.units import GIB, MIB

STREAMS = (0, 0, 0, 7, 9)


class Process:
    """An allocator whose calls are recorded as torch records them."""

    def __init__(self, conf: str = "", capacity_bytes: int | None = None, *, waits: bool = True) -> None:
        self.conf = conf
        self.waits = waits  # whether tensors are used on other streams
        self.trace = Trace.empty()
        self.allocator = Allocator(
            settings=Settings.parse(conf), capacity_bytes=capacity_bytes, total_bytes=80 * GIB,
            observer=self._segment_event,
        )
        self.live: dict[int, tuple[int, int]] = {}  # handle -> requested bytes, stream
        self.used: set[int] = set()  # handles that another stream uses
        self.waiting: dict[int, tuple[int, int]] = {}
        self._stream = 0
        self._owners: dict[int, int] = {}  # where memory was taken -> for which stream

    def event(self, action: Action, address: int, size: int, stream: int) -> None:
        trace = self.trace
        trace.actions.append(action)
        trace.addresses.append(address)
        trace.sizes.append(size)
        trace.streams.append(stream)
        for column in (trace.times_us, trace.stacks, trace.pools, trace.labels):
            column.append(0)

    def _segment_event(self, action: str, address: int, size: int) -> None:
        # Freeing what waited comes first in a real record, too: events are waited for before memory is given back.
        self.note_completed()
        if action in ("segment_alloc", "segment_map"):
            self._owners[address] = self._stream
        start = max(owned for owned in self._owners if owned <= address)
        self.event(Action[action.upper()], address, size, self._owners[start])

    def note_completed(self) -> None:
        """Record the ends of waits that a poll or a synchronisation brought about."""
        for handle in [handle for handle in self.waiting if not self.allocator.awaits_free(handle)]:
            size, stream = self.waiting.pop(handle)
            self.event(Action.FREE_COMPLETED, handle, size, stream)

    def allocate(self, size: int, stream: int = 0) -> int | None:
        self._stream = stream
        try:
            handle = self.allocator.allocate(size, stream)
        except OutOfMemory:
            self.note_completed()
            self.event(Action.OOM, 0, size, stream)
            return None
        self.note_completed()
        self.event(Action.ALLOC, handle, size, stream)
        self.live[handle] = size, stream
        return handle

    def free(self, handle: int) -> None:
        size, stream = self.live.pop(handle)
        self.event(Action.FREE_REQUESTED, handle, size, stream)
        self.allocator.free(handle)
        if handle in self.used:
            self.used.discard(handle)
            self.waiting[handle] = size, stream
        else:
            self.event(Action.FREE_COMPLETED, handle, size, stream)

    def empty_cache(self) -> None:
        self._stream = 0
        self.allocator.empty_cache()
        self.note_completed()

    def snapshot(self, first: int = 0) -> Snapshot:
        """What a dump now would hold, of events from the first on."""
        columns = {name: getattr(self.trace, name)[first:] for name in self.trace.__struct_fields__}
        device = DeviceSnapshot(device=0, trace=Trace(**columns), segments=self.allocator.segments())
        return Snapshot(name="simulated", format="vramcast", devices=(device,), alloc_conf=self.conf)


def run(process: Process, rng: random.Random, num_calls: int) -> None:
    """Random calls: tensors of all sizes on several streams, caches given back, waits."""
    for _ in range(num_calls):
        kind = rng.random()
        if kind < 0.5:
            size = int(2 ** rng.uniform(4, 26)) if rng.random() < 0.7 else rng.randrange(1, 40) * MIB
            handle = process.allocate(size, rng.choice(STREAMS))
            if handle is not None and process.waits and rng.random() < 0.1:
                process.allocator.record_stream(handle, 1000)
                process.used.add(handle)
        elif kind < 0.93 and process.live:
            process.free(rng.choice(list(process.live)))
        elif kind < 0.96:
            process.allocator.reach()
        elif kind < 0.98:
            process.empty_cache()
