"""Lines of a log: bounded in size, in any usual encoding, without colours; progress bars one line per state."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from vramcast.errors import SourceError
from vramcast.sources.encodings import SNIFFED, encoding_of

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_LOG: Final = 64 << 20
"""A start-up is over long before; what follows in a larger log is not read [characters]."""

MOST_LINES: Final = 1_000_000
"""As `LARGEST_LOG`, for logs of short lines [count]."""

LONGEST_LINE: Final = 64 << 10
"""The longest line of a server, its whole configuration, has a tenth of that; the rest is dropped [characters]."""

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
            encoding = encoding_of(file.peek(SNIFFED)[:SNIFFED], name=str(path))
            with io.TextIOWrapper(file, encoding=encoding, errors="replace") as text:
                yield LogLines(text)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
