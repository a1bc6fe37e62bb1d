"""Questions written one per row: CSV and JSONL, read lazily and strictly."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

from vramcast.errors import SourceError, UnknownName
from vramcast.question.options import Kind
from vramcast.sweeps.commands import KINDS, Question, spelled

TRUTH: Final = {"true": True, "false": False}
LONGEST_LINE: Final = 1 << 20
"""A question is a few hundred characters; a longer line is no question [characters]."""


def read_rows(path: Path) -> Iterator[Question]:
    """The questions of a CSV or JSONL file, one at a time.

    Raises: SourceError or UnknownName naming file and line
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from ROW_READERS[path.suffix.lower()](file, path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not a text file in UTF-8") from None


def _csv_rows(file: TextIO, path: Path) -> Iterator[Question]:
    lines = csv.reader(file, strict=True)
    try:
        header = [cell.strip() for cell in next(lines, [])]
        header = [next(iter(spelled({cell: None}, ""))) for cell in header]
        for name in header:
            _known(name, f"{path}: line 1")
            if header.count(name) > 1:
                raise SourceError(f"{path}: line 1: column {name} stands twice")
        for cells in lines:
            if not cells:
                continue  # an empty line
            if len(cells) != len(header):
                raise SourceError(f"{path}: line {lines.line_num}: {len(cells)} cells for {len(header)} columns")
            yield {name: _cell(name, cell) for name, cell in zip(header, cells, strict=True) if cell.strip()}
    except csv.Error as error:
        raise SourceError(f"{path}: line {lines.line_num}: {error}") from None


def _cell(name: str, text: str) -> object:
    """A cell is text; only truth values have no other way of being written."""
    if KINDS[name] is Kind.FLAG:
        return TRUTH.get(text.strip().lower(), text)
    return text


def _jsonl_rows(file: TextIO, path: Path) -> Iterator[Question]:
    import msgspec

    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        where = f"{path}: line {number}"
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceError(f"{where}: not JSON: {str(error)[:200]}") from None
        if not isinstance(row, dict):
            raise SourceError(f"{where}: a question is an object of options")
        row = spelled(row, where)
        for name in row:
            _known(name, where)
        yield {name: value for name, value in row.items() if value is not None}


def _known(name: str, where: str) -> None:
    if name not in KINDS:
        raise UnknownName(f"{where}: {UnknownName.of('option', name, KINDS)}")


ROW_READERS: Final[dict[str, Callable[[TextIO, Path], Iterator[Question]]]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
}
"""How rows are written, by the end of a file's name."""
