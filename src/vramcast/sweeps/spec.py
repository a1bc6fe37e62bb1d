"""The file of a sweep: tables whose product is taken, in TOML or YAML, or one question per row of CSV or JSONL.

[defaults]              every question says this
[axes]                  lists; every combination is a question
[[zip]]                 lists of equal length walked together: one axis of several options
[[exclude]]             combinations that are left out; a list means any of its values
[[rows]]                questions written out
[[part]]                the same tables again ([part.axes] ...): the sweep is all its parts, one after the other

What a sweep can ask, one line per command, and its questions written one per row of CSV or JSONL.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import msgspec

from vramcast.api.answers import ANSWERS
from vramcast.errors import InvalidSpec, SourceError, UnknownName, joined
from vramcast.question.files import read_document
from vramcast.question.option import Kind, table_of
from vramcast.question.options import parse

TABLES: Final = ("defaults", "axes", "zip", "exclude", "rows", "part")

Question = dict[str, Any]
"""Options by name as a user wrote them, with `command`, `model` and `gpus` among them."""

Axis = tuple[Question, ...]
"""The alternatives of one axis: each sets one option, or several that walk together."""


class Exclusion(NamedTuple):
    """Questions with one of these values for every one of these names are left out."""

    values: dict[str, list[object]]

    def hits(self, question: Question) -> bool:
        """Whether a question is left out; values count as their options understand them."""
        command = question.get("command")
        return all(
            name in question
            and normal_value(command, name, question[name])
            in [normal_value(command, name, value) for value in values]
            for name, values in self.values.items()
        )


class Part(NamedTuple):
    """Tables of one part, checked."""

    where: str  # for messages
    defaults: Question
    axes: tuple[Axis, ...]
    rows: tuple[Question, ...]
    exclusions: tuple[Exclusion, ...]

    @property
    def size(self) -> int:
        """Questions before anything is excluded."""
        return (prod(map(len, self.axes)) if self.axes else 0) + len(self.rows)

    @property
    def names(self) -> dict[str, None]:
        """Everything that its questions say, in the order of the file."""
        said = (self.defaults, *(one for axis in self.axes for one in axis), *self.rows)
        return {name: None for one in said for name in one}


def part_of(tables: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> Part:
    """The part that tables describe, on top of defaults.

    Raises: InvalidSpec or UnknownName with one sentence
    """
    for key in tables:
        if key not in TABLES:
            raise UnknownName("{}: {}", where, UnknownName.of("table", str(key), TABLES))
    own = _tables([tables.get("defaults", {})], "defaults", where)[0]
    axes = [_axis(name, values, where) for name, values in _tables([tables.get("axes", {})], "axes", where)[0].items()]
    axes += [_zipped(lists, where) for lists in _tables(tables.get("zip", []), "zip", where)]
    part = Part(
        where=where,
        defaults={**defaults, **own},
        axes=tuple(axes),
        rows=tuple(_tables(tables.get("rows", []), "rows", where)),
        exclusions=tuple(
            Exclusion({name: _listed(value) for name, value in table.items()})
            for table in _tables(tables.get("exclude", []), "exclude", where)
        ),
    )
    _check(part)
    return part


def part_questions(part: Part) -> Iterator[Question]:
    """The questions of a part in order: the last axis turns fastest, then the written rows."""
    for question in _all(part):
        if not any(exclusion.hits(question) for exclusion in part.exclusions):
            yield question


def count_questions(part: Part) -> int:
    """How many questions are left of a part.

    Raises: InvalidSpec where exclusions leave nothing, or one of them leaves out nothing
    """
    if not part.exclusions:
        return part.size
    hits, left = [0] * len(part.exclusions), 0
    for question in _all(part):
        found = [exclusion.hits(question) for exclusion in part.exclusions]
        left += not any(found)
        hits = [count + hit for count, hit in zip(hits, found, strict=True)]
    if not left:
        raise InvalidSpec("{}: the exclusions leave nothing of {:,} questions; drop one of them", part.where, part.size)
    for exclusion, count in zip(part.exclusions, hits, strict=True):
        if not count:
            said = joined(" and ", (f"{name} = {_shown(values)}" for name, values in exclusion.values.items()))
            raise InvalidSpec("{}: exclude {} is true of no question; correct or drop it", part.where, said)
    return left


def _all(part: Part) -> Iterator[Question]:
    if part.axes:
        for chosen in product(*part.axes):
            question = dict(part.defaults)
            for alternative in chosen:
                question.update(alternative)
            yield question
    for row in part.rows:
        yield {**part.defaults, **row}


def _tables(value: object, key: str, where: str) -> list[dict[str, Any]]:
    """A list of tables with names as keys."""
    if not isinstance(value, list) or not all(
        isinstance(table, dict) and all(isinstance(name, str) for name in table) for table in value
    ):
        if key in ("defaults", "axes"):
            raise InvalidSpec("{}: {} must be a table of options", where, key)
        raise InvalidSpec("{}: {} must be a list of tables, {}", where, key, f"[[{key}]]")
    return [spelled(table, where) for table in value]


def _axis(name: str, values: object, where: str) -> Axis:
    if not isinstance(values, list):
        raise InvalidSpec("{}: axis {} must be a list of values; what never changes belongs in [defaults]", where, name)
    if not values:
        raise InvalidSpec("{}: axis {} is empty; give values or leave it out", where, name)
    return tuple({name: value} for value in values)


def _zipped(lists: Mapping[str, object], where: str) -> Axis:
    axes = [_axis(name, values, where) for name, values in lists.items()]
    if len(axes) < 2:
        raise InvalidSpec("{}: zip needs two or more lists that walk together; one alone belongs in [axes]", where)
    if len({len(axis) for axis in axes}) > 1:
        lengths = ", ".join(f"{name} {len(axis)}" for name, axis in zip(lists, axes, strict=True))
        raise InvalidSpec("{}: lists of a zip must be equally long; these are {}", where, lengths)
    return tuple({key: value for one in together for key, value in one.items()} for together in zip(*axes, strict=True))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _shown(values: list[object]) -> str:
    return joined(" or ", (str(value)[:60] for value in values))


def _check(part: Part) -> None:
    """Every name is an option of a command that the part asks, and set once."""
    if not part.size:
        raise InvalidSpec("{}: has no questions; give [axes] or [[rows]]", part.where)
    turning = [name for axis in part.axes for name in axis[0]]
    for name in turning:
        if turning.count(name) > 1:
            raise InvalidSpec("{}: {} is an axis twice; put its values into one", part.where, name)
    known = known_names(_commands(part))
    said = part.names
    for name in (*said, *(name for exclusion in part.exclusions for name in exclusion.values)):
        if name not in known:
            raise UnknownName("{}: {}", part.where, UnknownName.of("option", name, known))
    for exclusion in part.exclusions:
        if not exclusion.values:
            raise InvalidSpec("{}: an empty exclude would leave out everything; say what to leave out", part.where)
        for name in exclusion.values:
            if name not in said:
                raise InvalidSpec("{}: exclude names {}, which no question says", part.where, name)


def _commands(part: Part) -> set[str]:
    """The commands that a part asks."""
    alternatives = [*(one for axis in part.axes for one in axis), *part.rows]
    found = [part.defaults.get("command"), *(one["command"] for one in alternatives if "command" in one)]
    commands = {str(command) for command in found if command is not None}
    if not commands:
        raise InvalidSpec("{}: which command? give command = {} in [defaults]", part.where, joined(" or ", COMMANDS))
    for command in commands:
        if command not in COMMANDS:
            raise UnknownName("{}: {}", part.where, UnknownName.of("command", command, COMMANDS))
    return commands


LARGEST_FILE: Final = 16 << 20
"""Tables are read as a whole; more questions than that come as CSV or JSONL [bytes]."""

TABLE_FILES: Final = (".toml", ".yaml", ".yml")

MOST_QUESTIONS: Final = 1_000_000
"""A product larger than this is more often a slip than a wish [count]; --limit raises it."""


class Sweep(NamedTuple):
    """A sweep that was read and checked. `questions()` walks it lazily, as often as wanted, in the same order."""

    name: str  # where it comes from, for messages
    digest: str  # of everything that decides its questions
    size: int  # questions
    names: tuple[str, ...]  # what any of them says, in the order of columns
    questions: Callable[[], Iterator[Question]]


def read_sweep(
    source: str | Path | Mapping[str, Any], *, defaults: Mapping[str, Any], limit: int = MOST_QUESTIONS
) -> Sweep:
    """The questions of a file, or of tables given as a mapping.

    Args:
        source: a TOML, YAML, CSV or JSONL file, or the tables of one
        defaults: what every question says where the file says nothing else
        limit: most questions a product may have

    Raises: InvalidSpec, UnknownName or SourceError with one sentence, before anything is computed
    """
    defaults = spelled(defaults, "--set")
    if isinstance(source, Mapping):
        text = json.dumps(source, default=str).encode()
        return _from_tables(source, "the sweep", _digest(text, defaults), defaults, limit)
    path = Path(source)
    if path.suffix.lower() in TABLE_FILES:
        tables, content = read_document(path, largest=LARGEST_FILE)
        if not isinstance(tables, dict):
            raise SourceError("{}: a sweep is made of tables: defaults, axes, zip, exclude, rows, part", path)
        return _from_tables(tables, path.name, _digest(content, defaults), defaults, limit)
    if path.suffix.lower() in ROW_READERS:
        return _from_rows(path, defaults)
    raise SourceError("{}: a sweep is a {} file", path, ", ".join((*TABLE_FILES, *ROW_READERS)))


def _digest(content: bytes, defaults: Mapping[str, Any]) -> str:
    return blake2b(content + json.dumps(dict(defaults), default=str).encode(), digest_size=16).hexdigest()


def _from_tables(
    tables: Mapping[str, Any], name: str, digest: str, defaults: Mapping[str, Any], limit: int
) -> Sweep:
    shared = {key: value for key, value in tables.items() if key != "part"}
    if "part" not in tables:
        parts = [part_of(shared, defaults, name)]
    else:
        if set(shared) - {"defaults"}:
            others = ", ".join(sorted(map(str, set(shared) - {"defaults"})))
            raise InvalidSpec("{}: beside [[part]] only [defaults] can stand, not {}", name, others)
        written = tables["part"]
        if not isinstance(written, list) or not written or not all(isinstance(part, dict) for part in written):
            raise InvalidSpec("{}: part must be a list of tables, [[part]]", name)
        common = {**defaults, **spelled(_table(shared.get("defaults", {}), "defaults", name), name)}
        parts = [part_of(part, common, f"{name}: part {number}") for number, part in enumerate(written, 1)]
    product = sum(part.size for part in parts)
    if product > limit:
        raise InvalidSpec(
            "{}: the product is {:,} questions, more than {:,}; leave out values, or allow it with --limit {}",
            name, product, limit, product
        )
    names = {key for part in parts for key in part.names}
    return Sweep(
        name=name,
        digest=digest,
        size=sum(map(count_questions, parts)),
        names=tuple(key for key in KINDS if key in names),
        questions=lambda: _all_questions(parts),
    )


def _all_questions(parts: list[Part]) -> Iterator[Question]:
    for part in parts:
        yield from part_questions(part)


def _table(value: object, key: str, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidSpec("{}: {} must be a table of options", name, key)
    return value


def _from_rows(path: Path, defaults: Mapping[str, Any]) -> Sweep:
    """One pass over the file checks every row and counts; nothing of it is kept."""
    if path.exists() and not path.is_file():
        raise SourceError("{}: must be a regular file: its questions are read twice", path)
    hashed = blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or error) from None
    size, names = 0, set(defaults)
    for row in read_rows(path):
        size += 1
        names |= row.keys()
    if not size:
        raise InvalidSpec("{}: has no questions", path)
    if "command" not in names:
        raise InvalidSpec("{}: which command? add a column command with train or serve, or --set command=train", path)
    for name in sorted(names):
        if name not in KINDS:
            raise UnknownName("{}: {}", path, UnknownName.of("option", name, KINDS))
    common = dict(defaults)
    return Sweep(
        name=path.name,
        digest=_digest(hashed.digest(), defaults),
        size=size,
        names=tuple(key for key in KINDS if key in names),
        questions=lambda: ({**common, **row} for row in read_rows(path)),
    )


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
