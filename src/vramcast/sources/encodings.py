"""Which encoding a text has, by its first bytes: UTF-8, or UTF-16 as Windows shells write it."""

from __future__ import annotations

import codecs
from typing import Final

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
        raise SourceError(f"{name}: the log is empty; give what the program printed")
    for mark, encoding in MARKS:
        if sniffed.startswith(mark):
            return encoding
    if b"\0" not in sniffed:
        return "utf-8"
    even, odd = sniffed[::2], sniffed[1::2]
    for encoding, low, high in (("utf-16-le", even, odd), ("utf-16-be", odd, even)):
        if not low.count(0) and high.count(0) > 0.7 * len(high):
            return encoding
    raise SourceError(f"{name}: not a text file; give what the program printed")
