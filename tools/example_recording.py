"""A recording of a process that fails by fragmentation, with the figures of the worked example in docs/oom.md.

`python -m tools.example_recording` writes docs/examples/fragmented.pickle.

Fourteen tensors of 1040 MiB (the last 1030) are made and given back to the cache, then as many of 756 MiB (the last
760) are put into their segments: 10,588 MiB (10.34 GiB) live in 14,550 MiB (14.21 GiB) reserved, the largest gap is
284 MiB. Of a card that leaves the process 15,006.5 MiB there are then 456.5 MiB free, and a request of 1,270 MiB
(1.24 GiB) fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vramcast.allocator import Allocator, Settings
from vramcast.domain.snapshot import Action, DeviceSnapshot, Frame, Snapshot, Trace
from vramcast.errors import OutOfMemory
from vramcast.units import MIB

EXAMPLE: Final = Path(__file__).resolve().parent.parent / "docs" / "examples" / "fragmented.pickle"
FIRST = (*[1040 * MIB] * 13, 1030 * MIB)
SECOND = (*[756 * MIB] * 13, 760 * MIB)
FREE = round(456.5 * MIB)
TRIED = 1270 * MIB
CAPACITY = sum(FIRST) + FREE
STACKS = ((), (Frame("forward", "/home/u/model.py", 31), Frame("train", "/home/u/train.py", 12)))


class Recorder:
    """An allocator and what a recording of it would hold."""

    def __init__(self, capacity_bytes: int) -> None:
        self.trace = Trace.empty()
        self.allocator = Allocator(
            settings=Settings.parse(""), capacity_bytes=capacity_bytes,
            observer=lambda action, address, size: self.event(Action[action.upper()], address, size),
        )

    def event(self, action: Action, address: int, size: int, stack: int = 0) -> None:
        trace = self.trace
        trace.actions.append(action)
        trace.addresses.append(address)
        trace.sizes.append(size)
        trace.stacks.append(stack)
        for column in (trace.streams, trace.times_us, trace.pools, trace.labels):
            column.append(0)

    def allocate(self, size: int) -> int:
        handle = self.allocator.allocate(size)
        self.event(Action.ALLOC, handle, size, 1)
        return handle

    def free(self, handle: int, size: int) -> None:
        self.event(Action.FREE_REQUESTED, handle, size)
        self.allocator.free(handle)
        self.event(Action.FREE_COMPLETED, handle, size)

    def fail(self, size: int, free: int) -> None:
        try:
            self.allocator.allocate(size)
        except OutOfMemory:
            self.event(Action.OOM, free, size)
        else:
            raise AssertionError("the request was to fail")


def fragmented() -> Snapshot:
    """The recording; the last event is the failure."""
    process = Recorder(CAPACITY)
    handles = [process.allocate(size) for size in FIRST]
    for handle, size in zip(handles, FIRST, strict=True):
        process.free(handle, size)
    for size in SECOND:
        process.allocate(size)
    process.fail(TRIED, FREE)
    device = DeviceSnapshot(device=0, trace=process.trace, segments=process.allocator.segments())
    return Snapshot(name="fragmented.pickle", format="torch", devices=(device,), stacks=STACKS)


if __name__ == "__main__":
    from vramcast.emit.memory_snapshot import save_snapshot

    save_snapshot(fragmented(), EXAMPLE)
