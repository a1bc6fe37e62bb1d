"""CSV tables read strictly: every complaint names file and line."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from vramcast.errors import SourceError

LARGEST_FILE: Final = 16 << 20
"""A table of prices of every region has some 100,000 rows [bytes]."""

DATE: Final = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,15})?")


class Row:
    """The cells of one row by column, and where it stands: "instances.csv: line 12"."""

    __slots__ = ("cells", "where")

    def __init__(self, cells: dict[str, str], where: str) -> None:
        self.cells, self.where = cells, where

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def text(self, column: str) -> str:
        """A cell that must not be empty."""
        if not self.cells[column].strip():
            raise SourceError("{}: {} is empty", self.where, column)
        return self.cells[column]

    def date(self, column: str) -> str:
        """An ISO date."""
        if not DATE.fullmatch(self.cells[column]):
            raise SourceError("{}: {}={!r} must be a date like 2026-11-20", self.where, column, self.cells[column][:40])
        return self.cells[column]

    def number(self, column: str) -> float | None:
        """A positive number, None where the cell is empty."""
        cell = self.cells[column]
        if not cell:
            return None
        if not NUMBER.fullmatch(cell) or float(cell) <= 0:
            raise SourceError("{}: {}={!r} must be a positive number or empty", self.where, column, cell[:40])
        return float(cell)

    def choice(self, column: str, known: Collection[str]) -> str:
        """One of a few words."""
        if self.cells[column] not in known:
            raise SourceError(
                "{}: {}={!r} must be one of {}", self.where, column, self.cells[column][:40], ", ".join(known)
            )
        return self.cells[column]


def read_table(text: str, *, file: str, columns: Collection[str], key: tuple[str, ...]) -> list[Row]:
    """The rows of a table, in its order.

    Args:
        text: the whole table, header first
        file: its name, for complaints
        columns: those it must have, no more and no fewer, in any order
        key: columns that no two rows share all cells of

    Raises: SourceError naming file and line for unknown, missing or duplicate columns, cells and keys
    """
    lines = csv.reader(text.splitlines(), strict=True)
    rows: list[Row] = []
    seen: dict[tuple[str, ...], int] = {}
    try:
        header = next(lines, [])
        check_columns(header, columns, file)
        for cells in lines:
            if not cells:
                continue
            where = f"{file}: line {lines.line_num}"
            if len(cells) != len(header):
                raise SourceError("{}: {} cells for {} columns", where, len(cells), len(header))
            row = Row(dict(zip(header, cells, strict=True)), where)
            name = tuple(row.cells[column] for column in key)
            if name in seen:
                raise SourceError("{}: {} stands in line {} already", where, ", ".join(name), seen[name])
            seen[name] = lines.line_num
            rows.append(row)
    except csv.Error as error:
        raise SourceError("{}: line {}: {}", file, lines.line_num, error) from error
    return rows


def check_columns(header: list[str], columns: Collection[str], file: str) -> None:
    """Refuse a header with other columns than those.

    Raises: SourceError naming the file and the columns
    """
    duplicate = sorted({name for name in header if header.count(name) > 1})
    unknown, missing = sorted(set(header) - set(columns)), sorted(set(columns) - set(header))
    for what, names in (("duplicate", duplicate), ("unknown", unknown), ("missing", missing)):
        if names:
            raise SourceError("{}: line 1: {} columns {}", file, what, ", ".join(names)[:200])


def read_text(path: Path) -> str:
    """The text of a user's file.

    Raises: SourceError naming the file and why it cannot be read
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise SourceError("{}: at most {} MiB are read", path, LARGEST_FILE >> 20)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or error) from None
    except UnicodeDecodeError:
        raise SourceError("{}: not a text file in UTF-8", path) from None
