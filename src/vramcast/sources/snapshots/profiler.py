"""Profiler traces (Kineto, Chrome's Trace Event Format) with `[memory]` events, as `profile_memory=True` writes them.

Their sizes are those of blocks, rounded; segments are not listed. The stack of an event is what was running on its
thread: operators, annotations and, with `with_stack=True`, Python functions.
[kineto] pytorch torch/csrc/profiler/kineto_shim.cpp and collection.cpp, `[memory]`, `[OutOfMemory]`
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from msgspec import Raw, Struct, field

from vramcast.domain.snapshot import Action, Annotation, DeviceSnapshot, SizesAre, Snapshot, Trace
from vramcast.sources.snapshots.json_stream import JsonStream
from vramcast.sources.snapshots.limits import LARGEST_ADDRESS, LARGEST_SIZE, MOST_DEVICES
from vramcast.sources.snapshots.spans import Spans
from vramcast.sources.snapshots.tables import Damaged, Tables, integer

MEMORY: Final = "[memory]"
OUT_OF_MEMORY: Final = "[OutOfMemory]"
_CPU: Final = 0  # c10::DeviceType
_RUNNING: Final = frozenset({"cpu_op", "user_annotation", "python_function", "Operator"})
_ANNOTATIONS: Final = frozenset({"user_annotation"})
_LATEST_US: Final = 2.0**62


class _Entry(Struct):
    """One event of the file."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | float | str = 0
    tid: int | float | str = 0
    args: Raw = field(default_factory=Raw)


class _Memory(Struct):
    """What a `[memory]` event says; frees have negative bytes."""

    num_bytes: int = field(name="Bytes")
    device_type: int = field(name="Device Type")
    device: int = field(name="Device Id", default=0)
    address: int | str = field(name="Addr", default=0)



class ProfilerTrace:
    """A profiler trace while it is read."""

    def __init__(self, tables: Tables) -> None:
        """Nothing read yet."""
        self.properties: Any = None
        self._tables = tables
        self._spans = Spans(tables)
        self._times = array("d")
        self._threads = array("I")
        self._addresses = array("Q")
        self._bytes = array("q")
        self._devices = array("H")
        self._annotations: list[tuple[str, float, float]] = []
        self._on_host = 0

    def read(self, stream: JsonStream) -> None:
        """Take in the list of events that comes next."""
        for _ in stream.items():
            raw = stream.value()
            if b'"[memory]"' in raw or b'"[OutOfMemory]"' in raw:
                self._add_memory(stream.decode(raw, _Entry), stream)
            elif b'"X"' in raw:
                self._add_span(stream.decode(raw, _Entry))

    def snapshot(self, name: str) -> Snapshot:
        """The recording as nouns.

        Raises: Damaged when no event of a GPU was recorded
        """
        if not self._times:
            host = f"; its {self._on_host:,} events of the CPU say nothing about GPUs" if self._on_host else ""
            raise Damaged(f"the trace has no [memory] events of a GPU{host}; profile with profile_memory=True")
        traces = self._traces()
        capacities = _capacities(self.properties)
        devices = tuple(
            DeviceSnapshot(
                device=device, trace=traces[device], segments=(), has_segments=False,
                capacity_bytes=capacities.get(device),
            )
            for device in sorted(traces)
        )  # fmt: skip
        annotations = tuple(
            Annotation(label, device, round(start), round(end))
            for label, start, end in sorted(self._annotations, key=lambda span: span[1])
            for device in sorted(traces)
        )
        remarks = (f"{self._on_host:,} events of the CPU were left out",) if self._on_host else ()
        return Snapshot(
            name=name, format="kineto", devices=devices, sizes_are=SizesAre.BLOCKS, stacks=tuple(self._tables.stacks),
            labels=tuple(self._tables.labels), annotations=annotations, remarks=remarks,
        )  # fmt: skip

    def _add_memory(self, entry: _Entry, stream: JsonStream) -> None:
        if entry.name == OUT_OF_MEMORY:
            self._tables.spend(8)
            self._annotations.append((OUT_OF_MEMORY, _time(entry.ts), _time(entry.ts)))
        if entry.name != MEMORY:
            return
        said = stream.decode(bytes(entry.args), _Memory)
        if said.device_type == _CPU:
            self._on_host += 1
            return
        address = int(said.address, 0) if isinstance(said.address, str) and said.address.isdecimal() else said.address
        if type(address) is int and address < 0:
            address += 2**64  # pointers are printed as signed integers
        self._tables.count_events(1 if said.num_bytes > 0 else 2)
        self._times.append(_time(entry.ts))
        self._threads.append(self._spans.thread(entry.pid, entry.tid))
        self._addresses.append(integer(address, "Addr", most=LARGEST_ADDRESS))
        self._bytes.append(integer(said.num_bytes, "Bytes", least=-LARGEST_SIZE))
        self._devices.append(integer(said.device, "Device Id", most=MOST_DEVICES))

    def _add_span(self, entry: _Entry) -> None:
        if entry.ph != "X" or entry.cat not in _RUNNING:
            return
        start, end = _time(entry.ts), _time(entry.ts + max(entry.dur, 0.0))
        self._spans.add(self._spans.thread(entry.pid, entry.tid), entry.name, start, end)
        if entry.cat in _ANNOTATIONS:
            self._tables.spend(8)
            self._annotations.append((entry.name, start, end))

    def _traces(self) -> dict[int, Trace]:
        """The events of each device in the order of their times; those of one time as they are written."""
        times = self._times
        order = sorted(range(len(times)), key=times.__getitem__)
        stacks = self._spans.stacks(order, times, self._threads)
        traces: dict[int, Trace] = {}
        for index in order:
            trace = traces.setdefault(self._devices[index], Trace.empty())
            num_bytes = self._bytes[index]
            actions = (Action.ALLOC,) if num_bytes > 0 else (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
            for action in actions:
                trace.actions.append(action)
                trace.addresses.append(self._addresses[index])
                trace.sizes.append(abs(num_bytes))
                trace.streams.append(0)
                trace.times_us.append(round(times[index]))
                trace.stacks.append(stacks[index])
                trace.pools.append(0)
                trace.labels.append(0)
        return traces


def _time(time_us: float) -> float:
    if not -_LATEST_US < time_us < _LATEST_US:  # also NaN
        raise Damaged(f"ts of an event is out of range: {time_us}; copy or record it again")
    return time_us


def _capacities(properties: Any) -> dict[int, int]:
    """Memory of each device that the trace describes [bytes]."""
    found: dict[int, int] = {}
    for row in properties if isinstance(properties, list) else ():
        if isinstance(row, dict) and type(row.get("id")) is int and type(row.get("totalGlobalMem")) is int:
            found[row["id"]] = row["totalGlobalMem"]
    return {device: num_bytes for device, num_bytes in found.items() if 0 < num_bytes <= LARGEST_SIZE}
