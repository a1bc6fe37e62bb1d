"""Recordings of the simulated allocator itself: what a snapshot of such a process would hold."""

import random
from collections.abc import Sequence

from msgspec.structs import replace

from vramcast.allocator import Settings
from vramcast.domain.snapshot import Frame, Snapshot, Trace
from vramcast.errors import OutOfMemory
from vramcast.recordings.recorder import Recorder
from vramcast.recordings.start import RecordedDevice
from vramcast.units import GIB, MIB

STREAMS = (0, 0, 0, 7, 9)


class Process(Recorder):
    """A recorder whose failed requests are not raised, and which can be dumped from any event on."""

    def __init__(self, conf: str = "", capacity_bytes: int | None = None, *, waits: bool = True) -> None:
        super().__init__(settings=Settings.parse(conf), capacity_bytes=capacity_bytes, total_bytes=80 * GIB)
        self.conf = conf
        self.waits = waits  # whether tensors are used on other streams

    def request(self, size: int, stream: int = 0, *, stack: Sequence[Frame] = ()) -> int | None:
        """Allocate; None where memory is out."""
        try:
            return self.allocate(size, stream, stack=tuple(stack))
        except OutOfMemory:
            return None

    @property
    def waiting(self) -> list[int]:
        """Blocks that were freed and are in use on another stream."""
        return [block.address for held in self.allocator.segments() for block in held.blocks if block.awaits_free]

    def dump(self, first: int = 0) -> Snapshot:
        """What a dump now would hold, of events from the first on."""
        recorded = self.snapshot(name="simulated", alloc_conf=self.conf)
        device = recorded.devices[0]
        columns = {name: getattr(device.trace, name)[first:] for name in Trace.__struct_fields__}
        return replace(recorded, devices=(replace(device, trace=Trace(**columns)),))


def device_of(snapshot: Snapshot | Process) -> RecordedDevice:
    """The one device of a recording, or of what a dump now would hold."""
    snapshot = snapshot.dump() if isinstance(snapshot, Process) else snapshot
    return RecordedDevice(snapshot, snapshot.devices[0])


def run(process: Process, rng: random.Random, num_calls: int) -> None:
    """Random calls: tensors of all sizes on several streams, caches given back, waits."""
    for _ in range(num_calls):
        kind = rng.random()
        if kind < 0.5:
            size = int(2 ** rng.uniform(4, 26)) if rng.random() < 0.7 else rng.randrange(1, 40) * MIB
            handle = process.request(size, rng.choice(STREAMS))
            if handle is not None and process.waits and rng.random() < 0.1:
                process.record_stream(handle, 1000)
        elif kind < 0.93 and process.live:
            process.free(rng.choice(list(process.live)))
        elif kind < 0.96:
            for handle in process.waiting:
                process.complete(handle)
        elif kind < 0.98:
            process.empty_cache()
