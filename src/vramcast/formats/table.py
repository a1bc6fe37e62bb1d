"""Tables of rows that say the same thing in a tool's words and in ours.

Names with points between, as OmegaConf and Hydra have them: tables of them, overrides, what refers to another.

[omegaconf] omry/omegaconf omegaconf/_utils.py; [nemo] nemo_rl/utils/config.py `register_omegaconf_resolvers`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from vramcast.catalogue.tables import NoDocument, parse_yaml
from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.formats.lines import Line
from vramcast.formats.reading import written
from vramcast.formats.watched import Watched

DEEPEST: Final = 20
"""Tables inside one another, and names that name one another."""
MOST_NAMED: Final = 10_000
"""Names that are put in for one table: twenty lines can name one another 2**20 times."""
LONGEST: Final = 10_000
"""Characters of a text that others are put into."""

REFERS: Final = re.compile(r"\$\{(?:(add|sub|mul|div|max|min):)?([^${}]*)\}")

RESOLVERS: Final[dict[str, Callable[[int, int], float]]] = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": max,
}


def value_of(text: Any) -> Any:
    """A word of a command line as YAML reads it; what is no text stays."""
    try:
        return parse_yaml(text) if isinstance(text, str) else text
    except NoDocument:
        return text


def flat(table: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names with points between, and their values."""
    for name, value in table.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from flat(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", value


def nested(names: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of names with points between; what stands beneath a value is lost.

    >>> nested({"train.steps": 3, "train.data.name": "a", "precision": "fp32", "precision.of": 1})
    {'train': {'steps': 3, 'data': {'name': 'a'}}, 'precision': 'fp32'}
    """
    found: dict[str, Any] = {}
    for name, value in names.items():
        *path, last = name.split(".", DEEPEST)
        table: Any = found
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[last] = value
    return found


def resolved(given: Mapping[str, Any], value: Any) -> Any:
    """A value or a table whose parts name others, as OmegaConf puts them in; what nobody says stays as it is."""
    return _resolved(given, value, iter(range(MOST_NAMED)), 0)


def _resolved(given: Mapping[str, Any], value: Any, left: Iterator[int], depth: int) -> Any:
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {name: _resolved(given, inner, left, depth + 1) for name, inner in value.items()}
    if not isinstance(value, str) or depth > DEEPEST:
        return value
    while (match := REFERS.search(value)) and next(left, None) is not None:
        if match[1]:
            try:
                one, other = (int(part) for part in match[2].split(","))
                made: Any = RESOLVERS[match[1]](one, other)
            except (ValueError, KeyError, ZeroDivisionError):
                return value
            made = int(made) if made == int(made) else made
        else:
            made = _resolved(given, given.get(match[2].strip()), left, depth + 1)
            if made is None or (isinstance(made, str) and REFERS.search(made)):
                return value
        if match[0] == value:
            return made
        if len(value) + value.count(match[0]) * len(str(made)) > LONGEST:
            return value
        value = value.replace(match[0], str(made))
    return value


class Row(NamedTuple):
    """A name of a tool and the setting that it says, in both directions."""

    field: str  # of the plan, of the workload, of an engine's options or of a part of the network
    name: str  # as the tool writes it; "a.b" is b in the table a
    usual: Any = None  # where nobody says it; its type is the value's
    why: str = ""  # said beside it where it is written
    words: Mapping[Any, Any] = {}  # the tool's word -> our value, where they differ

    @property
    def option(self) -> str:
        """Of the command line."""
        return self.field.replace("_", "-")

    def of(self, arguments: Mapping[str, Any]) -> Any:
        """What arguments of a command line say, as they are."""
        given = arguments.get(f"--{self.name}", self.usual)
        return given if self.usual is None else type(self.usual)(given)

    def read(self, values: Watched, name: str) -> Any:
        """What a file says, None where it says nothing; what it says wrongly is refused by its name."""
        if self.words:
            return values.one_of(name, self.words, option=self.option)
        kinds: dict[type, Callable[[str], Any]] = {bool: values.flag, str: values.text, float: values.number}
        return kinds.get(type(self.usual), values.count)(name)

    def line(self, value: Any, why: str = "") -> Line:
        """How a value is written.

        Raises: Unsupported for a value that the tool has no word for
        """
        if not self.words:
            return Line(self.name, value, why or self.why)
        words = written(self.words)
        if value not in words:
            known = " or ".join(map(str, words))
            raise Unsupported("{} has no word for --{} {}; use {}", self.name, self.option, value, known)
        return Line(self.name, words[value], why or self.why)


class Switch(NamedTuple):
    """A name without a value."""

    field: str
    value: bool  # with the name; the opposite without it
    name: str


class Refusal(NamedTuple):
    """Why a plan is not written: what is so of the job, and the sentence, which may name fields of it."""

    applies: Callable[[Job], bool]
    sentence: str


def read_values(rows: Iterable[Row], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of rows as arguments of a command line have them."""
    return {row.field: row.of(arguments) for row in rows}


def lines_of(rows: Iterable[Row], noun: Any) -> list[Line]:
    """The lines of rows that a noun has something for."""
    return [row.line(value) for row in rows if (value := getattr(noun, row.field))]


def refuse(refusals: Iterable[Refusal], job: Job) -> None:
    """Raise Unsupported with the first sentence that applies."""
    for refusal in refusals:
        if refusal.applies(job):
            raise Unsupported(refusal.sentence.format(job=job, plan=job.plan, workload=job.workload))


def read_options(rows: tuple[Row, ...], values: Watched, *, unasked: bool = False) -> dict[str, Any]:
    """Option -> value, of the rows that a file says something about; `unasked`: of the others what is usual, too."""
    found = {row.option: row.usual for row in rows if unasked and row.usual not in (None, "")}
    for row in rows:
        table, _, name = row.name.rpartition(".")
        if not table or dict.__contains__(values, row.name):  # words of a command line have no tables
            value = row.read(values, row.name)
        else:
            value = row.read(values.inner.get(table) or values.section(table), name)
        if value is not None:
            found[row.option] = value
    return found
