"""The journal of a sweep: every answer as one line, appended beside the results as it arrives.

The first line says which sweep and which version it belongs to. Lines reach the system at once, so that nothing is lost
when processes die; they are forced to the disk every `SYNC_SECONDS`, which is what a loss of power can cost. A last
line without its end is dropped, a damaged one is asked again.
"""

from __future__ import annotations

import fcntl
import os
import time
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from vramcast.errors import SourceError
from vramcast.sweeps.columns import Row
from vramcast.sweeps.spec import Sweep
from vramcast.version import __version__

FORMAT: Final = 1
SYNC_SECONDS: Final = 2.0
ENDING: Final = ".journal"

ABSENT: Final = -1


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
    row: msgspec.Raw


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
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise SourceError(
                f"{self.path}: another sweep is writing it; wait for that one or give another --out"
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
            raise SourceError(f"{self.path}: is no journal of a sweep; move it away or give another --out") from None
        if restart or found == self._header:
            return
        if found.vramcast != __version__:
            raise SourceError(
                f"{self.path}: holds answers of vramcast {found.vramcast}, this is {__version__}; give another --out, "
                "or --restart to ask everything again"
            )
        raise SourceError(
            f"{self.path}: holds answers of other questions than {sweep.name} has now; give another --out, or "
            "--restart to drop them"
        )

    def _begin(self) -> int:
        try:
            os.ftruncate(self._descriptor, 0)
            line = msgspec.json.encode(self._header) + b"\n"
            _write(self._descriptor, line, 0)
            os.fsync(self._descriptor)
            _sync_folder(self.path)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be written ({error.strerror})") from None
        return len(line)

    def _note(self, line: bytes, offset: int) -> None:
        try:
            record = msgspec.json.decode(line, type=Record)
            place, key = record.place, int(record.key, 16)
        except (msgspec.MsgspecError, ValueError):
            return  # damaged: asked again
        if not 0 <= place < len(self._offsets) or not 0 <= key < 2**64:
            return
        self._offsets[place], self._keys[place] = offset, key

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
                f"{self.path}: cannot be written ({error.strerror}); what stands in it is kept, make room and run the "
                "same command again"
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
                    record: dict[str, Any] = msgspec.json.decode(file.readline())
                    yield record["row"]

    def close(self) -> None:
        """Everything on the disk, and the file free for others."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """All of the data at an offset; what a full disk left half written is overwritten next time."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _sync_folder(path: Path) -> None:
    """Make the name of a new file last."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
