"""A user's own file with a few values changed: what differs between two plans, in the words of the file's tool.

The writer of the file's format writes both plans; where the two texts differ, the user's file is changed, and nowhere
else. Comments, order and what is not of the plan stay as they are.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.errors import Unsupported
from vramcast.formats.files import Asked, File, Order, read_back
from vramcast.formats.read import format_of
from vramcast.formats.reading import Config, read_config
from vramcast.formats.registry import EMITTERS
from vramcast.formats.tools.transformers import is_factory

WRITERS: Final = {"trainer": "transformers"}
"""Format that is read -> format that is written, where they are called differently."""

SCALAR: Final = re.compile(
    r"(?P<head>\s*(?P<quote>['\"]?)(?P<name>[\w.-]+)(?P=quote)\s*:)(?P<value>[^#\n]*?)(?P<tail>\s*(?:#.*)?)"
)
"""A line of YAML with a name and a value."""

WORD: Final = re.compile(r"[A-Za-z_][\w./-]*")
YAML_WORDS: Final = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


class Difference(NamedTuple):
    """What one file of a plan says otherwise than that of another plan."""

    changed: dict[tuple[str, ...], Any]  # path of a name -> its value
    removed: tuple[tuple[str, ...], ...]


def fixed(path: Path, command: str, before: Job | ServeJob, after: Job | ServeJob) -> str | None:
    """The text of a file with what differs between two plans; None where it says nothing of that.

    Args:
        path: of the user's file
        command: of vramcast that it is for
        before: the plan as the file has it
        after: the plan as it shall be

    Raises: Unsupported for what the tool cannot say, or a file whose form is not changed here
    """
    config = read_config(path)
    name = format_of(config, command, None)
    emitter = "llamafactory" if name == "trainer" and is_factory(config.table or {}) else WRITERS.get(name, name)
    if emitter not in EMITTERS:
        raise Unsupported("{}: files of {} are read and not written", path.name, name)
    difference = _difference(*(_values(emitter, job) for job in (before, after)))
    if not difference.changed and not difference.removed:
        return None
    if config.table is None:
        return _in_words(config, difference)
    return _in_json(config, difference) if config.text.lstrip().startswith("{") else _in_yaml(config, difference)


def _values(emitter: str, job: Job | ServeJob) -> dict[tuple[str, ...], Any]:
    """What the first file of a format says of a plan: path of a name -> value."""
    row = EMITTERS[emitter]
    files: tuple[File, ...] = getattr(
        import_module(f"vramcast.formats.tools.{row.module}"), row.function)(Order(job, Asked(job)))
    return dict(_leaves(read_back(files[0]))) if files else {}


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(name)))
        else:
            yield (*path, str(name)), value


def _difference(before: Mapping[tuple[str, ...], Any], after: Mapping[tuple[str, ...], Any]) -> Difference:
    return Difference(
        {path: value for path, value in after.items() if path not in before or before[path] != value},
        tuple(path for path in before if path not in after),
    )


def _in_json(config: Config, difference: Difference) -> str:
    table = json.loads(config.text)
    for path, value in difference.changed.items():
        inner = table
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    for path in difference.removed:
        inner = table
        for name in path[:-1]:
            inner = inner.get(name, {})
        inner.pop(path[-1], None)
    indent = re.search(r"\n([ \t]+)\S", config.text)
    return json.dumps(table, indent=indent[1] if indent else None, ensure_ascii=False) + "\n"


def _in_yaml(config: Config, difference: Difference) -> str:
    """Lines of names with one value each; tables inside tables by their indentation."""
    lines = config.text.splitlines()
    for path, value in difference.changed.items():
        text = _scalar(value)
        place = _line_of(lines, path)
        if place is not None:
            match = SCALAR.fullmatch(lines[place])
            if match is None or (not match["value"].strip() and _is_opened(lines, place)):
                several = ".".join(path)
                raise Unsupported(
                    "{}: {} has several lines, which are not changed; set it by hand", config.name, several
                )
            lines[place] = f"{match['head']} {text}{match['tail']}"
            continue
        *tables, name = path
        outer = [_line_of(lines, tuple(path[: depth + 1])) for depth in range(len(tables))]
        known = [place for place in outer if place is not None]
        new = [f"{'  ' * depth}{table}:" for depth, table in enumerate(tables) if depth >= len(known)]
        new.append(f"{'  ' * len(tables)}{name}: {text}")
        at = known[-1] + 1 if known else len(lines)
        lines[at:at] = new
    for path in difference.removed:
        if (place := _line_of(lines, path)) is not None:
            del lines[place]
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """A value as YAML has it, which JSON is; a word as it is."""
    plain = isinstance(value, str) and WORD.fullmatch(value) and value.lower() not in YAML_WORDS
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _line_of(lines: list[str], path: tuple[str, ...]) -> int | None:
    """Where a name stands, by the indentation of the tables around it; dashes are as good as underscores."""
    open_: list[tuple[int, str]] = []
    for place, line in enumerate(lines):
        match = SCALAR.fullmatch(line)
        if match is None:
            continue
        indent = len(line) - len(line.lstrip())
        open_ = [(depth, name) for depth, name in open_ if depth < indent]
        open_.append((indent, match["name"]))
        if [name.replace("-", "_") for _, name in open_] == [name.replace("-", "_") for name in path]:
            return place
    return None


def _is_opened(lines: list[str], place: int) -> bool:
    """Whether the value of a line stands in the lines behind it."""
    indent = len(lines[place]) - len(lines[place].lstrip())
    behind = next((line for line in lines[place + 1 :] if line.strip()), "")
    return len(behind) - len(behind.lstrip()) > indent or behind.lstrip().startswith("- ")


def _in_words(config: Config, difference: Difference) -> str:
    """Arguments of a command line where they stand; new ones before the first that is there."""
    text = config.text
    for path, value in difference.changed.items():
        name = ".".join(path)
        values = value if isinstance(value, list) else [] if value is True else [value]
        words = " ".join([f"--{name}", *(shlex.quote(str(one)) for one in values)])
        place = _argument(text, name)
        if place is not None:
            text = text[: place[0]] + words + text[place[1] :]
            continue
        first = re.search(r"(?<![\w-])--[A-Za-z][\w.-]*", text)
        if first is None and len(text.splitlines()) == 1:
            text = f"{text.rstrip()} {words}\n"
            continue
        if first is None:
            raise Unsupported("{}: no arguments stand in it; add {}", config.name, words)
        text = f"{text[: first.start()]}{words} {text[first.start() :]}"
    for path in difference.removed:
        place = _argument(text, ".".join(path))
        if place is not None:
            text = text[: place[0]] + text[place[1] :].lstrip(" ")
    return text


def _argument(text: str, name: str) -> tuple[int, int] | None:
    """Where an argument and its value stand."""
    spelled = re.escape(name).replace("_", "[-_]").replace(r"\-", "[-_]")
    value = r"(?:=|[ \t]+)(?!-|\\)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s'\"\\)]+)"
    found = list(re.finditer(rf"(?<![\w-])--{spelled}(?![\w.-])(?:{value})?", text))
    return (found[0].start(), found[0].end()) if len(found) == 1 else None
