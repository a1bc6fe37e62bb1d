"""Events of a pickle that look alike to the byte: one pattern reads thousands of them at the speed of C.

A pattern is learnt from an event that was read opcode by opcode: the references to its keys are literal, its values
are groups. So it depends on no version of torch, only on one event being written as the one before. Repeats are
possessive: no pattern ever steps back, whatever the bytes.
[pickle] CPython Lib/pickletools.py
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from vramcast.domain.snapshot import Action, Frame, Trace
from vramcast.sources.snapshots.streams import LARGEST_ADDRESS, LARGEST_SIZE
from vramcast.sources.snapshots.tables import ACTIONS, StackIndex, Tables, integer

STOP: Final = 0x2E
STACK_GLOBAL: Final = 0x93
OBJECTS: Final = frozenset(b"cRbioPQ\x81\x82\x83\x84\x92\x93")
"""Opcodes that name or build objects: GLOBAL, REDUCE, BUILD, INST, OBJ, persistent ids, NEWOBJ, extensions."""

GET: Final = rb"(?:h.|j.{4})"
PUT: Final = rb"(?:\x94|q.|r.{4})"
INTEGER: Final = (
    rb"(?:K.|M..|J.{4}|\x8a(?:\x06.{6}|\x07.{7}|\x05.{5}|\x08.{8}|\x04.{4}|\x09.{9}|\x03.{3}|\x02.{2}|\x01.|\x00))"
)
_LONGEST_INLINE: Final = 64
INLINE_TEXT: Final = (
    rb"\x8c(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(_LONGEST_INLINE + 1)) + rb")\x94"
)
TEXT: Final = rb"(?:" + GET + rb"|" + INLINE_TEXT + rb")"
STACK: Final = rb"(?:" + GET + rb"|\]\x94(?:\(" + GET + rb"++e|" + GET + rb"a)?+)"
POOL: Final = rb"(?:" + GET + rb"|" + INTEGER + INTEGER + rb"\x86\x94)"

REFERENCES: Final = re.compile(rb"\](" + PUT + rb")?+\((" + GET + rb"++)e", re.DOTALL)
"""A list of things that were written before, as nearly all stacks are; groups: its memo entry, the references."""
RUN: Final = re.compile(GET + rb"++", re.DOTALL)
_REFERENCE: Final = re.compile(rb"h(.)|j(.{4})", re.DOTALL)


def memo_index(reference: bytes) -> int:
    """Which memo entry a BINGET or LONG_BINGET fetches."""
    return int.from_bytes(reference[1:], "little")


def memo_indices(references: bytes) -> list[int]:
    """The same of a run of them."""
    return [int.from_bytes(short or long, "little") for short, long in _REFERENCE.findall(references)]


def small_integer(raw: bytes) -> int:
    """The value of an INTEGER; 0 for nothing.

    >>> small_integer(bytes([0x8A, 2, 0, 1]))
    256
    """
    kind = raw[:1]
    if kind == b"\x8a":
        return int.from_bytes(raw[2:], "little", signed=True)
    return int.from_bytes(raw[1:], "little", signed=kind == b"J")


class Memo:
    """The entries in order, and the stacks that runs of references stand for."""

    def __init__(self, tables: Tables) -> None:
        """Nothing written yet."""
        self.entries: list[Any] = []
        self._tables = tables
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[bytes, StackIndex | None] = {}

    def stack(self, references: bytes) -> StackIndex | None:
        """The stack of a run of references to frames; None where they refer to something else."""
        if references in self._stacks:
            return self._stacks[references]
        frames = [self._frame(index) for index in memo_indices(references)]
        stack = self._tables.stack_of(tuple(frame for frame in frames if frame)) if all(frames) else None
        self._tables.spend(8 + len(references) // 8)
        self._stacks[references] = stack
        return stack

    def _frame(self, index: int) -> Frame | None:
        known = self._frames.get(index)
        if known is not None:
            return known
        value = self.entries[index]
        if type(value) is not dict or "filename" not in value:
            return None
        known = self._frames[index] = self._tables.frame(value)
        return known


READ_EVENT: Final[dict[str, Any]] = {}
"""Stands for an event that is in its columns already."""
_MOST_PATTERNS: Final = 8
_MOST_CACHED: Final = 1 << 16

_FIELDS: Final = (
    "action", "place", "size", "stream", "time_us", "frames", "pool_id", "category", "user_metadata", "compile_context",
)  # fmt: skip
_GROUPS: Final = {"addr": "place", "device_free": "place"} | {field: field for field in _FIELDS if field != "place"}
_VALUES: Final = {
    "action": GET, "place": INTEGER, "size": INTEGER, "stream": INTEGER, "time_us": INTEGER, "frames": STACK,
    "pool_id": POOL, "category": TEXT, "user_metadata": TEXT, "compile_context": TEXT,
}  # fmt: skip
_MEMOIZED: Final = ("frames", "pool_id", "category", "user_metadata", "compile_context")
_FRAMES, _POOL = _FIELDS.index("frames"), _FIELDS.index("pool_id")
_REFERENCES: Final = (0x68, 0x6A)
_COMPILED: Final = {group: re.compile(value, re.DOTALL) for group, value in {"get": GET, **_VALUES}.items()}


class _Unusual(Exception):
    """An event has what no pattern knows, or refers to a value inside it or nowhere: the general reader finds out."""


class _Pattern(NamedTuple):
    regex: re.Pattern[bytes]
    order: tuple[int, ...]  # group of each of _FIELDS
    memoized: tuple[int, ...]  # fields that may add to the memo, in the order they are written
    is_oom: bool


class _Integers(dict[bytes, int]):
    """Values of raw integers within a range; sizes and addresses come again and again."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most

    def __missing__(self, raw: bytes) -> int:
        value = integer(small_integer(raw), self.name, most=self.most)
        if len(self) >= _MOST_CACHED:
            self.clear()
        self[raw] = value
        return value


class Events:
    """Reads runs of events into columns."""

    def __init__(self, memo: Memo, tables: Tables) -> None:
        """No pattern is known yet."""
        self.patterns: list[_Pattern] = []
        self._known: set[bytes] = set()
        self._memo, self._tables = memo, tables
        self._addresses = _Integers("addr", LARGEST_ADDRESS)
        self._streams = _Integers("stream", LARGEST_ADDRESS)
        self._sizes = _Integers("size", LARGEST_SIZE)
        self._actions: dict[bytes, Action] = {}
        self._stacks: dict[bytes, StackIndex] = {b"": StackIndex(0)}
        self._pools: dict[bytes, tuple[int, Any]] = {b"": (0, None)}
        self._texts: dict[bytes, str] = {b"": ""}
        self._labels: dict[tuple[bytes, bytes, bytes], int] = {}

    def learn(self, data: bytes, start: int, end: int, keys: list[str]) -> None:
        """Make a pattern of the event at data[start:end], if its bytes are of the usual kind."""
        if len(self.patterns) >= _MOST_PATTERNS or start < 0 or data[start : start + 3] != b"}\x94(":
            return
        parts, position = [rb"\}\x94\("], start + 3
        groups: list[str] = []
        for key in keys:
            reference = _COMPILED["get"].match(data, position)
            group = _GROUPS.get(key)
            if reference is None or group is None or group in groups:
                return
            index = memo_index(reference[0])
            value = _COMPILED[group].match(data, reference.end())
            if value is None or index >= len(self._memo.entries) or self._memo.entries[index] != key:
                return
            parts.append(re.escape(reference[0]) + b"(" + _VALUES[group] + b")")
            groups.append(group)
            position = value.end()
        source = b"".join(parts) + b"u"
        if data[position : position + 1] != b"u" or position + 1 != end or source in self._known:
            return
        if "action" in groups:
            self._known.add(source)
            self.patterns.insert(0, _pattern(source, groups, is_oom="device_free" in keys))

    def read(self, data: bytes, start: int, trace: Trace) -> int:
        """Move the events that begin at `start` into the columns; returns where they end."""
        position = start
        while True:
            for number, pattern in enumerate(self.patterns):
                end = self._run(pattern, data, position, trace)
                if end > position:
                    position = end
                    self.patterns.insert(0, self.patterns.pop(number))
                    break
            else:
                return position

    def _run(self, pattern: _Pattern, data: bytes, start: int, trace: Trace) -> int:
        scanner = pattern.regex.scanner(data, start)  # type: ignore[attr-defined]  # as re.Scanner itself uses it
        match, order = scanner.match, pattern.order
        actions, stacks, pools, labels = self._actions, self._stacks, self._pools, self._labels
        addresses, sizes, streams = self._addresses, self._sizes, self._streams
        add_action, add_address, add_size = trace.actions.append, trace.addresses.append, trace.sizes.append
        add_stream, add_time, add_stack = trace.streams.append, trace.times_us.append, trace.stacks.append
        add_pool, add_label = trace.pools.append, trace.labels.append
        end, before = start, len(trace.actions)
        while (found := match()) is not None:
            fields = found.group(*order)
            raw_action, place, size, stream, time_us, frames, raw_pool, *texts = fields
            try:
                action, stack, pool, label = actions[raw_action], stacks[frames], pools[raw_pool], labels[*texts]
            except KeyError:
                try:
                    action, stack, pool, label = self._look_up(fields)
                except _Unusual:
                    break
            if (action is Action.OOM) is not pattern.is_oom:
                break
            add_address(addresses[place])
            add_size(sizes[size])
            add_stream(streams[stream])
            add_time(small_integer(time_us))
            add_action(action)
            add_stack(stack)
            add_pool(pool[0])
            add_label(label)
            end = found.end()
            self._remember(pattern.memoized, fields, stack)
        self._tables.count_events(len(trace.actions) - before)
        return end

    def _remember(self, memoized: tuple[int, ...], fields: tuple[bytes, ...], stack: StackIndex) -> None:
        """Count the memo on, as the event does: itself, then the values that it writes out."""
        entries = self._memo.entries
        entries.append(READ_EVENT)
        for field in memoized:
            raw = fields[field]
            if raw[0] not in _REFERENCES:
                entries.append(
                    stack if field == _FRAMES else self._pools[raw][1] if field == _POOL else self._texts[raw]
                )

    def _look_up(self, fields: tuple[bytes, ...]) -> tuple[Action, StackIndex, tuple[int, Any], int]:
        """What the raw values stand for, kept for the next events that have them."""
        raw_action, _, _, _, _, frames, pool, category, metadata, context = fields
        action, stack = self._action(raw_action), self._stacks.get(frames)
        if stack is None:
            stack = self._stack(frames)
        label = self._labels.get((category, metadata, context))
        if label is None:
            label = self._label(category, metadata, context)
        if pool not in self._pools:
            self._pool(pool)
        return action, stack, self._pools[pool], label

    def _action(self, raw: bytes) -> Action:
        name = self._entry(raw)
        action = ACTIONS.get(name) if isinstance(name, str) else None
        if action is None:
            raise _Unusual
        if len(self._actions) < _MOST_CACHED:
            self._actions[raw] = action
        return action

    def _stack(self, raw: bytes) -> StackIndex:
        if raw[0] in _REFERENCES:
            value = self._entry(raw)
            if isinstance(value, list):  # written out once, with its frames, and looked up ever after
                value = self._memo.entries[memo_index(raw)] = self._tables.stack(value)
            if not isinstance(value, StackIndex):
                raise _Unusual
            return value
        references = raw[3:-1] if raw[2:3] == b"(" else raw[2:-1]
        stack = self._memo.stack(references) if references else StackIndex(0)
        if stack is None:
            raise _Unusual
        self._tables.spend(8 + len(raw) // 8)
        self._stacks[raw] = stack
        return stack

    def _pool(self, raw: bytes) -> None:
        value = self._entry(raw) if raw[0] in _REFERENCES else _pair(raw)
        self._tables.spend(8)
        self._pools[raw] = (self._tables.pool(value), value)

    def _label(self, *raws: bytes) -> int:
        values = []
        for raw in raws:
            values.append(self._entry(raw) if raw[:1] in (b"h", b"j") else _inline(raw))
            if raw not in self._texts:
                self._tables.spend(8 + len(raw) // 8)
                self._texts[raw] = _inline(raw)
        label = self._tables.label(values)
        self._tables.spend(8)
        self._labels[raws[0], raws[1], raws[2]] = label
        return label

    def _entry(self, reference: bytes) -> Any:
        index = memo_index(reference)
        if index >= len(self._memo.entries):
            raise _Unusual
        return self._memo.entries[index]


def _pattern(source: bytes, groups: list[str], *, is_oom: bool) -> _Pattern:
    empty = len(groups) + 1  # a group that matches nothing stands for the fields that are not written
    order = tuple(groups.index(field) + 1 if field in groups else empty for field in _FIELDS)
    memoized = tuple(_FIELDS.index(group) for group in groups if group in _MEMOIZED)
    return _Pattern(re.compile(source + b"()", re.DOTALL), order, memoized, is_oom)


def _pair(raw: bytes) -> tuple[int, int]:
    first = _COMPILED["place"].match(raw)
    assert first is not None
    return small_integer(first[0]), small_integer(raw[first.end() : -2])


def _inline(raw: bytes) -> str:
    """The text of a SHORT_BINUNICODE with its MEMOIZE; "" for nothing."""
    return raw[2:-1].decode("utf-8", "replace") if raw[:1] == b"\x8c" else ""
