"""What every reader of a configuration file shares: bounded text, values, words of a command line, what was found.

Files are other people's: they are read, never run. A script's variables are put in as far as the script sets them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.catalogue.documents import NoDocument, parse_yaml
from vramcast.catalogue.formats import Format, load_format, problems
from vramcast.errors import SourceError
from vramcast.question.configs.shell import UNSET, read_script

LARGEST_FILE: Final = 1 << 20
"""A configuration is a few pages; more is a mistake or an attack [bytes]."""

DEEPEST: Final = 20
"""Levels of tables inside tables."""

ELSEWHERE: Final = "is a file of its own; give it with another --from"


class Config(NamedTuple):
    """A file as text, and as a table where it is JSON or YAML."""

    name: str
    text: str
    table: Mapping[str, Any] | None


class Reading(NamedTuple):
    """What a file asks."""

    format: str  # as `--from-format` names it
    options: dict[str, Any]  # of `vramcast train` or `serve`; `model` may be a Model
    batch: dict[str, int] = {}  # "global", "micro", "accumulation": solved once the number of ranks is known
    used: tuple[str, ...] = ()  # names that matter, as the file has them
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was left out or filled in
    auto: dict[str, str] = {}  # option that the file leaves to the run -> what the file says


def read_config(path: Path) -> Config:
    """The file, its size and depth bounded.

    Raises: SourceError when it cannot be read
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise SourceError(f"{path}: a configuration has at most {LARGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not a text file") from None
    return Config(path.name, text, _table(path, text))


def _table(path: Path, text: str) -> Mapping[str, Any] | None:
    """JSON or YAML, None for scripts."""
    try:
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            found = json.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            found = parse_yaml(text)
        else:
            return None
    except (ValueError, RecursionError, NoDocument) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise SourceError(f"{path}: not {kind}: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found) or _deep(found) > DEEPEST:
        raise SourceError(f"{path}: must be a table of names and values, at most {DEEPEST} deep")
    return found


def _deep(value: Any, level: int = 0) -> int:
    if level > DEEPEST:
        return level
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return max((_deep(item, level + 1) for item in inner), default=level)


class Command(NamedTuple):
    """The command line of a script that a reader is about."""

    words: tuple[str, ...]
    notes: tuple[str, ...]  # what of the script is left out


def command_of(config: Config, score: Callable[[tuple[str, ...]], int]) -> Command:
    """The command with the highest score, its variables put in; where none has any, arguments that are only set.

    Args:
        config: the script
        score: how much of a command belongs to the reader

    Raises: SourceError for quotes that do not end
    """
    script = read_script(config.text, config.name)
    notes = list(script.notes)
    best = max(script.commands, key=score, default=())
    if score(best) > 0:
        if others := sum(score(found) > 0 for found in script.commands) - 1:
            notes.append(f"{others} more such commands are not read")
        if script.unused:
            names = ", ".join(f"${name}" for name in script.unused)
            notes.append(f"not read, as the command does not use them: {names}")
    else:
        best = tuple(word for words in script.unused.values() for word in words)
    lost = dict.fromkeys(word for word in best if UNSET.fullmatch(word))
    if lost:
        notes.append(f"not set in the file: {' '.join(lost)}")
    return Command(best, tuple(notes))


class Watched(dict[str, Any]):
    """Values that remember which of them were looked at; what the script does not set is as if it were not there."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.asked: dict[str, None] = {}  # in order
        self.inner: dict[str, Watched] = {}
        self.auto: dict[str, None] = {}  # names left to the run
        self.warnings: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        self.asked[name] = None
        value = super().get(name, default)
        return default if is_unset(value) else value

    def __getitem__(self, name: str) -> Any:
        self.asked[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) and not is_unset(super().get(str(name)))

    def section(self, name: str) -> Watched:
        """The table of a name; empty where there is none."""
        value = self.get(name)
        self.inner[name] = Watched(table(value))
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, value, "a table")
        return self.inner[name]

    def count(self, name: str) -> int | None:
        """A positive whole number, else None; what is neither that nor "auto" gets a sentence."""
        value = self.get(name)
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if count(number) is None and value is not None and not self._is_auto(name, value):
            self.refuse(name, value, "a whole number from 1 up")
        return count(number)

    def flag(self, name: str) -> bool | None:
        """True or false, else None; what is neither that nor "auto" gets a sentence."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool) and not self._is_auto(name, value):
            self.refuse(name, value, "true or false")
        return value if isinstance(value, bool) else None

    def one_of(self, name: str, known: Mapping[str, Any], *, lower: bool = False) -> Any:
        """What a table has for a value, None for "auto"; other values get a sentence."""
        value = self.get(name)
        if value is None or self._is_auto(name, value):
            return None
        text = str(value).lower() if lower else str(value)
        if text not in known:
            self.refuse(name, value, f"one of {', '.join(known)}")
        return known.get(text)

    def _is_auto(self, name: str, value: Any) -> bool:
        if value == "auto":
            self.auto[name] = None
        return bool(value == "auto")

    def refuse(self, name: str, value: Any, wanted: str) -> None:
        """Say that a value is left out."""
        self.warnings.append(f"{name}: {str(value)[:60]!r} is not {wanted}; left out")

    def unread(self, harmless: Container[str] = ()) -> list[str]:
        """Names that nobody looked at, those of the tables inside with them."""
        own = [name for name in self if name not in self.asked and name not in harmless]
        return own + [f"{name}.{inner}" for name, values in self.inner.items() for inner in values.unread()]

    def said(self) -> list[str]:
        """Sentences about values that were wanted and could not be used, here and in the tables inside."""
        unset = [
            f"{name}: {dict.get(self, name)} is not set in the file" for name in self.asked
            if is_unset(dict.get(self, name))
        ]
        inner = [f"{name}.{text}" for name, values in self.inner.items() for text in values.said()]
        return [*unset, *self.warnings, *inner]

    def left_open(self) -> list[str]:
        """Names that say "auto"."""
        return [*self.auto, *(f"{name}.{inner}" for name, values in self.inner.items() for inner in values.left_open())]


def is_unset(value: Any) -> bool:
    """Whether a value is a variable that nobody sets."""
    return isinstance(value, str) and UNSET.search(value) is not None


def not_read(names: Iterable[str], prefix: str = "") -> tuple[str, ...]:
    """One line of what a file has beside what was used."""
    listed = [f"{prefix}{name}" for name in names]
    return (f"not read: {' '.join(listed)}",) if listed else ()


def arguments(found: Iterable[str], *, short: bool = False) -> dict[str, Any]:
    """`--name value` pairs; a name alone is True, several values are a list, dashes stand for underscores.

    Args:
        found: words of a command line
        short: names with one dash count as well

    >>> arguments(["vllm", "serve", "m", "--tp", "2", "--fast", "--x=3", "--list", "a", "b"])
    {'tp': 2, 'fast': True, 'x': 3, 'list': ['a', 'b']}
    """
    result: dict[str, Any] = {}
    name: str | None = None
    for word in found:
        if re.match(r"^--?[A-Za-z]" if short else r"^--[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            result[name] = plain(value) if equals else True
        elif name is not None:
            before = result[name]
            values = [] if before is True else before if isinstance(before, list) else [before]
            result[name] = plain(word) if not values else [*values, plain(word)]
    return result


def plain(text: str) -> Any:
    """A word as a number or truth value where it is one."""
    named = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,18}\.\d{1,18}(?:[eE]-?\d{1,2})?|-?\d{1,18}[eE]-?\d{1,2}", text):
        return float(text)
    return text


def count(value: Any) -> int | None:
    """A positive whole number, None for "auto" and everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None


def mistaken(known: str, section: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Names that take numbers, or one of few words, and have something else -> the sentence that says so."""
    snapshot, found = load_format(known), {}
    for name, value in values.items():
        entry = snapshot.find(section, name)
        if entry is None or value is None or is_unset(value) or not (entry.choices or entry.kind in ("int", "number")):
            continue
        if sentence := next(problems(snapshot, section, {name: value}), None):
            found[name] = f"{sentence}; left out"
    return found


def table(values: Any) -> Mapping[str, Any]:
    """A table inside a table, empty where there is none."""
    return values if isinstance(values, Mapping) else {}


def unknown(known: str | Format, section: str, names: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for every name that the format's snapshot does not have."""
    snapshot = load_format(known) if isinstance(known, str) else known
    for name in names:
        if snapshot.find(section, name) is None and snapshot.find(section, name.replace("_", "-")) is None:
            yield from problems(snapshot, section, {name: names[name]})
