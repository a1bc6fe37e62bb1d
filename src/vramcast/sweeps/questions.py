"""What a sweep can ask, one line per command, and its questions written one per row of CSV or JSONL."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import msgspec

from vramcast.api import post_training_answer, serve_answer, train_answer
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.options import OPTIONS, Kind, Option, parse
from vramcast.question.post_training_options import POST_TRAINING_OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.question.build import Resolve


Question = dict[str, Any]
"""Options by name as a user wrote them, with `command`, `model` and `gpus` among them."""


class Command(NamedTuple):
    """A kind of question: its options, and what answers it."""

    options: Mapping[str, Option]
    answer: Callable[[Mapping[str, Any], Resolve], Answer]


def _train(options: Mapping[str, Any], resolve: Resolve) -> Answer:
    return train_answer(options, resolve=resolve, with_changes=False)[1]


def _serve(options: Mapping[str, Any], resolve: Resolve) -> Answer:
    return serve_answer(options, resolve=resolve, with_changes=False)


def _rl(options: Mapping[str, Any], resolve: Resolve) -> Answer:
    return post_training_answer(options, resolve=resolve, with_changes=False)


COMMANDS: Final[dict[str, Command]] = {
    "train": Command(OPTIONS, _train),
    "serve": Command(SERVE_OPTIONS, _serve),
    "rl": Command(POST_TRAINING_OPTIONS, _rl),
}
"""Their answers are those of the commands of the same name, without the changes that would make a plan fit."""

ALWAYS: Final = ("command", "model", "gpus")
"""What every question has, beside the options of its command."""

KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(ALWAYS, Kind.TEXT),
    **{name: option.kind for command in COMMANDS.values() for name, option in command.options.items()},
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
    return [*ALWAYS, *{name: None for command in sorted(commands) for name in COMMANDS[command].options}]


def normalised(question: Mapping[str, Any]) -> Question:
    """The question with every value as its option understands it: "8k" and 8192 are one; what cannot be read stays."""
    command = question.get("command")
    return {name: normal_value(command, name, value) for name, value in sorted(question.items())}


def normal_value(command: object, name: str, value: object) -> object:
    """One value as the option of a command understands it, or as it is written where it cannot be read."""
    known = COMMANDS.get(command) if isinstance(command, str) else None
    if known is None or name not in known.options:
        return value.strip() if isinstance(value, str) else value
    try:
        return parse(name, value, known.options)
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
