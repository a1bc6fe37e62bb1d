"""One part of a sweep: the product of its axes and its written rows, without what is excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

from vramcast.errors import InvalidSpec, UnknownName
from vramcast.sweeps.commands import COMMANDS, Question, known_names, normal_value, spelled

TABLES: Final = ("defaults", "axes", "zip", "exclude", "rows", "part")

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
            raise UnknownName(f"{where}: {UnknownName.of('table', str(key), TABLES)}")
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
        raise InvalidSpec(f"{part.where}: the exclusions leave nothing of {part.size:,} questions; drop one of them")
    for exclusion, count in zip(part.exclusions, hits, strict=True):
        if not count:
            said = " and ".join(f"{name} = {_shown(values)}" for name, values in exclusion.values.items())
            raise InvalidSpec(f"{part.where}: exclude {said} is true of no question; correct or drop it")
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
        kind = "a table of options" if key in ("defaults", "axes") else f"a list of tables, [[{key}]]"
        raise InvalidSpec(f"{where}: {key} must be {kind}")
    return [spelled(table, where) for table in value]


def _axis(name: str, values: object, where: str) -> Axis:
    if not isinstance(values, list):
        raise InvalidSpec(f"{where}: axis {name} must be a list of values; what never changes belongs in [defaults]")
    if not values:
        raise InvalidSpec(f"{where}: axis {name} is empty; give values or leave it out")
    return tuple({name: value} for value in values)


def _zipped(lists: Mapping[str, object], where: str) -> Axis:
    axes = [_axis(name, values, where) for name, values in lists.items()]
    if len(axes) < 2:
        raise InvalidSpec(f"{where}: zip needs two or more lists that walk together; one alone belongs in [axes]")
    if len({len(axis) for axis in axes}) > 1:
        lengths = ", ".join(f"{name} {len(axis)}" for name, axis in zip(lists, axes, strict=True))
        raise InvalidSpec(f"{where}: lists of a zip must be equally long; these are {lengths}")
    return tuple({key: value for one in together for key, value in one.items()} for together in zip(*axes, strict=True))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _shown(values: list[object]) -> str:
    return " or ".join(str(value)[:60] for value in values)


def _check(part: Part) -> None:
    """Every name is an option of a command that the part asks, and set once."""
    if not part.size:
        raise InvalidSpec(f"{part.where}: has no questions; give [axes] or [[rows]]")
    turning = [name for axis in part.axes for name in axis[0]]
    for name in turning:
        if turning.count(name) > 1:
            raise InvalidSpec(f"{part.where}: {name} is an axis twice; put its values into one")
    known = known_names(_commands(part))
    said = part.names
    for name in (*said, *(name for exclusion in part.exclusions for name in exclusion.values)):
        if name not in known:
            raise UnknownName(f"{part.where}: {UnknownName.of('option', name, known)}")
    for exclusion in part.exclusions:
        if not exclusion.values:
            raise InvalidSpec(f"{part.where}: an empty exclude would leave out everything; say what to leave out")
        for name in exclusion.values:
            if name not in said:
                raise InvalidSpec(f"{part.where}: exclude names {name}, which no question says")


def _commands(part: Part) -> set[str]:
    """The commands that a part asks."""
    alternatives = [*(one for axis in part.axes for one in axis), *part.rows]
    found = [part.defaults.get("command"), *(one["command"] for one in alternatives if "command" in one)]
    commands = {str(command) for command in found if command is not None}
    if not commands:
        raise InvalidSpec(f"{part.where}: which command? give command = {' or '.join(COMMANDS)} in [defaults]")
    for command in commands:
        if command not in COMMANDS:
            raise UnknownName(f"{part.where}: {UnknownName.of('command', command, COMMANDS)}")
    return commands
