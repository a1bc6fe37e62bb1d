"""A recording of a process that fails by fragmentation, with the figures of the worked example in docs/oom.md.

`python -m tools.example_recording` writes docs/examples/fragmented.pickle.

Fourteen tensors of 1040 MiB (the last 1030) are made and given back to the cache, then as many of 756 MiB (the last
760) are put into their segments: 10,588 MiB (10.34 GiB) live in 14,550 MiB (14.21 GiB) reserved, the largest gap is
284 MiB. Of a card that leaves the process 15,006.5 MiB there are then 456.5 MiB free, and a request of 1,270 MiB
(1.24 GiB) fails.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from vramcast.domain.snapshot import Frame, Snapshot
from vramcast.errors import OutOfMemory
from vramcast.recordings.recorder import Recorder
from vramcast.units import MIB

EXAMPLE: Final = Path(__file__).resolve().parent.parent / "docs" / "examples" / "fragmented.pickle"
FIRST = (*[1040 * MIB] * 13, 1030 * MIB)
SECOND = (*[756 * MIB] * 13, 760 * MIB)
FREE = round(456.5 * MIB)
TRIED = 1270 * MIB
CAPACITY = sum(FIRST) + FREE
STACK = (Frame("forward", "/home/u/model.py", 31), Frame("train", "/home/u/train.py", 12))


def fragmented() -> Snapshot:
    """The recording; the last event is the failure."""
    process = Recorder(capacity_bytes=CAPACITY)
    for handle in [process.allocate(size, stack=STACK) for size in FIRST]:
        process.free(handle)
    for size in SECOND:
        process.allocate(size, stack=STACK)
    with suppress(OutOfMemory):
        process.allocate(TRIED, stack=STACK)
        raise AssertionError("the request was to fail")
    return process.snapshot(name=EXAMPLE.name)


if __name__ == "__main__":
    from vramcast.emit.memory_snapshot import save_snapshot

    save_snapshot(fragmented(), EXAMPLE)
