"""What names the configuration files of other tools may hold: snapshots of their own declarations.

A snapshot lists, for one version of one package, the names of every section of its files with the kind of value, the
choices and the default of each. `python -m tools.snapshots` writes them from the installed packages; nobody edits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from vramcast.errors import UnknownName

FOLDER: Final = Path(__file__).parent / "formats"

Kind = Literal["flag", "bool", "int", "number", "text", "list", "map", "any"]

KINDS: Final[dict[str, tuple[type, ...]]] = {
    "flag": (bool,),
    "bool": (bool,),
    "int": (int,),
    "number": (int, float),
    "text": (str,),
    "list": (list, tuple),
    "map": (dict,),
}
"""Kind -> types of values as JSON or YAML read them; "any" takes everything, a flag no value on a command line."""


class Name(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One name of a section."""

    kind: Kind = "any"
    default: Any = None  # None: none, or not a plain value
    choices: tuple[Any, ...] = ()  # the only values it takes; empty: any of its kind
    section: str = ""  # whose names its value (or every item of its value) holds
    aliases: tuple[str, ...] = ()  # other spellings
    deprecated: bool = False
    required: bool = False


class Format(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The names that one version of one package knows."""

    package: str
    version: str
    read: str  # ISO date of the snapshot
    how: str  # what was read
    sections: dict[str, dict[str, Name]]
    removed: dict[str, dict[str, str]] = {}  # section -> name earlier versions had -> since when, or what to use

    def find(self, section: str, name: str) -> Name | None:
        """The name, or the one it is another spelling of."""
        names = self.sections[section]
        found = names.get(name)
        if found is not None:
            return found
        return next((entry for entry in names.values() if name in entry.aliases), None)


def format_names() -> tuple[str, ...]:
    """The snapshots at hand."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def load_format(name: str) -> Format:
    """The snapshot of one format.

    Raises: UnknownName

    >>> load_format("deepspeed").sections["zero_optimization"]["stage"].choices
    (0, 1, 2, 3)
    """
    path = FOLDER / f"{name}.json"
    if name not in format_names():
        raise UnknownName.of("format", name, format_names())
    return msgspec.json.decode(path.read_bytes(), type=Format)


def problems(known: Format, section: str, values: Mapping[str, Any], *, path: str = "") -> Iterator[str]:
    """What is wrong with the values of one section and of those below it, one sentence each.

    Args:
        known: the snapshot
        section: whose names `values` holds
        values: as the file reads back
        path: where the section lies in the file, for the sentences
    """
    for name, value in values.items():
        where = f"{path}.{name}" if path else str(name)
        entry = known.find(section, str(name))
        if entry is None:
            yield _unknown(known, section, str(name), where)
        elif value is not None:
            yield from _wrong_value(known, entry, value, where)
    for name, entry in known.sections[section].items():
        if entry.required and name not in values:
            yield f"{path or section}: {name} is required by {known.package} {known.version}"


def _unknown(known: Format, section: str, name: str, where: str) -> str:
    gone = known.removed.get(section, {}).get(name)
    if gone is not None:
        return f"{where}: removed from {known.package}: {gone}"
    near = get_close_matches(name, known.sections[section], n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{where}: {known.package} {known.version} knows no such name{hint}"


def _wrong_value(known: Format, entry: Name, value: Any, where: str) -> Iterator[str]:
    items = value if isinstance(value, (list, tuple)) else [value]
    if entry.section:
        for index, item in enumerate(items):
            inner = f"{where}[{index}]" if item is not value else where
            if isinstance(item, Mapping):
                yield from problems(known, entry.section, item, path=inner)
            else:
                yield f"{inner}: must be a table of values, not {item!r}"
        return
    types = KINDS.get(entry.kind)
    if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        yield f"{where}: must be of kind {entry.kind}, not {value!r}"
    elif entry.choices and any(item not in entry.choices for item in items):
        yield f"{where}: {value!r} is none of {', '.join(map(str, entry.choices))}"
