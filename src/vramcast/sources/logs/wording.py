"""What engines print, as rows of `wordings.csv`: a needle that a line must hold, and a pattern whose named groups are
the facts.

A group is named `fact__unit`; units: b, kib, mib, gib (bytes), size ("1.5 GiB"), n (count), x (number), t (text).
Lines are bounded in size, without colours, progress bars one line per state. Patterns are bounded and see a bounded
part of a line, so that no line, however hostile, takes long.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.domain.model import Noun
from vramcast.errors import SourceError
from vramcast.sources.files import SNIFFED, encoding_of
from vramcast.units import GIB, KIB, MIB


class MeasuredRank(Noun, frozen=True):
    """What one process measured of its card."""

    label: str  # as the log calls it; "" where there is only one
    num_bytes: dict[str, int]  # by ledger category; "activations+communication" where only their sum is known
    stage: int | None = None  # of the pipeline, counted from 0


class OutOfMemoryMessage(Noun, frozen=True):
    """The figures of an out-of-memory message [bytes]. What it does not say is None."""

    tried: int | None = None  # the request that failed
    total: int | None = None  # of the card
    free: int | None = None
    process: int | None = None  # in use by this process, beside the allocator included
    others: int | None = None  # in use by other processes, where the message lists them
    allocated: int | None = None  # live tensors
    unallocated: int | None = None  # reserved, not allocated
    pools: int | None = None  # private pools, which CUDA graphs keep
    stage: str = ""  # what had been done: "load", "profile", "capture", "serve"


class ServingLog(Noun, frozen=True):
    """One start-up."""

    name: str  # of the file
    engine: str  # as questions name it
    version: str = ""  # as the log writes it
    options: dict[str, Any] = {}  # of `vramcast serve`, as far as the log says
    models: tuple[str, ...] = ()  # names and paths of the model, the most telling first
    quantisation: str = ""  # as the log calls it
    cards: tuple[str, ...] = ()  # names of cards, one per device where devices are listed
    card_bytes: int | None = None  # memory of the card in all
    held_bytes: int | None = None  # in use on the card before the server began
    ranks: tuple[MeasuredRank, ...] = ()
    counts: dict[str, float] = {}  # "tokens", "concurrency", "blocks"
    pool_is_rest: bool = True  # the cache takes what everything else leaves
    over_devices: bool = False  # the ranks are devices of one process: only their sum is comparable
    startups: int = 1
    cut: bool = False  # the file is longer than what was read of it
    out_of_memory: OutOfMemoryMessage | None = None
    refusal: str = ""  # what the engine said when it gave up


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
        raise SourceError("{}: {}", path, error.strerror or error) from None


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


def wording(needle: str, pattern: str) -> Wording:
    """A statement; NUMBER and SIZE stand for what they match.

    >>> wording("took", "took (?P<weights__gib>NUMBER) GiB").pattern.search("took 14.99 GiB")["weights__gib"]
    '14.99'
    """
    return Wording(needle, re.compile(pattern.replace("NUMBER", NUMBER).replace("SIZE", SIZE)))


def stated(engine: str) -> tuple[tuple[Wording, ...], tuple[Wording, ...]]:
    """What a start-up of an engine begins with, and what else it says: the rows of `wordings.csv`."""
    path = Path(__file__).with_name("wordings.csv")
    found: dict[str, list[Wording]] = {"marker": [], "wording": []}
    for name, kind, needle, pattern in csv.reader(path.read_text(encoding="utf-8").splitlines()):
        if name == engine:
            role, _, whole = kind.partition(" ")
            found[role].append(wording(needle, pattern)._replace(whole=bool(whole)))
    return tuple(found["marker"]), tuple(found["wording"])


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
