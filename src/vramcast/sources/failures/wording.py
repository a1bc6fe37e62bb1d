"""The words of one failure, as a table row: plain words that must stand there, then patterns whose groups are figures.

Every quantifier of a pattern is bounded and a pattern is tried only where its plain words stand, so that reading takes
time in proportion to the text. All sizes become bytes: libraries that print "GB", "MB" or "G" here divide by powers of
1024, whatever they call them.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from vramcast.lazy import lazy_pattern
from vramcast.units import GIB, KIB, MIB

MOST_DIGITS: Final = 30
"""What `int` is asked to read of a text; a longer row of digits is no figure [characters]."""

MOST_BYTES: Final = 1 << 80
"""Beyond what any library's 64 bits can print, even wrapped around and scaled [bytes]."""


class Figure(Struct, frozen=True):
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

DECIMAL_COMMA: Final = lazy_pattern(r"(?<=[0-9]),(?=[0-9]{1,2}$|[0-9]{4,}$)", re.ASCII)
"""Thousands are set apart in threes: behind a last comma with fewer or more digits are decimals ("1900,00 MiB")."""

PLACE: Final = lazy_pattern(r"(?<!\?P)<([a-z_]+)(?::([a-z]+))?>")


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


Numbers = dict[str, int | float | str]

LONGEST_HEAD: Final = 2_048
"""What the first pattern sees of a text [characters]."""


class Wording(Struct, frozen=True):
    """One way to say that something failed."""

    name: str
    words: str  # plain words with which the message begins, in any case
    rest: str = ""  # pattern of what follows them; NUMBER, SIZE and <figure> as in `with_figures`
    parts: tuple[str, ...] = ()  # patterns looked for behind it, each on its own: a text may lack some
    holds: tuple[str, ...] = ()  # plain words that must stand behind it, in any case
    reach: int = 600  # how far behind it parts and words may stand [characters]
    before: str = ""  # pattern looked for in the 300 characters before the words
    preceded: str = ""  # plain words that must stand in the 300 characters before
    sums: str = ""  # pattern whose figures are added up over all its matches behind the words
    marks: tuple[tuple[str, str], ...] = ()  # (suffix of the name, pattern): what else the message tells
    weak: bool = False  # says little: gives way to any other statement about the same place
    versions: str = ""


class Match(Struct, frozen=True):
    """A wording found in a text."""

    name: str
    end: int
    numbers: Numbers
    start: int = 0


Reader = Callable[[str, int, int], Iterator[Match]]
"""Reads a table between two places of a text, one match a device."""


class Table(Struct, frozen=True):
    """A table of figures: what it begins with, and who reads it."""

    names: tuple[str, ...]  # of the wordings its reader gives
    words: str  # as in Wording
    read: Reader
    reach: int = 30_000


class Family(Struct, frozen=True):
    """All wordings of one library."""

    title: str
    wordings: tuple[Wording, ...]
    about: str = "device"  # whose memory: "device", "host", "other" (none, or on the chip) or "support" (a table)
    source: str = ""  # the project whose code prints them
    tables: tuple[Table, ...] = ()


BEFORE: Final = 300
"""How far before its words a message is looked at [characters]."""

LEAD: Final = 200
"""How far before its plain words a pattern may begin to match [characters]."""


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of a table row, compiled when first needed."""
    pattern = pattern.replace("NUMBER", NUMBER).replace("INTEGER", INTEGER).replace("SIZE", SIZE)
    return re.compile(with_figures(pattern), re.ASCII | re.IGNORECASE)


@cache
def plain_words(pattern: str) -> str:
    """The longest run of plain characters that whatever matches a pattern must hold, in lower case.

    >>> plain_words(r"of which ?<free_bytes> ?is free"), plain_words("a|b"), plain_words(r"(?:x )?on device <device>")
    ('of which', '', 'on device ')
    """
    bare = re.sub(r"<[a-z_:]+>|SIZE|NUMBER|INTEGER", "\0", re.sub(r"\(\?P<[a-z_]+>", "(", pattern))
    bare = re.sub(
        r"\\[.()\[\]|*+?{}/-]",
        lambda escaped: {".": "\1", "(": "\2", ")": "\3", "[": "\4"}.get(escaped[0][1], "\0"),
        bare,
    )
    bare = re.sub(r"\\.", "\0", re.sub(r"\[[^\]]*\]", "\0", bare))
    quantified = r"(?:[?*+]|\{[0-9,]+\})"
    while (shorter := re.sub(rf"\([^()]*\){quantified}*\??", "\0", bare)) != bare:
        bare = shorter
    if "|" in bare or "(" in bare:
        return ""
    bare = re.sub(rf".{quantified}", "\0", bare).translate(str.maketrans("\1\2\3\4", ".()["))
    return max(re.split(r"[\0^$.]", bare), key=len).lower()


def match_at(wording: Wording, text: str, lowered: str, start: int, stop: int) -> Match | None:
    """The figures of a wording whose words stand at `start`; `stop` is where the next statement may begin.

    Args:
        lowered: the text in lower case, of the same length
    """
    after = start + len(wording.words)
    window = min(stop, after + wording.reach)
    end = after
    for words in wording.holds:
        place = lowered.find(words.lower(), start, window)
        if place < 0:
            return None
        end = max(end, place + len(words))
    if wording.preceded and lowered.find(wording.preceded.lower(), max(0, start - BEFORE), start) < 0:
        return None
    head = compiled(wording.rest).match(text, after, min(after + LONGEST_HEAD, len(text)))
    if head is None:
        return None
    window = max(window, head.end())
    found = [head]
    if wording.before and (earlier := _last(compiled(wording.before), text, start)):
        found.append(earlier)
    parts = (_search(pattern, text, lowered, start, window) for pattern in wording.parts)
    found += [part for part in parts if part is not None]
    end = max(end, *(match.end() for match in found))
    name = wording.name
    for suffix, pattern in wording.marks:
        name += f"-{suffix}" if _search(pattern, text, lowered, start, window) else ""
    numbers = _numbers(found)
    if wording.sums and _search(wording.sums, text, lowered, start, window):
        end = max(end, _add_up(compiled(wording.sums), text, start, window, numbers))
    return Match(name, end, numbers)


def _search(pattern: str, text: str, lowered: str, start: int, stop: int) -> re.Match[str] | None:
    """The first match of a pattern, looked for only near its plain words."""
    if words := plain_words(pattern):
        place = lowered.find(words, start, stop)
        if place < 0:
            return None
        start = max(start, place - LEAD)
    return compiled(pattern).search(text, start, stop)


def _numbers(found: list[re.Match[str]]) -> Numbers:
    """The figures of all groups; the first that states a figure wins."""
    numbers: Numbers = {}
    for match in found:
        for group, written in match.groupdict().items():
            if written is not None:
                name, value = read_group(group, written)
                if value is not None:
                    numbers.setdefault(name, value)
    return numbers


def _add_up(pattern: re.Pattern[str], text: str, start: int, stop: int, numbers: Numbers) -> int:
    """Add what all matches state; returns where the last of them ends."""
    total, count, end = 0, 0, start
    group = next(iter(pattern.groupindex))
    for match in pattern.finditer(text, start, stop):
        value = read_group(group, match[group])[1]
        if isinstance(value, int):
            total, count, end = total + value, count + 1, match.end()
    if count:
        numbers |= {group.partition("__")[0]: total, "other_processes": count}
    return end


def _last(pattern: re.Pattern[str], text: str, stop: int) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text, max(0, stop - BEFORE), stop), maxlen=1)), None)
