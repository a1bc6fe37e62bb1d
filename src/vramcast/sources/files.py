"""Files: the encoding of a text by its first bytes, UTF-8 or UTF-16 as Windows shells write it; writing them whole."""

from __future__ import annotations

import codecs
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from vramcast.errors import SourceError

SNIFFED: Final = 4096
"""How much of a file tells its encoding [bytes]."""

MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def encoding_of(sniffed: bytes, *, name: str) -> str:
    """The encoding of a text.

    Args:
        sniffed: its first bytes, at most SNIFFED
        name: of the file, for the error

    Raises: SourceError when there is nothing, or no text
    """
    if not sniffed.strip():
        raise SourceError("{}: the log is empty; give what the program printed", name)
    for mark, encoding in MARKS:
        if sniffed.startswith(mark):
            return encoding
    if b"\0" not in sniffed:
        return "utf-8"
    even, odd = sniffed[::2], sniffed[1::2]
    for encoding, low, high in (("utf-16-le", even, odd), ("utf-16-be", odd, even)):
        if not low.count(0) and high.count(0) > 0.7 * len(high):
            return encoding
    raise SourceError("{}: not a text file; give what the program printed", name)


class Content(Struct, frozen=True):
    """What goes into a file of a folder."""

    data: str | bytes
    executable: bool = False


def check_writable(*paths: Path | None) -> None:
    """Refuse before any work what cannot be written to after it.

    Raises: SourceError for a folder that is not there, or in place of a file
    """
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise SourceError("{}: No such file or directory; name a folder that is there", path)
        if path.is_dir():
            raise SourceError("{}: is a folder; name a file in it", path)


def write_whole(path: Path, data: str | bytes) -> None:
    """One file. A link's target is replaced, not the link; a device or pipe is written to as it is.

    Raises: SourceError where it cannot be written
    """
    with _one_sentence(path):
        if path.exists() and not path.is_file():
            path.write_bytes(_encoded(data))
            return
        target = path.resolve()
        with _draft(target, _encoded(data)) as draft:
            if target.exists():
                shutil.copymode(target, draft)
            draft.replace(target)


def write_folder(directory: Path, files: Mapping[str, Content]) -> None:
    """All files of a folder or none: nothing is put in place before everything is on the disk.

    Args:
        directory: made where it is missing, and gone again where writing fails
        files: by name

    Raises: SourceError where they cannot be written
    """
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    drafts: dict[Path, Path] = {}
    with _one_sentence(directory):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                drafts[directory / name] = _drafted(directory / name, _encoded(content.data))
                drafts[directory / name].chmod(0o755 if content.executable else 0o644)
            for path, draft in drafts.items():
                draft.replace(path)
        except OSError:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
            with suppress(OSError):
                for folder in made:
                    folder.rmdir()
            raise


@contextmanager
def _draft(target: Path, data: bytes) -> Iterator[Path]:
    draft = _drafted(target, data)
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _drafted(target: Path, data: bytes) -> Path:
    """The data in a file beside its target; nothing where that fails."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # some file systems say only now that they are full
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError("{}: {}; name another place, or make room", path, error.strerror or error) from None


def _encoded(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
