"""Lines of a log: bounded in size, in any usual encoding, without colours; progress bars one line per state."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from vramcast.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_LOG: Final = 64 << 20
"""A start-up is over long before; what follows in a larger log is not read [characters]."""

MOST_LINES: Final = 1_000_000
"""As `LARGEST_LOG`, for logs of short lines [count]."""

LONGEST_LINE: Final = 64 << 10
"""The longest line of a server, its whole configuration, has a tenth of that; the rest is dropped [characters]."""

SNIFFED: Final = 4096
"""How much of a file tells its encoding [bytes]."""

MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

COLOURS: Final = re.compile(r"(?:\x1b|#033|\^\[)\[[0-9;?]{0,20}[A-Za-z]")
"""Terminal sequences, also as syslog and `cat -v` write the escape character."""


class LogLine(NamedTuple):
    """One line and where it stands."""

    number: int
    text: str


class LogLines:
    """The lines of a text, read once, and whether any were left out."""

    def __init__(self, text: io.TextIOBase) -> None:
        self.cut = False  # the text is longer than what is read of it
        self._text = text

    def __iter__(self) -> Iterator[LogLine]:
        number = used = 0
        while line := self._text.readline(LONGEST_LINE):
            number += 1
            used += len(line)
            yield LogLine(number, COLOURS.sub("", line) if "[" in line else line)
            while not line.endswith("\n") and used < LARGEST_LOG:
                if not (line := self._text.readline(LONGEST_LINE)):
                    return
                used += len(line)
            if used >= LARGEST_LOG or number >= MOST_LINES:
                self.cut = bool(self._text.readline(1))
                return


def log_lines(path: Path) -> Iterator[LogLines]:
    """The lines of a file, one object that is good until the generator goes on.

    Raises: SourceError naming the file when it cannot be read, is empty or holds no text
    """
    try:
        with path.open("rb") as file:
            encoding = _encoding(file.peek(SNIFFED)[:SNIFFED], name=str(path))
            with io.TextIOWrapper(file, encoding=encoding, errors="replace") as text:
                yield LogLines(text)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


def _encoding(sniffed: bytes, *, name: str) -> str:
    """The encoding of a text by its first bytes."""
    if not sniffed.strip():
        raise SourceError(f"{name}: the log is empty")
    for mark, encoding in MARKS:
        if sniffed.startswith(mark):
            return encoding
    if b"\0" not in sniffed:
        return "utf-8"
    even, odd = sniffed[::2], sniffed[1::2]
    for encoding, low, high in (("utf-16-le", even, odd), ("utf-16-be", odd, even)):
        if not low.count(0) and high.count(0) > 0.7 * len(high):
            return encoding
    raise SourceError(f"{name}: not a text file; give what the server printed")
