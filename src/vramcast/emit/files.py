"""A file to be written, how it reads back, and what the snapshots say of that."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import Format, load_format, problems
from vramcast.domain.answer import Fleet
from vramcast.emit.asked import Asked
from vramcast.emit.shell import options_in, words_of

PLACEHOLDER: Final = "TO-BE-FILLED-IN"
"""Stands where only the user knows the value."""


class Part(NamedTuple):
    """Where names of a snapshot stand in a file that is read back."""

    format: str  # name of the snapshot
    section: str
    path: tuple[str | int, ...] = ()  # keys to them from the top
    further: tuple[str, ...] = ()  # other sections whose names stand among them


class File(NamedTuple):
    """One file of the folder."""

    name: str
    text: str
    parts: tuple[Part, ...] = ()  # what is held against snapshots
    said: frozenset[str] = frozenset()  # settings of the job that it says
    notes: tuple[str, ...] = ()  # what the user should know of it, one sentence each
    reasons: tuple[tuple[str, str], ...] = ()  # of its values, where the file cannot hold comments
    executable: bool = False


class Order(NamedTuple):
    """One request for files: the job, and who asks what of it."""

    job: Any  # Job or ServeJob
    ask: Asked
    beside: tuple[File, ...] = ()  # files of the frameworks, for a launcher
    fleet: Fleet | None = None  # where a search spread a load over replicas of this job

    def apart(self) -> Order:
        """The same for a file beside, which says what it says itself."""
        return self._replace(ask=Asked(self.job))


def read_back(file: File) -> Any:
    """The values a file holds, as the tool that it is for reads them.

    JSON and YAML as they stand, of several documents a list; of a script the options of its array ARGS.
    """
    suffix = file.name.rpartition(".")[2]
    if suffix == "json":
        return json.loads(file.text)
    if suffix in ("yaml", "yml"):
        import yaml

        documents = list(yaml.safe_load_all(file.text))
        return documents if len(documents) > 1 else documents[0]
    return nested(options_in(words_of(file.text, "ARGS"))) if suffix == "sh" else {}


def nested(options: dict[str, Any]) -> dict[str, Any]:
    """Options with a point in their name as tables: torchtitan's `--training.seq_len`.

    >>> nested({"training.steps": "3", "config": "planned"})
    {'training': {'steps': '3'}, 'config': 'planned'}
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        section, point, key = name.partition(".")
        if point:
            found.setdefault(section, {})[key] = value
        else:
            found[name] = value
    return found


def defects(file: File) -> list[str]:
    """What the snapshots say is wrong with a file, one sentence each."""
    found: list[str] = []
    values = read_back(file) if file.parts else {}
    for part in file.parts:
        inner = values
        for key in part.path:
            inner = inner[key]
        known = load_format(part.format)
        by_section: dict[str, dict[str, Any]] = {part.section: {}}
        for name, value in inner.items():
            section, key, typed = _placed(known, part, name, value, words=file.name.endswith(".sh"))
            by_section.setdefault(section, {})[key] = typed
        found += [f"{file.name}: {text}" for section, names in by_section.items()
                  for text in problems(known, section, names)]
    return found


def _placed(known: Format, part: Part, name: str, value: Any, *, words: bool) -> tuple[str, str, Any]:
    """The section that knows a name, the name as it stands there, and the value as its kind wants it.

    Options of a command line are words: dashes for underscores, `--no-` before what is switched off, numbers as text.
    """
    for section in (part.section, *part.further):
        for key in (name, name.replace("-", "_")) if words else (name,):
            entry = known.find(section, key)
            if entry is not None:
                return section, key, _typed(value, entry.kind) if words else value
        off = known.find(section, name.removeprefix("no-").replace("-", "_"))
        if words and name.startswith("no-") and off is not None and off.kind == "bool":
            return section, name.removeprefix("no-").replace("-", "_"), False
    return part.section, name, value


def _typed(value: Any, kind: str) -> Any:
    if kind in ("flag", "bool"):
        return {"true": True, "false": False}.get(value, value)
    if kind == "list":
        return value if isinstance(value, list) else [value]
    if kind == "map" and isinstance(value, str):
        return json.loads(value)
    if kind not in ("int", "number") or not isinstance(value, str):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        return value
