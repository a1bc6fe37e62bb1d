"""What a sweep can ask, one line per command, and its questions written one per row of CSV or JSONL."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from vramcast.api.answers import ANSWERS
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.commands import table_of
from vramcast.question.option import Kind
from vramcast.question.options import parse

Question = dict[str, Any]
"""Options by name as a user wrote them, with `command`, `model` and `gpus` among them."""


COMMANDS: Final = tuple(ANSWERS)
"""Their answers are those of the commands of the same name, without the changes that would make a plan fit."""

ALWAYS: Final = ("command", "model", "gpus")
"""What every question has, beside the options of its command."""

KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(ALWAYS, Kind.TEXT),
    **{name: option.kind for command in COMMANDS for name, option in table_of(command).items()},
}
"""How the values of a name are written, over all commands; in this order they are columns."""


def spelled(values: Mapping[str, Any], where: str) -> Question:
    """Names as options have them: `seq_len`, as Python writes it, is `seq-len`.

    Raises: InvalidSpec where a name stands in both spellings
    """
    found: Question = {}
    for name, value in values.items():
        dashed = name.replace("_", "-")
        known = dashed if dashed in KINDS else name
        if known in found:
            raise InvalidSpec("{}: {} and {} are one option; give one of them", where, known, name)
        found[known] = value
    return found


def known_names(commands: set[str]) -> list[str]:
    """What questions of these commands can say."""
    return [*ALWAYS, *{name: None for command in sorted(commands) for name in table_of(command)}]


def normalised(question: Mapping[str, Any]) -> Question:
    """The question with every value as its option understands it: "8k" and 8192 are one; what cannot be read stays."""
    command = question.get("command")
    return {name: normal_value(command, name, value) for name, value in sorted(question.items())}


def normal_value(command: object, name: str, value: object) -> object:
    """One value as the option of a command understands it, or as it is written where it cannot be read."""
    table = table_of(command) if isinstance(command, str) and command in COMMANDS else {}
    if name not in table:
        return value.strip() if isinstance(value, str) else value
    try:
        return parse(name, value, table)
    except InvalidSpec:
        return value


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
        raise SourceError("{}: {}", path, error.strerror or error) from None
    except UnicodeDecodeError:
        raise SourceError("{}: not a text file in UTF-8", path) from None


def _csv_rows(file: TextIO, path: Path) -> Iterator[Question]:
    lines = csv.reader(file, strict=True)
    try:
        header = [cell.strip() for cell in next(lines, [])]
        header = [next(iter(spelled({cell: None}, ""))) for cell in header]
        for name in header:
            _known(name, f"{path}: line 1")
            if header.count(name) > 1:
                raise SourceError("{}: line 1: column {} stands twice", path, name)
        for cells in lines:
            if not cells:
                continue  # an empty line
            if len(cells) != len(header):
                raise SourceError("{}: line {}: {} cells for {} columns", path, lines.line_num, len(cells), len(header))
            yield {name: _cell(name, cell) for name, cell in zip(header, cells, strict=True) if cell.strip()}
    except csv.Error as error:
        raise SourceError("{}: line {}: {}", path, lines.line_num, error) from None


def _cell(name: str, text: str) -> object:
    """A cell is text; only truth values have no other way of being written."""
    if KINDS[name] is Kind.FLAG:
        return TRUTH.get(text.strip().lower(), text)
    return text


def _jsonl_rows(file: TextIO, path: Path) -> Iterator[Question]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        where = f"{path}: line {number}"
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceError("{}: not JSON: {}", where, str(error)[:200]) from None
        if not isinstance(row, dict):
            raise SourceError("{}: a question is an object of options", where)
        row = spelled(row, where)
        for name in row:
            _known(name, where)
        yield {name: value for name, value in row.items() if value is not None}


def _known(name: str, where: str) -> None:
    if name not in KINDS:
        raise UnknownName("{}: {}", where, UnknownName.of("option", name, KINDS))


ROW_READERS: Final[dict[str, Callable[[TextIO, Path], Iterator[Question]]]] = {
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
}
"""How rows are written, by the end of a file's name."""
