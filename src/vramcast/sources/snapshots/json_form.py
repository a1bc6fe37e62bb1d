"""Recordings in JSON: `json.dumps(torch.cuda.memory._snapshot())`, and profiler traces (Kineto) with `[memory]` events.

Sizes of a trace are those of blocks, rounded; segments are not listed. The stack of an event is what was running on its
thread: operators, annotations and, with `with_stack=True`, Python functions. Torch 1.9 wrote type and number of the
device and bytes alone; from 1.10 on there are the address and what the allocator held after the event, so that what was
there before the recording is known, though not what it was.
[kineto] pytorch torch/csrc/profiler/kineto_shim.cpp and collection.cpp, `[memory]`, `[OutOfMemory]`; before 1.12
torch/csrc/autograd/profiler_kineto.cpp, reportMemoryUsage (pull requests 57835 and 61282)
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw, Struct, field

from vramcast.domain.snapshot import (
    OWN_KEY,
    Action,
    Annotation,
    DeviceSnapshot,
    Frame,
    SizesAre,
    Snapshot,
    Totals,
    Trace,
)
from vramcast.errors import Note
from vramcast.sources.snapshots.streams import (
    LARGEST_ADDRESS,
    LARGEST_SIZE,
    MOST_DEVICES,
    MOST_EVENTS,
    Damaged,
    JsonStream,
    Source,
)
from vramcast.sources.snapshots.tables import StackIndex, Tables, integer
from vramcast.sources.snapshots.torch_form import torch_snapshot

DEEPEST_STACK: Final = 512
_PYTHON: Final = re.compile(r"(.{1,1000}?)\((\d{1,9})\): (.*)", re.DOTALL)


class Spans:
    """Spans of all threads, a column a field."""

    def __init__(self, tables: Tables) -> None:
        """None yet."""
        self._tables = tables
        self._threads: dict[tuple[object, object], int] = {}
        self._starts: list[array[float]] = []
        self._ends: list[array[float]] = []
        self._frames: list[array[int]] = []
        self._names: dict[str, int] = {}
        self._frame_of: list[Frame] = []
        self._count = 0

    def thread(self, process: object, thread: object) -> int:
        """The index of a thread."""
        found = self._threads.get((process, thread))
        if found is None:
            self._tables.spend(64)
            found = self._threads[process, thread] = len(self._threads)
            self._starts.append(array("d"))
            self._ends.append(array("d"))
            self._frames.append(array("I"))
        return found

    def add(self, thread: int, name: str, start_us: float, end_us: float) -> None:
        """Something ran on a thread from start to end."""
        self._count += 1
        if self._count > MOST_EVENTS:
            raise Damaged("the trace has more than {:,} operators; profile fewer steps", MOST_EVENTS)
        index = self._names.get(name)
        if index is None:
            self._tables.spend(16 + len(name) // 4)
            index = self._names[name] = len(self._names)
            self._frame_of.append(_frame(name))
        self._starts[thread].append(start_us)
        self._ends[thread].append(end_us)
        self._frames[thread].append(index)

    def stacks(self, order: Sequence[int], times: Sequence[float], threads: Sequence[int]) -> array[int]:
        """The stack that each event happened in, innermost first.

        Args:
            order: indices of the events by time
            times: of the events [us]
            threads: of the events
        """
        found = array("I", bytes(4 * len(times)))
        by_thread: dict[int, list[int]] = {}
        for index in order:
            by_thread.setdefault(threads[index], []).append(index)
        for thread, indices in by_thread.items():
            self._sweep(thread, indices, times, found)
        return found

    def _sweep(self, thread: int, indices: list[int], times: Sequence[float], found: array[int]) -> None:
        starts, ends, frames = self._starts[thread], self._ends[thread], self._frames[thread]
        spans = sorted(range(len(starts)), key=lambda span: (starts[span], -ends[span]))
        running: list[int] = []
        reached, stack = 0, 0
        for index in indices:
            time, changed = times[index], False
            while reached < len(spans) and starts[spans[reached]] <= time:
                span = spans[reached]
                while running and ends[running[-1]] <= starts[span]:
                    running.pop()
                running.append(span)
                reached, changed = reached + 1, True
            while running and ends[running[-1]] < time:
                running.pop()
                changed = True
            if changed:
                inner = running[: -DEEPEST_STACK - 1 : -1]
                stack = self._tables.stack_of(tuple(self._frame_of[frames[span]] for span in inner))
            found[index] = stack


def _frame(name: str) -> Frame:
    """Python functions are named "train.py(12): forward"."""
    python = _PYTHON.fullmatch(name)
    return Frame(python[3], python[1], min(int(python[2]), 2**31 - 1)) if python else Frame(name, "", 0)


MEMORY: Final = "[memory]"
OUT_OF_MEMORY: Final = "[OutOfMemory]"
_CPU: Final = 0  # c10::DeviceType
_RUNNING: Final = frozenset({"cpu_op", "user_annotation", "python_function", "Operator"})
_ANNOTATIONS: Final = frozenset({"user_annotation"})
_LONGEST_ADDRESS: Final = 20  # digits of 2^64
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
    """What a `[memory]` event says; frees have negative bytes. Also an `[OutOfMemory]` event, without an address."""

    num_bytes: int = field(name="Bytes")
    device_type: int = field(name="Device Type")
    device: int = field(name="Device Id", default=0)
    address: int | str | None = field(name="Addr", default=None)
    allocated: int | None = field(name="Total Allocated", default=None)
    reserved: int | None = field(name="Total Reserved", default=None)


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
        self._is_failure = array("B")
        self._allocated = array("q")  # -1 where it is not said
        self._reserved = array("q")
        self._without_address: set[int] = set()  # devices
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
            host = Note("; its {:,} events of the CPU say nothing about GPUs", self._on_host) if self._on_host else ""
            raise Damaged("the trace has no [memory] events of a GPU{}; profile with profile_memory=True", host)
        traces = self._traces()
        capacities = _capacities(self.properties)
        devices = tuple(
            DeviceSnapshot(
                device=device, trace=trace, segments=(), has_segments=False, totals=totals,
                has_addresses=device not in self._without_address, capacity_bytes=capacities.get(device),
            )
            for device, (trace, totals) in sorted(traces.items(), key=lambda item: item[0])
        )  # fmt: skip
        annotations = tuple(
            Annotation(label, device, round(start), round(end))
            for label, start, end in sorted(self._annotations, key=lambda span: span[1])
            for device in sorted(traces)
        )
        remarks = (Note("{:,} events of the CPU were left out", self._on_host),) if self._on_host else ()
        return Snapshot(
            name=name, format="kineto", devices=devices, sizes_are=SizesAre.BLOCKS, stacks=tuple(self._tables.stacks),
            labels=tuple(self._tables.labels), annotations=annotations, remarks=remarks,
        )  # fmt: skip

    def _add_memory(self, entry: _Entry, stream: JsonStream) -> None:
        if entry.name not in (MEMORY, OUT_OF_MEMORY):
            return
        said = stream.decode(bytes(entry.args), _Memory)
        if said.device_type == _CPU:
            self._on_host += 1
            return
        failed = entry.name == OUT_OF_MEMORY
        if said.address is None and not failed:
            self._without_address.add(said.device)
        address = 0 if said.address is None else said.address
        if isinstance(address, str) and address.isdecimal() and len(address) <= _LONGEST_ADDRESS:
            address = int(address)
        if type(address) is int and address < 0:
            address += 2**64  # pointers are printed as signed integers
        self._tables.count_events(1 if failed or said.num_bytes > 0 else 2)
        self._times.append(_time(entry.ts))
        self._threads.append(self._spans.thread(entry.pid, entry.tid))
        self._addresses.append(integer(address, "Addr", most=LARGEST_ADDRESS))
        self._bytes.append(integer(said.num_bytes, "Bytes", least=-LARGEST_SIZE))
        self._devices.append(integer(said.device, "Device Id", most=MOST_DEVICES))
        self._is_failure.append(failed)
        self._allocated.append(_total(said.allocated))
        self._reserved.append(_total(said.reserved))

    def _add_span(self, entry: _Entry) -> None:
        if entry.ph != "X" or entry.cat not in _RUNNING:
            return
        start, end = _time(entry.ts), _time(entry.ts + max(entry.dur, 0.0))
        self._spans.add(self._spans.thread(entry.pid, entry.tid), entry.name, start, end)
        if entry.cat in _ANNOTATIONS:
            self._tables.spend(8)
            self._annotations.append((entry.name, start, end))

    def _traces(self) -> dict[int, tuple[Trace, Totals | None]]:
        """The events of each device in the order of their times; those of one time as they are written."""
        times = self._times
        order = sorted(range(len(times)), key=times.__getitem__)
        stacks = self._spans.stacks(order, times, self._threads)
        traces: dict[int, Trace] = {}
        said: dict[int, tuple[array[int], array[int]]] = {}
        for index in order:
            device = self._devices[index]
            trace = traces.setdefault(device, Trace.empty())
            totals = said.setdefault(device, (array("q"), array("q")))
            for action in self._actions(index):
                trace.add(
                    action, self._addresses[index], abs(self._bytes[index]), time_us=round(times[index]),
                    stack=stacks[index],
                )
                totals[0].append(self._allocated[index])
                totals[1].append(self._reserved[index])
        return {device: (trace, _totals(*said[device])) for device, trace in traces.items()}

    def _actions(self, index: int) -> tuple[Action, ...]:
        if self._is_failure[index]:
            return (Action.OOM,)
        return (Action.ALLOC,) if self._bytes[index] > 0 else (Action.FREE_REQUESTED, Action.FREE_COMPLETED)


def _total(num_bytes: int | None) -> int:
    return -1 if num_bytes is None or num_bytes < 0 else integer(num_bytes, "Total Allocated or Total Reserved")


def _totals(allocated: array[int], reserved: array[int]) -> Totals | None:
    """What the allocator counted, if it did so at every event; of reserved memory allocators without a cache say 0."""
    if min(allocated) < 0:
        return None
    counts = all(held >= live for live, held in zip(allocated, reserved, strict=True))
    return Totals(array("Q", allocated), array("Q", reserved) if counts else None)


def _time(time_us: float) -> float:
    if not -_LATEST_US < time_us < _LATEST_US:  # also NaN
        raise Damaged("ts of an event is out of range: {}; copy or record it again", time_us)
    return time_us


def _capacities(properties: Any) -> dict[int, int]:
    """Memory of each device that the trace describes [bytes]."""
    found: dict[int, int] = {}
    for row in properties if isinstance(properties, list) else ():
        if isinstance(row, dict) and type(row.get("id")) is int and type(row.get("totalGlobalMem")) is int:
            found[row["id"]] = row["totalGlobalMem"]
    return {device: num_bytes for device, num_bytes in found.items() if 0 < num_bytes <= LARGEST_SIZE}


_TIMELINE: Final = re.compile(rb"\s*\[\s*\[\s*-?\d")
_MOST_STACKS: Final = 1 << 16


class _Event(Struct):
    """An event of a trace; frames are kept as written, because the same stack comes again and again."""

    action: str | None = None
    addr: int = 0
    device_free: int = 0
    size: int = 0
    stream: int = 0
    time_us: int = 0
    frames: Raw = field(default_factory=Raw)
    pool_id: tuple[int, int] | None = None
    category: str | None = None
    user_metadata: str | None = None
    compile_context: str | None = None


def read_json(source: Source, head: bytes) -> Snapshot:
    """The recording in a JSON text that begins with `head`.

    Raises: SourceError or Damaged
    """
    stream, tables = JsonStream(source), Tables(source.most_values)
    if stream.peek() == b"{":
        return _object(stream, tables, source.name)
    if _TIMELINE.match(head):
        raise source.error(
            "is the profiler's memory timeline, which has sizes by category but no addresses; give the trace of "
            "export_chrome_trace() with profile_memory=True, or a memory snapshot"
        )
    if re.search(rb'"ph"\s*:', head):
        trace = ProfilerTrace(tables)
        trace.read(stream)
        return trace.snapshot(source.name)
    return torch_snapshot({"segments": _elements(stream, tables)}, (), tables, name=source.name, form="torch-json")


def _object(stream: JsonStream, tables: Tables, name: str) -> Snapshot:
    root: dict[str, Any] = {}
    traces: list[Trace | None] = []
    profiler: ProfilerTrace | None = None
    for key in stream.members():
        if key == "traceEvents":
            profiler = profiler or ProfilerTrace(tables)
            profiler.read(stream)
        elif key == "deviceProperties":
            profiler = profiler or ProfilerTrace(tables)
            profiler.properties = stream.decoded()
        elif key == "device_traces":
            traces = _traces(stream, tables)
            root[key] = ()
        elif key in ("segments", "external_annotations"):
            root[key] = _elements(stream, tables)
        elif key in ("allocator_settings", OWN_KEY):
            root[key] = stream.decoded()
        else:
            stream.skip()
    if profiler is not None and not root:
        return profiler.snapshot(name)
    return torch_snapshot(root, traces, tables, name=name, form="torch-json")


def _elements(stream: JsonStream, tables: Tables) -> list[Any]:
    elements = []
    for _ in stream.items():
        raw = stream.value()
        tables.spend(8 + len(raw) // 8)
        elements.append(stream.decode(raw))
    return elements


def _traces(stream: JsonStream, tables: Tables) -> list[Trace | None]:
    stacks: dict[bytes, StackIndex] = {}
    traces: list[Trace | None] = []
    for _ in stream.items():
        if len(traces) >= MOST_DEVICES:
            raise Damaged("it lists more than {} devices", MOST_DEVICES)
        trace = Trace.empty()
        for _ in stream.items():
            event = stream.decoded(_Event)
            _add(trace, event, stream, tables, stacks, len(traces))
        traces.append(trace)
    return traces


def _add(
    trace: Trace, event: _Event, stream: JsonStream, tables: Tables, stacks: dict[bytes, StackIndex], number: int
) -> None:
    fields: dict[str, Any] = {field: getattr(event, field) for field in _FIELDS}
    raw = bytes(event.frames)
    if raw:
        stack = stacks.get(raw)
        if stack is None:
            stack = tables.stack(stream.decode(raw))
            if len(stacks) >= _MOST_STACKS:
                stacks.clear()
            stacks[raw] = stack
        fields["frames"] = stack
    tables.add(trace, fields, number=number)


_FIELDS: Final = tuple(field for field in _Event.__struct_fields__ if field != "frames")
