"""Tables of rows that say the same thing in a tool's words and in ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from vramcast.domain.job import Job
from vramcast.errors import Unsupported
from vramcast.formats.lines import Line
from vramcast.formats.reading import written
from vramcast.formats.watched import Watched


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
