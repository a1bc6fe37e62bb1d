"""The bytes of a recording, unpacked, in windows: whatever the size of the file, little of it is in memory.

A hostile file ends in one sentence and not in an exhausted machine.

JSON of any size, walked value by value: only one element of a list is in memory at a time.
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from msgspec import MsgspecError, json

from vramcast.errors import Note, SourceError, VramcastError


class Damaged(VramcastError):
    """A rule that a value breaks; the reader that knows the file makes a SourceError of it."""


LARGEST_BYTES: Final = 8 * 2**30
"""Unpacked; a million events with stacks take a quarter of a GB to one GB [bytes]."""
LARGEST_RATIO: Final = 250
"""Unpacked over packed size; real recordings have 20 to 100."""
FREE_RATIO_BYTES: Final = 256 * 2**20
"""Below this any ratio is taken [bytes]."""
MOST_EVENTS: Final = 1 << 24
"""49 bytes each in columns and a few references: about 2 GB."""
MOST_VALUES: Final = 1 << 25
"""Values held at once beside the events; a container counts as 8, a text by its length."""
FREE_VALUES: Final = 1 << 20
"""So many of them any file may hold."""
VALUES_PER_BYTE: Final = 2
"""And so many more for each of its bytes: recordings with nothing but blocks and stacks have 0.8."""
VALUES_PER_PACKED_BYTE: Final = 100
"""The same of a compressed one: 5 where little is alike, as many times more as it is smaller where much is."""
LONGEST_TEXT: Final = 1 << 20
DEEPEST: Final = 100
"""Containers inside one another."""
MOST_DEVICES: Final = 4096
LARGEST_ADDRESS: Final = 2**64 - 1
LARGEST_SIZE: Final = 2**63 - 1


def most_values(file_bytes: int, *, is_packed: bool) -> int:
    """Values that a file of that size may hold beside its events: a small file must not ask for much work."""
    each = VALUES_PER_PACKED_BYTE if is_packed else VALUES_PER_BYTE
    return min(MOST_VALUES, FREE_VALUES + each * file_bytes)


CHUNK_BYTES: Final = 4 * 2**20
_READ_BYTES: Final = 2**20
GZIP: Final = b"\x1f\x8b"
ZIP: Final = b"PK\x03\x04"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
DEEPEST_PACKING: Final = 2  # a .gz inside a .zip


class Readable(Protocol):
    """Where bytes come from."""

    def read(self, size: int, /) -> bytes: ...


class Source:
    """A recording being read: its name for sentences, and its unpacked bytes up to a limit.

    Raises: SourceError when the bytes end the limit, unpack to far more than was packed, or are damaged.
    """

    def __init__(self, stream: Readable, *, name: str, limit_bytes: int, file_bytes: int, is_packed: bool) -> None:
        """Read from `stream`, which is or unpacks a file of that size."""
        self.name = name
        self.most_values = most_values(file_bytes, is_packed=is_packed)
        self._stream = stream
        self._limit = limit_bytes
        self._packed = file_bytes if is_packed else None
        self._read = 0
        self._ahead = b""

    def error(self, problem: str) -> SourceError:
        """The error for this recording."""
        return SourceError("{}: {}", self.name, problem)

    def peek(self, size: int) -> bytes:
        """The next bytes, left where they are."""
        while len(self._ahead) < size and (more := self._next(size - len(self._ahead))):
            self._ahead += more
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        """At most so many bytes; b"" at the end."""
        if self._ahead:
            part, self._ahead = self._ahead[:size], self._ahead[size:]
            return part
        return self._next(size)

    def _next(self, size: int) -> bytes:
        try:
            part = self._stream.read(min(size, _READ_BYTES))
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as e:
            raise self.error(Note("the compressed data is damaged ({}); record or copy it again", e)) from None
        self._read += len(part)
        if self._read > self._limit:
            raise self.error(
                f"unpacked it has more than {self._limit:,} bytes; record with a smaller max_entries or raise the limit"
            )
        packed = self._packed
        if packed is not None and self._read > FREE_RATIO_BYTES and self._read > LARGEST_RATIO * packed:
            raise self.error(
                f"its {packed:,} bytes unpack to more than {LARGEST_RATIO} times that; unpack it first if it is yours"
            )
        return part


@contextmanager
def opened(path: Path, *, limit_bytes: int) -> Iterator[Source]:
    """The recording in a file: as it is, or inside gzip, zip (also what `torch.save` writes) or zstd.

    Raises: SourceError
    """
    try:
        file = path.open("rb")
    except OSError as error:
        reason = error.strerror or error
        raise SourceError("{}: cannot be read: {}; give the path of a recording", path.name, reason) from None
    with file:
        yield source_of(file, name=path.name, limit_bytes=limit_bytes)


def source_of(file: BinaryIO, *, name: str, limit_bytes: int) -> Source:
    """The recording in an open file, as it is or packed.

    Raises: SourceError
    """
    stream: Readable = file
    is_packed, size = False, 0
    try:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(4)
        file.seek(0)
        for _ in range(DEEPEST_PACKING):
            unpacked = _unpacked(stream, head, name)
            if unpacked is stream:
                break
            stream, is_packed = unpacked, True
            source = Source(stream, name=name, limit_bytes=limit_bytes, file_bytes=size, is_packed=True)
            head = source.peek(4)
            stream = source
    except (OSError, zipfile.BadZipFile) as error:
        raise SourceError("{}: cannot be read: {}; give the path of a recording", name, error) from None
    return Source(stream, name=name, limit_bytes=limit_bytes, file_bytes=size, is_packed=is_packed)


def _unpacked(stream: Any, head: bytes, name: str) -> Readable:
    if head[:2] == GZIP:
        return gzip.GzipFile(fileobj=_Unseekable(stream), mode="rb")  # type: ignore[call-overload, no-any-return]
    if head == ZSTD:
        return _zstd(stream, name)
    if head == ZIP and hasattr(stream, "seek"):
        return _member(stream, name)
    return stream  # type: ignore[no-any-return]


class _Unseekable:
    """What gzip needs of a file, which may lie inside another archive."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def read(self, size: int = _READ_BYTES) -> bytes:
        return self._stream.read(size if size and size > 0 else _READ_BYTES)


def _member(file: Any, name: str) -> Readable:
    """The one recording inside a zip; `torch.save` calls it data.pkl."""
    archive = zipfile.ZipFile(file)
    files = [info for info in archive.infolist() if not info.is_dir()]
    pickles = [info for info in files if info.filename.endswith("data.pkl")]
    chosen = pickles or files
    if len(chosen) != 1:
        raise SourceError(
            "{}: the zip holds {} files that could be meant; give one with one recording", name, len(chosen)
        )
    if chosen[0].flag_bits & 1:
        raise SourceError("{}: the zip is encrypted; unpack it first", name)
    return archive.open(chosen[0])


def _zstd(stream: Any, name: str) -> Readable:
    try:
        import zstandard
    except ImportError:
        raise SourceError(
            "{}: zstd needs the package zstandard; pip install zstandard, or unpack it with zstd -d", name
        ) from None
    reader: Readable = zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(stream)
    return reader


class Window:
    """Bytes of a source from `base` on; `position` is where the reader is in them."""

    def __init__(self, source: Source) -> None:
        """Begin where `source` stands."""
        self._source = source
        self._data, self._position, self._base = b"", 0, 0
        self._at_end = False

    def _refill(self, wanted: int = CHUNK_BYTES) -> None:
        """Let go of what was read, and fetch until there are so many bytes, or no more."""
        parts = [self._data[self._position :]]
        size = len(parts[0])
        while size < wanted:
            part = self._source.read(wanted - size)
            if not part:
                self._at_end = True
                break
            parts.append(part)
            size += len(part)
        self._base += self._position
        self._data, self._position = b"".join(parts), 0


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
