"""Any text, file or stream -> the failures it tells of, and facts beside them that help to explain them.

Of a file of any size the beginning and the end are searched, in bounded memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from pathlib import Path
from typing import IO, Final

from msgspec.structs import replace

from vramcast.domain.failure import Statement
from vramcast.domain.model import Noun
from vramcast.errors import SourceError
from vramcast.sources.failures.families import Spoken, may_speak, spoken, vocabulary
from vramcast.sources.failures.text import RANK, Block, Run, Stated, blocks, passed, run_of, stated
from vramcast.sources.failures.text import ROOTS as FACT_ROOTS
from vramcast.sources.files import SNIFFED, encoding_of


class Fact(Noun, frozen=True):
    """Something else that the text says."""

    name: str  # as in FACTS
    value: str | int | float | bool
    line: int  # from 1
    statement: int | None = None  # number of the statement whose traceback or line says so; None: the text at large


class Failures(Noun, frozen=True):
    """Everything that was read of a text."""

    statements: tuple[Statement, ...] = ()  # in the order of the text, repeats merged
    context: tuple[Fact, ...] = ()
    lines: int = 0  # of the whole text, where it was counted
    cut: bool = False  # the text is longer than what was read of it

    def facts(self, name: str, statement: int | None = None) -> tuple[str | int | float | bool, ...]:
        """Values of a fact, of one statement or of the text at large and all statements."""
        return tuple(
            fact.value
            for fact in self.context
            if fact.name == name and (statement is None or fact.statement in (None, statement))
        )


LONGEST_TEXT: Final = 2_000
"""Of a statement, as it is kept [characters]."""

MOST_STATEMENTS: Final = 10_000
"""Different statements that are kept of a text."""

MOST_EXPLAINED: Final = 200
"""Statements whose tracebacks are looked at."""

CHAINS: Final = (
    "during handling of the above exception, another exception occurred",
    "the above exception was the direct cause of the following exception",
)

Key = tuple[str, str, object]


class _Reader:
    """Collects what the blocks of a text say."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._statements: dict[Key, Statement] = {}
        self._facts: dict[tuple[str, object, int | None], Fact] = {}

    def block(self, block: Block) -> None:
        """Read one block."""
        run = run_of(block, vocabulary)
        chains = _places(run, CHAINS)
        last: dict[Key, int] = {}
        since = 0
        for item in spoken(run):
            if block.start <= run.place(item.start).offset < block.stop:
                self._add(run, item, since, chains, last)
            since = item.end
        for fact in stated(run):
            self._keep(fact, run, None)

    def facts(self, block: Block) -> None:
        """Read what a block without a failure says beside: what is not finite, what was set at the beginning."""
        run = run_of(block)
        for fact in stated(run):
            self._keep(fact, run, None)

    def _add(self, run: Run, item: Spoken, since: int, chains: list[int], last: dict[Key, int]) -> None:
        text = run.text[item.start : min(run.end_of_line(item.end), item.start + LONGEST_TEXT)]
        key: Key = (item.family, item.wording, tuple(sorted(item.numbers.items())) or text)
        known = self._statements.get(key)
        if known is not None:
            again = key in last and bisect_right(chains, item.start) > bisect_right(chains, last[key])
            self._statements[key] = known if again else replace(known, repeats=known.repeats + 1)
        elif len(self._statements) < MOST_STATEMENTS:
            place = run.place(item.start)
            number = len(self._statements)
            self._statements[key] = Statement(
                family=item.family,
                wording=item.wording,
                text=text,
                line=place.line,
                numbers=item.numbers,
                versions=item.versions,
            )
            if number < MOST_EXPLAINED:
                for fact in passed(run, since, item.start):
                    self._keep(fact, run, number)
                if (rank := RANK.search(self._text, place.offset, place.offset + 200)) is not None:
                    self._keep(Stated("rank", int(next(filter(None, rank.groups()))), item.start), run, number)
        last[key] = item.start

    def _keep(self, fact: Stated, run: Run, statement: int | None) -> None:
        made = Fact(name=fact.name, value=fact.value, line=run.place(fact.at).line, statement=statement)
        self._facts.setdefault((fact.name, fact.value, statement), made)

    def result(self) -> Failures:
        """Everything that was read, in the order of the text."""
        return Failures(
            statements=tuple(self._statements.values()),
            context=tuple(self._facts.values()),
            lines=self._text.count("\n") + bool(self._text and not self._text.endswith("\n")),
        )


def read_failures(text: str) -> Failures:
    """The failures that a text tells of, with their figures, and facts that help to explain them.

    Leaves out what it means: causes and fixes are the doctor's.

    Args:
        text: a message, a traceback or a whole log, in whatever state it was copied

    Returns: statements in the order of the text; a text that tells of none gives none

    >>> read_failures("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB").statements[0].numbers
    {'tried_bytes': 2147483648}
    """
    reader = _Reader(text)
    for block in blocks(text):
        lowered = block.seen.lower()
        if may_speak(lowered):
            reader.block(block)
        elif block.start == 0 or any(root in lowered for root in FACT_ROOTS):
            reader.facts(block)
    return reader.result()


def _places(run: Run, sayings: tuple[str, ...]) -> list[int]:
    places: list[int] = []
    for words in sayings:
        at = run.lowered.find(words)
        while at >= 0:
            places.append(at)
            at = run.lowered.find(words, at + 1)
    return sorted(places)


MEGABYTES: Final = 32
"""How much of either end is searched [2^20 bytes]."""

PART: Final = 1 << 20
"""How much is read at a time [bytes]; even, so that UTF-16 stays in step."""


def read_failure_file(source: Path | IO[bytes], *, megabytes: int = MEGABYTES) -> Failures:
    """As `read_failures`, of a file or a stream of bytes.

    Args:
        source: path, or stream that is read to its end
        megabytes: most that is searched at the beginning, and as much at the end [2^20 bytes]

    Returns: `line` counts in the whole file; `cut` says whether its middle was left out
    Raises: SourceError naming the file when it cannot be read, is empty or holds no text
    """
    if not isinstance(source, Path):
        return _read(source, str(getattr(source, "name", "-")), max(1, megabytes) * PART)
    try:
        with source.open("rb") as file:
            return _read(file, str(source), max(1, megabytes) * PART)
    except OSError as error:
        raise SourceError("{}: {}", source, error.strerror or error) from None


def _read(stream: IO[bytes], name: str, most: int) -> Failures:
    head = _at_most(stream, most)
    encoding = encoding_of(head[:SNIFFED], name=name)
    tail: deque[bytes] = deque()
    kept = skipped = 0
    cut = False
    while part := _at_most(stream, PART):
        tail.append(part)
        kept += len(part)
        while kept - len(tail[0]) >= most:
            cut, kept = True, kept - len(tail[0])
            skipped += tail.popleft().count(b"\n")
    if not cut:
        return read_failures((head + b"".join(tail)).decode(encoding, "replace"))
    beginning = read_failures(head.decode(encoding, "replace"))
    end = read_failures(b"".join(tail).decode(_without_mark(encoding, head), "replace"))
    return _joined(beginning, end, head.count(b"\n") + skipped)


def _at_most(stream: IO[bytes], most: int) -> bytes:
    """The next bytes; fewer only at the end, though a pipe gives what it has."""
    parts: list[bytes] = []
    missing = most
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _without_mark(encoding: str, head: bytes) -> str:
    """The encoding of what follows a byte order mark."""
    if encoding == "utf-16":
        return "utf-16-be" if head.startswith(b"\xfe\xff") else "utf-16-le"
    return encoding


def _joined(beginning: Failures, end: Failures, lines: int) -> Failures:
    """Both ends as one: lines of the end counted on, the same failure in both counted together."""
    statements = list(beginning.statements)
    known = {_same(item): place for place, item in enumerate(statements)}
    numbers: dict[int, int] = {}
    for number, item in enumerate(end.statements):
        place = numbers[number] = known.get(_same(item), len(statements))
        if place < len(statements):
            statements[place] = replace(statements[place], repeats=statements[place].repeats + item.repeats)
        else:
            statements.append(replace(item, line=item.line + lines))
    facts = [
        replace(fact, line=fact.line + lines, statement=None if fact.statement is None else numbers[fact.statement])
        for fact in end.context
    ]
    return Failures(
        statements=tuple(statements), context=(*beginning.context, *facts), lines=lines + end.lines, cut=True
    )


def _same(item: Statement) -> tuple[str, str, object]:
    return item.family, item.wording, tuple(sorted(item.numbers.items())) or item.text
