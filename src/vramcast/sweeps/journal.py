"""The journal of a sweep: every answer as one line, appended beside the results as it arrives.

The first line says which sweep and which version it belongs to. Lines reach the system at once, so that nothing is lost
when processes die; they are forced to the disk every `SYNC_SECONDS`, which is what a loss of power can cost. A last
line without its end is dropped. Every other line carries a checksum, and a damaged one is asked again.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from vramcast.errors import SourceError, text_of
from vramcast.sweeps.results import Row
from vramcast.sweeps.spec import Sweep
from vramcast.version import __version__

FORMAT: Final = 3  # 1 had no checksums, 2 no verdicts
SYNC_SECONDS: Final = 2.0
ENDING: Final = ".journal"

ABSENT: Final = -1
BINARY: Final[int] = getattr(os, "O_BINARY", 0)  # of Windows, which else turns ends of lines into others
LOCKED_BYTE: Final = 2**40  # beyond every journal: what Windows locks cannot be read either


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    journal: int
    vramcast: str
    sweep: str  # digest of the questions' source
    size: int


class Record(msgspec.Struct, frozen=True):
    """Any other line, its row left unread."""

    place: int
    key: str
    sum: str  # of all the rest
    row: msgspec.Raw


def checksum(place: int, key: str, row: bytes) -> str:
    """Of a line: its row as it is written."""
    return blake2b(b"%d %s %s" % (place, key.encode(), row), digest_size=8).hexdigest()


def line_of(place: int, key: str, row: Row) -> bytes:
    """A row as a line of the journal."""
    raw = msgspec.json.encode(row, enc_hook=text_of)
    return msgspec.json.encode(Record(place, key, checksum(place, key, raw), msgspec.Raw(raw))) + b"\n"


def record_of(line: bytes) -> Record | None:
    """What a line holds; None where it is damaged."""
    try:
        record = msgspec.json.decode(line, type=Record)
        whole = record.sum == checksum(record.place, record.key, bytes(record.row))
    except (msgspec.MsgspecError, ValueError):
        return None
    return record if whole else None


class Journal:
    """An open journal: nobody else can open it meanwhile. It holds 16 bytes per question in memory."""

    def __init__(self, path: Path, sweep: Sweep, *, restart: bool = False) -> None:
        """Open or begin a journal.

        Args:
            path: its file
            sweep: whose answers it keeps
            restart: drop the answers of before, whichever sweep they belong to

        Raises: SourceError when another process has it, it cannot be written, or it belongs to another sweep or version
        """
        self.path = path
        self._header = Header(journal=FORMAT, vramcast=__version__, sweep=sweep.digest, size=sweep.size)
        self._offsets = array("q", [ABSENT]) * sweep.size
        self._keys = array("Q", [0]) * sweep.size
        self._descriptor = self._locked()
        try:
            self._end = self._read(sweep, restart=restart)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._synced = time.monotonic()

    def _locked(self) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o644)
        except OSError as error:
            raise SourceError("{}: cannot be written ({})", self.path, error.strerror) from None
        try:
            _lock(descriptor)
        except OSError:
            os.close(descriptor)
            raise SourceError(
                "{}: another sweep is writing it; wait for that one or give another --out", self.path
            ) from None
        return descriptor

    def _read(self, sweep: Sweep, *, restart: bool) -> int:
        """Take over what is there; returns where the next line goes."""
        with open(self.path, "rb") as file:  # noqa: PTH123  # the lock is on a descriptor of our own
            first = file.readline()
            if first.endswith(b"\n"):
                self._check(first, sweep, restart=restart)
            if restart or not first.endswith(b"\n"):
                return self._begin()
            end = len(first)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._note(line, end)
                end += len(line)
        os.ftruncate(self._descriptor, end)
        return end

    def _check(self, line: bytes, sweep: Sweep, *, restart: bool) -> None:
        try:
            found = msgspec.json.decode(line, type=Header)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SourceError("{}: is no journal of a sweep; move it away or give another --out", self.path) from None
        if restart or found == self._header:
            return
        if found.journal != FORMAT:
            raise SourceError(
                "{}: was written in another form of journals (form {}, this is form {}); give another --out, or "
                "--restart to ask everything again", self.path, found.journal, FORMAT
            )
        if found.vramcast != __version__:
            raise SourceError(
                "{}: holds answers of vramcast {}, this is {}; give another --out, or --restart to ask everything "
                "again", self.path, found.vramcast, __version__
            )
        raise SourceError(
            "{}: holds answers of other questions than {} has now; give another --out, or --restart to drop them",
            self.path, sweep.name
        )

    def _begin(self) -> int:
        try:
            os.ftruncate(self._descriptor, 0)
            line = msgspec.json.encode(self._header) + b"\n"
            _write(self._descriptor, line, 0)
            os.fsync(self._descriptor)
            _sync_folder(self.path)
        except OSError as error:
            raise SourceError("{}: cannot be written ({})", self.path, error.strerror) from None
        return len(line)

    def _note(self, line: bytes, offset: int) -> None:
        record = record_of(line)
        if record is not None and 0 <= record.place < len(self._offsets):
            self._offsets[record.place], self._keys[record.place] = offset, int(record.key, 16)

    def __len__(self) -> int:
        return len(self._offsets) - self._offsets.count(ABSENT)

    def has(self, place: int) -> bool:
        """Whether a place has an answer."""
        return self._offsets[place] != ABSENT

    def key(self, place: int) -> str:
        """The key of the answer at a place."""
        return f"{self._keys[place]:016x}"

    def append(self, places: Iterable[int], lines: Iterable[bytes]) -> None:
        """Keep the records of some places.

        Raises: SourceError when the file cannot be written
        """
        lines = list(lines)
        try:
            _write(self._descriptor, b"".join(lines), self._end)
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()
        except OSError as error:
            raise SourceError(
                "{}: cannot be written ({}); what stands in it is kept, make room and run the same command again",
                self.path, error.strerror
            ) from None
        for place, line in zip(places, lines, strict=True):
            self._offsets[place] = self._end
            self._end += len(line)

    def sync(self) -> None:
        """Force what was written to the disk."""
        os.fsync(self._descriptor)
        self._synced = time.monotonic()

    def rows(self) -> Iterator[Row]:
        """The answers in the order of the questions, one at a time; places without one are left out."""
        with open(self.path, "rb") as file:  # noqa: PTH123
            for offset in self._offsets:
                if offset != ABSENT:
                    file.seek(offset)
                    record = record_of(file.readline())
                    if record is None:
                        raise SourceError("{}: was changed meanwhile; run the same command again", self.path)
                    row: Row = msgspec.json.decode(record.row)
                    yield row

    def close(self) -> None:
        """Everything on the disk, and the file free for others."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def _lock(descriptor: int) -> None:
    """Keep others out until the file is closed.

    Raises: OSError where somebody else has it
    """
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """All of the data at an offset; what a full disk left half written is overwritten next time."""
    view = memoryview(data)
    os.lseek(descriptor, offset, os.SEEK_SET)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(path: Path) -> None:
    """Make the name of a new file last, where a folder can be opened for that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
