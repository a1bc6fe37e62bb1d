"""JSON of any size, walked value by value: only one element of a list is in memory at a time.

Recordings in JSON: which kind it is, and snapshots in the form of `json.dumps(torch.cuda.memory._snapshot())`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import MsgspecError, Raw, Struct, field, json

from vramcast.domain.snapshot import OWN_KEY, Snapshot, Trace
from vramcast.sources.snapshots.profiler import ProfilerTrace
from vramcast.sources.snapshots.streams import CHUNK_BYTES, DEEPEST, MOST_DEVICES, Source, Window
from vramcast.sources.snapshots.tables import Damaged, StackIndex, Tables
from vramcast.sources.snapshots.torch_form import torch_snapshot

LARGEST_ELEMENT: Final = 16 * 2**20
"""Of one event or one segment [bytes]."""
_MARGIN: Final = 2**16

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_ATOM: Final = rb'[^\s,:\[\]{}"]++'


def _nested(depth: int) -> bytes:
    inner = rb"(?!)"
    for _ in range(depth):
        inner = rb'[\[{](?:[^\[\]{}"]++|' + _STRING + rb"|" + inner + rb")*+[\]}]"
    return inner


_VALUE: Final = re.compile(_STRING + rb"|" + _ATOM + rb"|" + _nested(12), re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")


class JsonStream(Window):
    """A position in a JSON text."""

    def __init__(self, source: Source) -> None:
        """Start where `source` stands."""
        super().__init__(source)
        self._depth = 0
        if self.peek() == b"\xef":  # byte order mark
            self._position += 3

    def error(self, problem: str) -> Damaged:
        """A rule that the text breaks."""
        return Damaged(f"at byte {self._base + self._position:,} of the JSON {problem}")

    def peek(self) -> bytes:
        """The first byte of the next token; b"" at the end."""
        while True:
            if self._position + _MARGIN > len(self._data) and not self._at_end:
                self._refill()
            found = _SPACE.match(self._data, self._position)
            assert found is not None
            self._position = found.end()
            if self._position < len(self._data) or self._at_end:
                return self._data[self._position : self._position + 1]

    def expect(self, byte: bytes) -> None:
        """Step over this punctuation."""
        found = self.peek()
        if found != byte:
            shown = found.decode("latin-1") or "the end"
            raise self.error(f"stands {shown!r} where {byte.decode()!r} belongs; copy or record it again")
        self._position += 1

    def value(self) -> bytes:
        """The next value as it is written."""
        self.peek()
        while True:
            found = _VALUE.match(self._data, self._position)
            if found is not None and (found.end() < len(self._data) or self._at_end):
                self._position = found.end()
                return found[0]
            if self._at_end:
                raise self.error("a value is broken off or too deep; copy or record it again")
            if len(self._data) - self._position > LARGEST_ELEMENT:
                raise self.error(f"one element has more than {LARGEST_ELEMENT:,} bytes; no recording writes such")
            self._refill(max(CHUNK_BYTES, 2 * (len(self._data) - self._position)))

    def decoded(self, kind: Any = Any) -> Any:
        """The next value, as plain containers or as the type asked for."""
        return self.decode(self.value(), kind)

    def decode(self, raw: bytes, kind: Any = Any) -> Any:
        """A value that was taken as written."""
        try:
            return json.decode(raw, type=kind)
        except (MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise self.error(f"a value cannot be used ({str(problem)[:120]}); copy or record it again") from None

    def items(self) -> Iterator[None]:
        """Stand before each element of the list that comes next."""
        for _ in self._inside(b"[", b"]"):
            yield None

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next, standing before the value of each."""
        for _ in self._inside(b"{", b"}"):
            if self.peek() != b'"':
                raise self.error("a key is missing; copy or record it again")
            key = self.decoded(str)
            self.expect(b":")
            yield key

    def skip(self) -> None:
        """Step over the next value, however large."""
        first = self.peek()
        if first == b"[":
            for _ in self.items():
                self.skip()
        elif first == b"{":
            for _ in self.members():
                self.skip()
        else:
            self.value()

    def _inside(self, first: bytes, last: bytes) -> Iterator[None]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self.error(f"containers lie more than {DEEPEST} deep in one another; no recording does")
        self.expect(first)
        if self.peek() != last:
            yield None
            while self.peek() == b",":
                self._position += 1
                yield None
        self.expect(last)
        self._depth -= 1


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
