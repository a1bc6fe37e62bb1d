"""JSON of any size, walked value by value: only one element of a list is in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import MsgspecError, json

from vramcast.errors import Note
from vramcast.sources.snapshots.streams import CHUNK_BYTES, DEEPEST, Source, Window
from vramcast.sources.snapshots.tables import Damaged

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
        return Damaged("at byte {:,} of the JSON {}", self._base + self._position, problem)

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
            raise self.error(Note("stands {!r} where {!r} belongs; copy or record it again", shown, byte.decode()))
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
                raise self.error(Note(
                    "one element has more than {:,} bytes; no recording writes such", LARGEST_ELEMENT
                ))
            self._refill(max(CHUNK_BYTES, 2 * (len(self._data) - self._position)))

    def decoded(self, kind: Any = Any) -> Any:
        """The next value, as plain containers or as the type asked for."""
        return self.decode(self.value(), kind)

    def decode(self, raw: bytes, kind: Any = Any) -> Any:
        """A value that was taken as written."""
        try:
            return json.decode(raw, type=kind)
        except (MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise self.error(Note("a value cannot be used ({}); copy or record it again", str(problem)[:120])) from None

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
            raise self.error(Note("containers lie more than {} deep in one another; no recording does", DEEPEST))
        self.expect(first)
        if self.peek() != last:
            yield None
            while self.peek() == b",":
                self._position += 1
                yield None
        self.expect(last)
        self._depth -= 1
