"""CSV tables read strictly: every complaint names file and line.

TOML and YAML that somebody else wrote, as plain values: bounded in depth and time, no code, one error.

[yaml] PyYAML scanner.py `stale_possible_simple_keys` goes through all open brackets at every token, constructor.py
multiplies the parts of 1:2:3 into one integer, and a token takes it 20 microseconds
[toml] CPython tomllib `key_value_rule` looks at every beginning of a dotted key
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from vramcast.errors import Note, SourceError, VramcastError
from vramcast.lazy import lazy_pattern

LARGEST_FILE: Final = 16 << 20
"""A table of prices of every region has some 100,000 rows [bytes]."""

DATE: Final = lazy_pattern(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
NUMBER: Final = lazy_pattern(r"\d{1,15}(?:\.\d{1,15})?")


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


DEEPEST: Final = 64
"""Brackets, tables and parts of a key inside one another."""
MOST_TOKENS: Final = 100_000
"""Of a YAML file of settings: keys, values and marks [count]."""
LONGEST_NUMBER: Final = 64
"""Characters of a plain number or date; beyond them it is no value of anything."""

TOML_TEXT: Final = lazy_pattern(
    r'"""(?:[^\\]|\\.)*?"""|' r"'''.*?'''|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'|#[^\n]*", re.DOTALL
)
TOML_BETWEEN: Final = lazy_pattern(r"[=,{}\[\]]|\n")
NUMERIC: Final = lazy_pattern(r"[-+0-9_:.eE]+")


class NoDocument(VramcastError):
    """Why a text cannot be read, in a few words."""


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML document.

    Raises: NoDocument
    """
    import tomllib

    if any(part.count(".") > DEEPEST for part in TOML_BETWEEN.split(TOML_TEXT.sub("", text))):
        raise NoDocument("a key has more than {} parts", DEEPEST)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are plain ValueErrors
        raise NoDocument("{}", _shortened(error)) from None


def parse_yaml(text: str, *, most_tokens: int = MOST_TOKENS) -> Any:
    """The value of a YAML document.

    Raises: NoDocument
    """
    import yaml

    class Bounded(yaml.SafeLoader):
        """Counts what is read of it as it is read."""

        count = depth = 0

        def get_token(self) -> Any:
            token = super().get_token()  # type: ignore[no-untyped-call]
            self.count += 1
            if self.count > most_tokens + 1:
                raise NoDocument("more than {} keys, values and marks", most_tokens)
            name = type(token).__name__
            self.depth += name.endswith("StartToken") - name.endswith("EndToken")
            if self.depth > DEEPEST:
                raise NoDocument(f"more than {DEEPEST} levels")
            text_of = token.value if isinstance(token, yaml.ScalarToken) and token.plain else ""
            if len(text_of) > LONGEST_NUMBER and NUMERIC.fullmatch(text_of):
                raise NoDocument("a number of {} characters", len(text_of))
            return token

    try:
        loader = Bounded(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _written_out(node, {}, most_tokens)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise NoDocument("{}", _shortened(error)) from None
    except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError, RecursionError) as error:
        raise NoDocument("a value is none of its tag ({})", _shortened(error)) from None  # !!timestamp x, !!int ""


def _written_out(node: Any, known: dict[int, tuple[int, int]], most: int, level: int = 0) -> tuple[int, int]:
    """How many values a node stands for, and how deep they go, with all that its aliases repeat.

    Raises: NoDocument where that is too much, as of an alias inside what it names
    """
    size, height = known.get(id(node), (0, 0))
    if not size:
        size, parts = 1, node.value if isinstance(node.value, list) else ()
        if level > DEEPEST:
            raise NoDocument(f"more than {DEEPEST} levels")
        for part in (one for item in parts for one in (item if isinstance(item, tuple) else (item,))):
            more, depth = _written_out(part, known, most, level + 1)
            size, height = size + more, max(height, depth + 1)
        known[id(node)] = size, height
    if size > most:
        raise NoDocument("more than {} keys, values and marks", most)
    if level + height > DEEPEST:
        raise NoDocument(f"more than {DEEPEST} levels")
    return size, height


def _shortened(error: Exception) -> str:
    """What went wrong and where; not the line itself, which may hold a secret."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    text = " ".join(str(error if mark is None else problem or "not understood").split())[:200]
    return text if mark is None else Note("{}, line {}", text, mark.line + 1)
