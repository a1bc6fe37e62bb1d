"""Recordings in JSON: which kind it is, and snapshots in the form of `json.dumps(torch.cuda.memory._snapshot())`."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Raw, Struct, field

from vramcast.domain.snapshot import OWN_KEY, Snapshot, Trace
from vramcast.sources.snapshots.json_stream import JsonStream
from vramcast.sources.snapshots.limits import MOST_DEVICES
from vramcast.sources.snapshots.profiler import ProfilerTrace
from vramcast.sources.snapshots.streams import Source
from vramcast.sources.snapshots.tables import Damaged, StackIndex, Tables
from vramcast.sources.snapshots.torch_form import torch_snapshot

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
            raise Damaged(f"it lists more than {MOST_DEVICES} devices")
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
