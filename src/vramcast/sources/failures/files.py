"""Failures of a file or a stream of any size, in bounded memory: its beginning and its end are searched."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import IO, Final

from msgspec.structs import replace

from vramcast.domain.failure import Statement
from vramcast.errors import SourceError
from vramcast.sources.encodings import SNIFFED, encoding_of
from vramcast.sources.failures.found import Failures
from vramcast.sources.failures.read import read_failures

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
        raise SourceError(f"{source}: {error.strerror or error}") from None


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
