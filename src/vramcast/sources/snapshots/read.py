"""Recordings by what is in them; pickles of plain containers without the pickle module: no code runs.

The events of a trace go straight into columns, so a recording of a million events never exists as a million dicts.
Most events look alike to the byte; `events.py` reads those by one pattern each, this module reads everything else.
[pickle] CPython Lib/pickletools.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from vramcast.domain.snapshot import Snapshot, Trace
from vramcast.errors import Note, SourceError
from vramcast.sources.snapshots.events import OBJECTS, REFERENCES, RUN, STACK_GLOBAL, STOP, Events, Memo, memo_indices
from vramcast.sources.snapshots.streams import (
    CHUNK_BYTES,
    DEEPEST,
    LARGEST_BYTES,
    LONGEST_TEXT,
    Damaged,
    Source,
    Window,
    opened,
    source_of,
)
from vramcast.sources.snapshots.tables import Tables, rows
from vramcast.sources.snapshots.torch_form import torch_snapshot

_MARGIN: Final = 2**16  # as much lies ahead wherever a pattern is tried, so that it seldom breaks at the edge
_LONGEST_INTEGER: Final = 9
_CONTAINER, _NUMBER = 8, 3  # what one costs in values, as its memory does: containers and texts, larger numbers
_BROKEN: Final = "its opcodes do not fit together; copy or record it again"


class Items(list[Any]):
    """A list being read; `trace` once it turned out to be a list of events."""

    trace: Trace | None = None
    pending: int = 0  # events read whose dicts have not been appended yet
    number: int = -1  # of the trace among all traces


class PickleReader(Window):
    """One run through the opcodes: a stack of values, marks, and the memo that references point into."""

    def __init__(self, source: Source, tables: Tables) -> None:
        """Read from where `source` stands."""
        super().__init__(source)
        self._tables = tables
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo = Memo(tables)
        self._events = Events(self._memo, tables)
        self._last_dict = -1  # where the dict opened last begins, counted from the start of the file
        self.traces: list[Items] = []

    def read(self) -> Any:
        """The value that the pickle holds; its events are in `traces`.

        Raises: Damaged when it holds anything but plain containers, breaks off or asks for too much
        """
        try:
            while (opcode := self._next_opcode()) != STOP:
                handler = _HANDLERS[opcode]
                if handler is None:
                    self._refuse(opcode)
                handler(self)
        except (IndexError, OverflowError):
            raise self._error(_BROKEN) from None
        if len(self._stack) != 1 or self._outer:
            raise self._error(_BROKEN)
        return self._stack[0]

    def _next_opcode(self) -> int:
        if self._position + _MARGIN > len(self._data) and not self._at_end:
            self._refill()
        if self._position >= len(self._data):
            raise self._error("it ends in the middle; copy or record it again")
        opcode = self._data[self._position]
        self._position += 1
        return opcode

    def _error(self, problem: str) -> Damaged:
        return Damaged("at byte {:,} of the pickle {}", self._base + self._position, problem)

    def _refuse(self, opcode: int) -> NoReturn:
        if opcode in OBJECTS:
            named = [value for value in self._stack[-2:] if type(value) is str]
            name = f" ({'.'.join(named)[:80]})" if opcode == STACK_GLOBAL and len(named) == 2 else ""
            raise self._error(
                f"an object{name} is to be built; a snapshot holds plain containers, so give what "
                "torch.cuda.memory._dump_snapshot() writes"
            )
        raise self._error(Note(
            "stands the opcode {:#04x}, which snapshots do not have; copy or record it again", opcode
        ))

    def _take(self, size: int) -> bytes:
        if self._position + size > len(self._data) and not self._at_end:
            self._refill(size + CHUNK_BYTES)
        part = self._data[self._position : self._position + size]
        if len(part) < size:
            raise self._error("it ends in the middle; copy or record it again")
        self._position += size
        return part

    def _push(self, value: Any, cost: int = 1) -> None:
        self._tables.spend(cost)
        self._stack.append(value)

    def _skip_frame(self) -> None:
        self._take(8)

    def _protocol(self) -> None:
        self._take(1)

    # Marks and the memo

    def _mark(self) -> None:
        if len(self._outer) >= DEEPEST:
            raise self._error(Note(
                "containers lie more than {} deep in one another; snapshots have at most 6", DEEPEST
            ))
        self._outer.append(self._stack)
        self._stack = []

    def _unmark(self) -> list[Any]:
        items = self._stack
        self._stack = self._outer.pop()
        return items

    def _memoize(self) -> None:
        self._tables.spend(1)
        self._memo.entries.append(self._stack[-1])

    def _put(self, width: int) -> None:
        # Every writer counts its memo up from 0; another order could make a small file ask for a huge table.
        if int.from_bytes(self._take(width), "little") != len(self._memo.entries):
            raise self._error("memo entries are out of order; copy or record it again")
        self._memoize()

    def _get(self) -> None:
        """Everything that a run of references fetches."""
        self._position -= 1
        found = RUN.match(self._data, self._position)
        if found is None:
            self._take(5)  # the window ends inside, or the file does
            self._position -= 5
            found = RUN.match(self._data, self._position)
        assert found is not None
        entries = self._memo.entries
        values = [entries[index] for index in memo_indices(found[0])]
        self._tables.spend(len(values))
        self._stack += values
        self._position = found.end()

    # Containers

    def _open_dict(self) -> None:
        start = self._position - 1
        holder = self._outer[-1][-1] if self._events.patterns and self._outer and self._outer[-1] else None
        if type(holder) is Items and holder.trace is not None and not isinstance(self._top(), Items):
            end = self._events.read(self._data, start, holder.trace)
            if end > start:
                self._position = end
                return
        self._last_dict = self._base + start
        self._push({}, _CONTAINER)

    def _top(self) -> Any:
        return self._stack[-1] if self._stack else None

    def _holder(self) -> Items | None:
        """The list that the dict on top of the stack will be an item of: right below, or below the mark."""
        holder = self._stack[-2] if len(self._stack) > 1 else None
        if type(holder) is not Items:
            holder = self._outer[-1][-1] if self._outer and self._outer[-1] else None
        return holder if type(holder) is Items else None

    def _open_list(self) -> None:
        found = REFERENCES.match(self._data, self._position - 1)
        stack = None if found is None else self._memo.stack(found[2])
        if found is None or stack is None:
            self._push(Items(), _CONTAINER)
            return
        self._push(stack)
        put = found[1] or b""
        if put[:1] not in (b"", b"\x94") and int.from_bytes(put[1:], "little") != len(self._memo.entries):
            raise self._error("memo entries are out of order; copy or record it again")
        if put:
            self._memoize()
        self._position = found.end()

    def _append_one(self) -> None:
        self._extend([self._stack.pop()])

    def _append_many(self) -> None:
        self._extend(self._unmark())

    def _extend(self, items: list[Any]) -> None:
        holder = self._stack[-1]
        if type(holder) is not Items:
            raise self._error(_BROKEN)
        if holder.trace is None:
            holder += items
            return
        # What a list of events may get is the emptied dicts of events just read, each once.
        if len(items) != holder.pending or any(items) or holder:
            raise self._error("a list holds events and other things, or one event twice; copy or record it again")
        holder.pending = 0

    def _set_one(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    def _set_many(self) -> None:
        self._update(self._unmark())

    def _update(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2 or not all(type(key) in (str, int) for key in keys):
            raise self._error(_BROKEN)
        target.update(zip(keys, items[1::2], strict=True))
        if "action" in target:
            self._finish_event(target)

    def _finish_event(self, event: dict[str, Any]) -> None:
        holder = self._holder()
        if holder is None:
            return
        if holder.trace is None:
            self._tables.spend(4 * _CONTAINER)
            holder.trace, holder.number = Trace.empty(), len(self.traces)
            self.traces.append(holder)
        self._tables.add(holder.trace, event, number=holder.number)
        keys = list(event)
        event.clear()
        holder.pending += 1
        self._tables.room += _CONTAINER + 2 * len(keys)
        self._events.learn(self._data, self._last_dict - self._base, self._position, keys)

    def _tuple(self, size: int | None) -> None:
        if size is None:
            values = self._unmark()
        else:
            if len(self._stack) < size:
                raise self._error(_BROKEN)
            values = [self._stack.pop() for _ in range(size)][::-1]
        self._push(tuple(values), _CONTAINER)

    # Plain values

    def _integer(self, width: int, signed: bool = False) -> None:
        self._push(int.from_bytes(self._take(width), "little", signed=signed), 1 if width == 1 else _NUMBER)

    def _long(self, width: int) -> None:
        size = int.from_bytes(self._take(width), "little")
        if size > _LONGEST_INTEGER:
            raise self._error(Note("an integer has {:,} bytes; addresses and sizes have at most 8", size))
        self._integer(size, signed=True)

    def _float(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0], _NUMBER)

    def _chunk(self, width: int) -> bytes:
        size = int.from_bytes(self._take(width), "little")
        if size > LONGEST_TEXT:
            raise self._error(Note("a text has {:,} bytes; names in stacks have at most {:,}", size, LONGEST_TEXT))
        self._tables.spend(size // 8)
        return self._take(size)

    def _text(self, width: int) -> None:
        self._push(self._chunk(width).decode("utf-8", "replace"), _CONTAINER)

    def _bytes(self, width: int) -> None:
        self._push(self._chunk(width), _CONTAINER)


def _handlers() -> tuple[Callable[[PickleReader], None] | None, ...]:
    """What each of the 256 opcodes does; None: refused."""
    R = PickleReader
    table: dict[bytes, Callable[[PickleReader], None]] = {
        b"\x80": R._protocol, b"\x95": R._skip_frame,
        b"(": R._mark, b"\x94": R._memoize, b"q": lambda r: r._put(1), b"r": lambda r: r._put(4),
        b"h": R._get, b"j": R._get,
        b"}": R._open_dict, b"]": R._open_list, b")": lambda r: r._tuple(0),
        b"a": R._append_one, b"e": R._append_many, b"s": R._set_one, b"u": R._set_many,
        b"\x85": lambda r: r._tuple(1), b"\x86": lambda r: r._tuple(2), b"\x87": lambda r: r._tuple(3),
        b"t": lambda r: r._tuple(None),
        b"N": lambda r: r._push(None), b"\x88": lambda r: r._push(True), b"\x89": lambda r: r._push(False),
        b"K": lambda r: r._integer(1), b"M": lambda r: r._integer(2), b"J": lambda r: r._integer(4, signed=True),
        b"\x8a": lambda r: r._long(1), b"\x8b": lambda r: r._long(4), b"G": R._float,
        b"\x8c": lambda r: r._text(1), b"X": lambda r: r._text(4), b"\x8d": lambda r: r._text(8),
        b"C": lambda r: r._bytes(1), b"B": lambda r: r._bytes(4), b"\x8e": lambda r: r._bytes(8),
    }  # fmt: skip
    return tuple(table.get(bytes([opcode])) for opcode in range(256))


_HANDLERS: Final = _handlers()


_HEAD_BYTES: Final = 2**16
_PICKLES: Final = (b"\x80", b"}", b"]")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_snapshot(path: Path, *, limit_bytes: int = LARGEST_BYTES) -> Snapshot:
    """A recording of GPU memory: a torch snapshot (pickle or JSON), a profiler trace, or one that we wrote.

    Args:
        path: the file, as it is or inside gzip, zip or zstd
        limit_bytes: the most that it may hold unpacked [bytes]

    Raises: SourceError when it is no such recording, damaged, hostile or larger
    """
    with opened(path, limit_bytes=limit_bytes) as source:
        return _recording(source)


def snapshot_of(data: bytes, *, name: str, limit_bytes: int = LARGEST_BYTES) -> Snapshot:
    """The recording that some bytes hold, as `read_snapshot` reads a file of them.

    Args:
        data: the bytes, as they are or packed
        limit_bytes: the most that they may hold unpacked [bytes]

    Raises: SourceError when they hold no such recording, a damaged, hostile or larger one
    """
    return _recording(source_of(BytesIO(data), name=name, limit_bytes=limit_bytes))


def _recording(source: Source) -> Snapshot:
    try:
        return _read(source)
    except Damaged as problem:
        raise SourceError("{}: {}", source.name, problem) from None
    except RecursionError:
        raise SourceError("{}: containers lie too deep in one another; no recording does", source.name) from None


def _read(source: Source) -> Snapshot:
    head = source.peek(_HEAD_BYTES)
    if head.startswith(_PICKLES):
        return _pickled(source)
    if head.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
        from vramcast.sources.snapshots.json_form import read_json

        return read_json(source, head)
    if not head:
        raise source.error("is empty; give a recording of torch.cuda.memory._dump_snapshot() or of the profiler")
    raise source.error(
        "is neither a pickle nor JSON; give what torch.cuda.memory._dump_snapshot() or the profiler's "
        "export_chrome_trace() writes"
    )


def _pickled(source: Source) -> Snapshot:
    tables = Tables(source.most_values)
    reader = PickleReader(source, tables)
    root = reader.read()
    lists = rows(root.get("device_traces") or (), "device_traces") if isinstance(root, dict) else ()
    traces = [_trace(events) for events in lists]
    device_of = {events.number: device for device, events in enumerate(lists)}
    tables.marks = [replace(mark, device=device_of[mark.device]) for mark in tables.marks if mark.device in device_of]
    return torch_snapshot(root, traces, tables, name=source.name, form="torch")


def _trace(events: Any) -> Trace | None:
    if type(events) is Items and not events:
        return events.trace
    raise Damaged("a device trace must be a list of events with actions; copy or record it again")
