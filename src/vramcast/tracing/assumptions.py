"""What a run assumed because tensors have no data: which value, where, how often.

Whoever knows better gives the value: `train.py:33=0.25`.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from vramcast.question.tracing import Value


class Place(NamedTuple):
    """A line of Python."""

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"

    @property
    def source(self) -> str:
        """The line itself, with the next where it ends in a colon; "" where it cannot be read."""
        line = linecache.getline(self.filename, self.line).strip()
        return f"{line} {linecache.getline(self.filename, self.line + 1).strip()}" if line.endswith(":") else line


class Assumption(Struct, frozen=True):
    """One thing assumed at one place."""

    what: str
    place: str  # "train.py:33", "" where it holds everywhere
    count: int
    can_be_given: bool = False  # a value of a script at this line, which --value gives


UNKNOWN: Final = Place("", 0)


class Assumptions:
    """All of one run."""

    def __init__(self, given: Mapping[str, Value] | None = None) -> None:
        """Nothing assumed yet.

        Args:
            given: place ("train.py:33") -> the value of tensors that are read there
        """
        self._given = dict(given or {})
        self._counts: dict[tuple[str, str, bool], int] = {}
        self.used: set[str] = set()  # of the places given

    def __iter__(self) -> Iterator[Assumption]:
        return (Assumption(what, place, count, given) for (what, place, given), count in self._counts.items())

    def note(self, what: str, place: Place = UNKNOWN, *, can_be_given: bool = False) -> None:
        """Something was assumed."""
        key = what, str(place) if place.line else "", can_be_given and place.line > 0
        self._counts[key] = self._counts.get(key, 0) + 1

    def given(self, place: Place) -> Value | None:
        """What the user said a tensor read there holds."""
        for key, value in self._given.items():
            name, _, line = key.rpartition(":")
            path = place.filename.replace("\\", "/")
            if line == str(place.line) and (path == name or path.endswith("/" + name)):
                self.used.add(key)
                return value
        return None
