"""What names the configuration files of other tools may hold: snapshots of their own declarations.

A snapshot lists, for one version of one package, the names of every section of its files with the kind of value, the
choices and the default of each. `python -m tools.snapshots` writes them from the installed packages; nobody edits them.
`harmless.toml` has names that change neither memory nor time, with a reason for each, `modelled.toml` those of which
some values are modelled, `renamed.toml` what else names are called, `presets.toml` files that come with tools,
`models.toml` what they call networks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from vramcast.errors import Note, UnknownName

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
    since: str = ""  # the first release that has it; empty: older than those that were looked at, or not looked at


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
            yield Note("{}: {} is required by {} {}", path or section, name, known.package, known.version)


def _unknown(known: Format, section: str, name: str, where: str) -> str:
    gone = known.removed.get(section, {}).get(name)
    if gone is not None:
        return Note("{}: removed from {}: {}", where, known.package, gone)
    near = get_close_matches(name, known.sections[section], n=2, cutoff=0.6)
    hint = Note("; did you mean {}?", ' or '.join(near)) if near else ""
    return Note("{}: {} {} knows no such name{}", where, known.package, known.version, hint)


def _wrong_value(known: Format, entry: Name, value: Any, where: str) -> Iterator[str]:
    items = value if isinstance(value, (list, tuple)) else [value]
    if entry.section:
        for index, item in enumerate(items):
            inner = f"{where}[{index}]" if item is not value else where
            if isinstance(item, Mapping):
                yield from problems(known, entry.section, item, path=inner)
            else:
                yield Note("{}: must be a table of values, not {!r}", inner, item)
        return
    types = KINDS.get(entry.kind)
    if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        yield Note("{}: must be of kind {}, not {!r}", where, entry.kind, value)
    elif entry.choices and any(item not in entry.choices for item in items):
        yield Note("{}: {!r} is none of {}", where, value, ", ".join(map(str, entry.choices)))


@cache
def _tables(file: str) -> dict[str, dict[str, Any]]:
    """A file of facts: tool -> source, day, and tables of its own."""
    found: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / f"{file}.toml").read_text(encoding="utf-8"))
    return found


@cache
def harmless(format_name: str, section: str) -> frozenset[str]:
    """The names of one section that say nothing about memory or time, dashes as underscores; none: nobody looked.

    >>> "steps_per_print" in harmless("deepspeed", "config"), "zero_optimization" in harmless("deepspeed", "config")
    (True, False)
    """
    return frozenset(name for names in reasons(format_name, section).values() for name in names)


def reasons(format_name: str, section: str) -> dict[str, tuple[str, ...]]:
    """Why names of a section change nothing -> those names, dashes as underscores."""
    groups = _tables("harmless").get(format_name, {}).get(section, {})
    return {why: tuple(names.replace("-", "_").split()) for why, names in groups.items()}


@cache
def conditions(format_name: str, section: str) -> dict[str, str]:
    """Names that say nothing unless the network has a part -> that part, dashes as underscores.

    >>> conditions("vllm", "EngineArgs")["moe_backend"]
    'experts'
    """
    table = _tables("conditional").get(format_name, {}).get(section, {})
    return {name: part for part, names in table.items() for name in names.split()}


@cache
def modelled(format_name: str, section: str) -> dict[str, list[Any]]:
    """Names of which some values are modelled -> those, dashes as underscores.

    >>> modelled("lmdeploy", "options")["num-nodes".replace("-", "_")]
    [1]
    """
    table = _tables("modelled").get(format_name, {}).get(section, {})
    return {name.replace("-", "_"): values for name, values in table.items()}


def sections() -> tuple[tuple[str, str], ...]:
    """Format and section of every table."""
    return tuple(
        (name, section) for name, table in _tables("harmless").items() for section, groups in table.items()
        if isinstance(groups, dict)
    )


def renamed(format_name: str, section: str) -> dict[str, Any]:
    """Names of one section -> the ones by which they are read.

    >>> renamed("openrlhf", "options")["lora_rank"]
    'ds.lora.rank'
    """
    return dict(_tables("renamed")[format_name][section])


def presets(tool: str, kind: str) -> dict[str, dict[str, Any]]:
    """Files that come with a tool, by the names that stand for them.

    >>> presets("axolotl", "deepspeed")["zero1.json"]["stage"]
    1
    """
    return dict(_tables("presets")[tool][kind])


def networks_of(tool: str) -> dict[str, Any]:
    """What a tool calls networks, and what its names say: "models" -> name -> the network, and tables of its own.

    >>> networks_of("swift")["models"]["qwen1half-7b-chat"]
    'Qwen/Qwen1.5-7B-Chat'
    """
    return _tables("models")[tool]
