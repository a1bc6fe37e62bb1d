"""What engines print, as tables: a needle that a line must hold, and a pattern whose named groups are the facts.

A group is named `fact__unit`; units: b, kib, mib, gib (bytes), size ("1.5 GiB"), n (count), x (number), t (text).
Patterns are bounded and see a bounded part of a line, so that no line, however hostile, takes long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from vramcast.sources.logs.lines import LogLine
from vramcast.units import GIB, KIB, MIB

MOST_RECORDS: Final = 20_000
"""Facts kept of one start-up; a real one has a few hundred."""

LONGEST_STATEMENT: Final = 4_096
"""What a pattern sees of a line, if it does not want the whole [characters]."""

LARGEST_NUMBER: Final = 1e18

NUMBER: Final = r"-?\d[\d,]{0,20}(?:\.\d{1,9})?"
SIZE: Final = rf"{NUMBER} ?(?:bytes|[KMGT]i?B|B)\b"
UNITS: Final[dict[str, int]] = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB}
SIZE_UNITS: Final[dict[str, int]] = {"B": 1, "bytes": 1, "K": KIB, "M": MIB, "G": GIB, "T": GIB << 10}
"""All engines count in binary units, whatever they call them."""


class Wording(NamedTuple):
    """One statement of an engine."""

    needle: str
    pattern: re.Pattern[str]
    whole: bool = False  # it keeps the rest of a line, however long


def rest_of_line(needle: str, fact: str) -> Wording:
    """A statement whose fact is all that follows a needle."""
    return Wording(needle, re.compile(rf"{re.escape(needle)}(?P<{fact}__t>.*)"), whole=True)


def wording(needle: str, pattern: str) -> Wording:
    """A statement; NUMBER and SIZE stand for what they match.

    >>> wording("took", "took (?P<weights__gib>NUMBER) GiB").pattern.search("took 14.99 GiB")["weights__gib"]
    '14.99'
    """
    return Wording(needle, re.compile(pattern.replace("NUMBER", NUMBER).replace("SIZE", SIZE)))


class Record(NamedTuple):
    """The facts of one statement: which process said what, and where."""

    number: int
    label: str
    facts: dict[str, Any]


class Startup:
    """What one start of a server said."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep a statement."""
        if len(self.records) < MOST_RECORDS:
            self.records.append(record)

    def values(self, fact: str, label: str | None = None) -> list[Any]:
        """All values of a fact in the order they were said, of one process or of all."""
        return [
            record.facts[fact]
            for record in self.records
            if fact in record.facts and (label is None or record.label == label)
        ]

    def last(self, fact: str, label: str | None = None) -> Any:
        """The latest value of a fact; None where nobody said it."""
        return next(reversed(self.values(fact, label)), None)

    def labels(self, *facts: str) -> tuple[str, ...]:
        """The processes that stated any of the facts."""
        stating = (record.label for record in self.records if any(fact in record.facts for fact in facts))
        return tuple(dict.fromkeys(stating))


class Reader(NamedTuple):
    """One engine's statements."""

    engine: str
    markers: tuple[Wording, ...]  # what a start-up begins with
    wordings: tuple[Wording, ...]
    label: Callable[[str], str]  # the process a line comes from
    measures: frozenset[str]  # facts that only a start-up on its way states
    joins: tuple[str, ...] = ()  # after a line with one of these the next marker belongs to the same start-up


def startups(reader: Reader, lines: Iterable[LogLine]) -> tuple[Startup, int]:
    """The last start-up among lines that hold needles of a reader, and how many there are.

    A marker begins another start-up when the same process has said the same before and something was measured since.
    """
    current, count, measured, joined = Startup(), 1, False, False
    said: set[tuple[str, str]] = set()
    for line in lines:
        label = reader.label(line.text)
        joined = joined or any(needle in line.text for needle in reader.joins)
        for marker in reader.markers:
            facts = facts_of(marker, line.text)
            if facts is None:
                continue
            key = (marker.needle, label)
            if key in said and measured and not joined:
                current, measured, count = Startup(), False, count + 1
                said.clear()
            joined = False
            said.add(key)
            current.add(Record(line.number, label, facts))
        for known in reader.wordings:
            facts = facts_of(known, line.text)
            if facts:
                current.add(Record(line.number, label, facts))
                measured = measured or not reader.measures.isdisjoint(facts)
    return current, count


def facts_of(known: Wording, text: str) -> dict[str, Any] | None:
    """The facts of a statement in a line; None where the line says something else."""
    if known.needle not in text:
        return None
    match = known.pattern.search(text) if known.whole else known.pattern.search(text, 0, LONGEST_STATEMENT)
    if match is None:
        return None
    facts = {}
    for group, value in match.groupdict().items():
        name, _, unit = group.partition("__")
        if value is not None:
            facts[name] = _value(value.strip(), unit)
    return {name: value for name, value in facts.items() if value is not None}


def _value(text: str, unit: str) -> Any:
    if unit == "t":
        return text
    if unit == "size":
        return size_of(text)
    number = float(text.replace(",", "")) * UNITS.get(unit, 1)
    if abs(number) > LARGEST_NUMBER:
        return None
    return number if unit == "x" else round(number)


def size_of(text: str) -> int | None:
    """Bytes of "1.5 GiB"; None for what is no size.

    >>> size_of("1.5 GiB"), size_of("786.00 MiB"), size_of("12 bytes"), size_of("much")
    (1610612736, 824180736, 12, None)
    """
    match = re.match(rf"({NUMBER}) ?(bytes|[KMGTB])", text)
    if match is None or abs(float(match[1].replace(",", ""))) > LARGEST_NUMBER / GIB:
        return None
    return round(float(match[1].replace(",", "")) * SIZE_UNITS[match[2]])
