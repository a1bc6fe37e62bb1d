"""Figures of failures: their canonical names with units, and how texts write them.

All sizes become bytes. Libraries that print "GB", "MB" or "G" here divide by powers of 1024, whatever they call them.
"""

from __future__ import annotations

import csv
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.units import GIB, KIB, MIB

MOST_DIGITS: Final = 30
"""What `int` is asked to read of a text; a longer row of digits is no figure [characters]."""

MOST_BYTES: Final = 1 << 80
"""Beyond what any library's 64 bits can print, even wrapped around and scaled [bytes]."""


class Figure(NamedTuple):
    """What one number of a statement is."""

    unit: str  # "bytes", "count", "ratio", "index" or "text"
    meaning: str


@cache
def table(name: str) -> tuple[list[str], ...]:
    """The rows of a table beside this module, without its header; trailing cells that are empty may be left out."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return tuple(csv.reader(file))[1:]


NUMBERS: Final[dict[str, Figure]] = {name: Figure(unit, meaning) for name, unit, meaning in table("figures.csv")}
"""Every name a statement's `numbers` may have."""

NUMBER: Final = r"-?[0-9](?:[0-9,]{0,29}[0-9])?(?:\.[0-9]{1,20})?"
INTEGER: Final = r"-?[0-9](?:[0-9,]{0,29}[0-9])?"
SIZE: Final = rf"{NUMBER} ?(?:bytes|byte|[KMGTPE]i?B?|B)(?![0-9A-Za-z])"
WORD: Final = r"[^\s,;()`'\"]{1,120}"

UNITS: Final[dict[str, int]] = {
    "": 1, "B": 1, "BYTES": 1, "BYTE": 1, "K": KIB, "M": MIB, "G": GIB, "T": GIB << 10, "P": GIB << 20, "E": GIB << 30,
}  # fmt: skip
"""Binary, as every library here divides; "KiB", "KB" and "K" are one."""

WRITTEN: Final[dict[str, str]] = {
    "bytes": SIZE, "count": INTEGER, "ratio": NUMBER, "index": r"-?[0-9]{1,18}", "text": WORD,
}  # fmt: skip
PLAIN: Final[dict[str, str]] = {"b": INTEGER, "k": NUMBER, "m": NUMBER, "g": NUMBER, "percent": NUMBER}
"""Numbers whose unit stands elsewhere: `<free_bytes:m>` is a bare number of MiB."""

DECIMAL_COMMA: Final = re.compile(r"(?<=[0-9]),(?=[0-9]{1,2}$|[0-9]{4,}$)", re.ASCII)
"""Thousands are set apart in threes: behind a last comma with fewer or more digits are decimals ("1900,00 MiB")."""

PLACE: Final = re.compile(r"(?<!\?P)<([a-z_]+)(?::([a-z]+))?>")


def with_figures(pattern: str) -> str:
    """A regular expression in which `<name>` and `<name:unit>` are named groups for figures of NUMBERS.

    >>> re.search(with_figures("<free_bytes> free"), "356.00 MiB free")["free_bytes__"]
    '356.00 MiB'
    """
    return PLACE.sub(_group, pattern)


def _group(place: re.Match[str]) -> str:
    name, unit = place[1], place[2] or ""
    return f"(?P<{name}__{unit}>{PLAIN[unit] if unit else WRITTEN[NUMBERS[name].unit]})"


def read_group(group: str, written: str) -> tuple[str, int | float | str | None]:
    """The name and the value of a group that `with_figures` made.

    >>> read_group("free_bytes__", "1.5 GiB"), read_group("free_bytes__m", "12"), read_group("kv_tokens__", "7,344")
    (('free_bytes', 1610612736), ('free_bytes', 12582912), ('kv_tokens', 7344))
    """
    name, _, unit = group.partition("__")
    kind = NUMBERS[name].unit
    if kind == "text":
        return name, written[:200]
    if kind == "bytes":
        return name, size_of(written + {"": "", "b": " B"}.get(unit, f" {unit.upper()}"))
    if kind == "ratio":
        value = _number(written)
        return name, None if value is None else value / (100 if unit == "percent" else 1)
    value = _number(written)
    return name, None if value is None else int(value)


@lru_cache(maxsize=1024)
def size_of(written: str) -> int | None:
    """Bytes of a size as texts write it; None for what is no size or beyond any machine.

    >>> size_of("9.28 GiB"), size_of("0 bytes"), size_of("15.48G"), size_of("1,024 KB"), size_of("much")
    (9964324127, 0, 16621523436, 1048576, None)
    >>> size_of("1900,00 MiB") == 1900 * MIB
    True
    """
    written = written.strip()
    letters = written.lstrip("-0123456789,. ")
    unit = letters.upper()
    factor = UNITS.get(unit) or UNITS.get(unit.removesuffix("B").removesuffix("I"))
    value = _number(written[: len(written) - len(letters)].rstrip())
    if factor is None or value is None or abs(value) > MOST_BYTES / factor:
        return None
    return value * factor if isinstance(value, int) else round(value * factor)


def _number(written: str) -> int | float | None:
    digits = DECIMAL_COMMA.sub(".", written).replace(",", "")
    if len(digits) > MOST_DIGITS + 14:
        return None
    try:
        return float(digits) if "." in digits else int(digits)
    except ValueError:
        return None
