"""Names with points between, as OmegaConf and Hydra have them: tables of them, overrides, what refers to another.

[omegaconf] omry/omegaconf omegaconf/_utils.py; [nemo] nemo_rl/utils/config.py `register_omegaconf_resolvers`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from vramcast.catalogue.tables import NoDocument, parse_yaml

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
