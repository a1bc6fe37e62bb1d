"""What every reader of a configuration file shares: bounded text, values, words of a command line, what was found.

Files are other people's: they are read, never run. A script's variables are put in as far as the script sets them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import Format, load_format, problems
from vramcast.errors import SourceError

LARGEST_FILE: Final = 1 << 20
"""A configuration is a few pages; more is a mistake or an attack [bytes]."""

DEEPEST: Final = 20
"""Levels of tables inside tables."""

MOST_WORDS: Final = 20_000

ELSEWHERE: Final = "is a file of its own; give it with another --from"

VARIABLE: Final = re.compile(r"\$\{(\w{1,80})(?::-([^${}]{0,200}))?\}|\$(\w{1,80})")
ASSIGNMENT: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w{0,80})=(?!\()(\S.{0,400})$", re.MULTILINE)
COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
ARRAY: Final = re.compile(r"^\s*([A-Za-z_]\w{0,80})\+?=\(", re.MULTILINE)


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
            found = _yaml(path, text)
        else:
            return None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise SourceError(f"{path}: not {kind}: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found) or _deep(found) > DEEPEST:
        raise SourceError(f"{path}: must be a table of names and values, at most {DEEPEST} deep")
    return found


def _yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise SourceError(f"{path}: aliases are not allowed in a configuration")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _deep(value: Any, level: int = 0) -> int:
    if level > DEEPEST:
        return level
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return max((_deep(item, level + 1) for item in inner), default=level)


def words(config: Config) -> list[str]:
    """The words of a script's command lines, its variables and arrays put in where it sets them.

    Raises: SourceError for quotes that do not end
    """
    script = COMMENT.sub("", config.text)
    variables = {name: _own_default(name, value.strip().strip("\"'")) for name, value in ASSIGNMENT.findall(script)}
    text = re.sub(r"\\[ \t]*\r?\n", " ", script)
    for _ in range(4):  # variables made of variables
        text, before = VARIABLE.sub(lambda match: _value(match, variables), text), text
        if text == before or len(text) > 4 * LARGEST_FILE:
            break
    try:
        found = shlex.split(ARRAY.sub(" ", text), comments=True)
    except ValueError as error:
        raise SourceError(f"{config.name}: {str(error).lower()}; check the quotes") from None
    stripped = (word.rstrip(");") if word.endswith((")", ";")) else word for word in found[:MOST_WORDS])
    return [word for word in stripped if word]


def _own_default(name: str, value: str) -> str:
    """`PP=${PP:-2}` sets 2 where nobody sets it outside."""
    match = VARIABLE.fullmatch(value)
    return match[2] or "" if match is not None and name in (match[1], match[3]) else value


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name = match[1] or match[3]
    return variables.get(name, match[2] if match[2] is not None else "")


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


def table(values: Any) -> Mapping[str, Any]:
    """A table inside a table, empty where there is none."""
    return values if isinstance(values, Mapping) else {}


def unknown(known: str | Format, section: str, names: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for every name that the format's snapshot does not have."""
    snapshot = load_format(known) if isinstance(known, str) else known
    for name in names:
        if snapshot.find(section, name) is None and snapshot.find(section, name.replace("_", "-")) is None:
            yield from problems(snapshot, section, {name: names[name]})
