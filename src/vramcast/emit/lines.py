"""What a configuration file says: named values, each with the reason for it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Line(NamedTuple):
    """One line of a file.

    `value` is a scalar, a list of scalars, a list of tables or a table (a tuple of lines).
    """

    name: str
    value: Any
    why: str = ""  # the reason, one sentence without a full stop


Table = tuple[Line, ...]


def plain(value: Any) -> Any:
    """The same without reasons, as JSON and YAML readers give it back.

    >>> plain((Line("a", 1, "because"), Line("b", (Line("c", [2]),))))
    {'a': 1, 'b': {'c': [2]}}
    """
    if isinstance(value, tuple) and (not value or isinstance(value[0], Line)):
        return {line.name: plain(line.value) for line in value}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def one_line(text: str) -> str:
    """A text for a comment: one line, nothing that a reader would choke on."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def reasons(table: Table, path: str = "") -> list[tuple[str, str]]:
    """Path of a value -> its reason, for files that cannot hold comments."""
    found: list[tuple[str, str]] = []
    for line in table:
        where = f"{path}.{line.name}" if path else line.name
        if line.why:
            found.append((where, line.why))
        inner = line.value if isinstance(line.value, list) else [line.value]
        for item in inner:
            if isinstance(item, tuple):
                found += reasons(item, where)
    return found
