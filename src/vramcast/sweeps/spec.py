"""The file of a sweep: tables whose product is taken, in TOML or YAML, or one question per row of CSV or JSONL.

    [defaults]              every question says this
    [axes]                  lists; every combination is a question
    [[zip]]                 lists of equal length walked together: one axis of several options
    [[exclude]]             combinations that are left out; a list means any of its values
    [[rows]]                questions written out
    [[part]]                the same tables again ([part.axes] ...): the sweep is all its parts, one after the other
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.files import read_document
from vramcast.sweeps.commands import KINDS, Question, spelled
from vramcast.sweeps.parts import Part, count_questions, part_of, part_questions
from vramcast.sweeps.rows import ROW_READERS, read_rows

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
            raise SourceError(f"{path}: a sweep is made of tables: defaults, axes, zip, exclude, rows, part")
        return _from_tables(tables, path.name, _digest(content, defaults), defaults, limit)
    if path.suffix.lower() in ROW_READERS:
        return _from_rows(path, defaults)
    raise SourceError(f"{path}: a sweep is a {', '.join((*TABLE_FILES, *ROW_READERS))} file")


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
            raise InvalidSpec(f"{name}: beside [[part]] only [defaults] can stand, not {others}")
        written = tables["part"]
        if not isinstance(written, list) or not written or not all(isinstance(part, dict) for part in written):
            raise InvalidSpec(f"{name}: part must be a list of tables, [[part]]")
        common = {**defaults, **spelled(_table(shared.get("defaults", {}), "defaults", name), name)}
        parts = [part_of(part, common, f"{name}: part {number}") for number, part in enumerate(written, 1)]
    product = sum(part.size for part in parts)
    if product > limit:
        raise InvalidSpec(
            f"{name}: the product is {product:,} questions, more than {limit:,}; leave out values, or allow it with "
            f"--limit {product}"
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
        raise InvalidSpec(f"{name}: {key} must be a table of options")
    return value


def _from_rows(path: Path, defaults: Mapping[str, Any]) -> Sweep:
    """One pass over the file checks every row and counts; nothing of it is kept."""
    if path.exists() and not path.is_file():
        raise SourceError(f"{path}: must be a regular file: its questions are read twice")
    hashed = blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    size, names = 0, set(defaults)
    for row in read_rows(path):
        size += 1
        names |= row.keys()
    if not size:
        raise InvalidSpec(f"{path}: has no questions")
    if "command" not in names:
        raise InvalidSpec(f"{path}: which command? add a column command with train or serve, or --set command=train")
    for name in sorted(names):
        if name not in KINDS:
            raise UnknownName(f"{path}: {UnknownName.of('option', name, KINDS)}")
    common = dict(defaults)
    return Sweep(
        name=path.name,
        digest=_digest(hashed.digest(), defaults),
        size=size,
        names=tuple(key for key in KINDS if key in names),
        questions=lambda: ({**common, **row} for row in read_rows(path)),
    )
