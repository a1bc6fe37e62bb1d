"""Bash scripts: a command whose options stand one per line, each with its reason."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, Final

from vramcast.emit.lines import Line, Table, one_line

COMMENT_COLUMN: Final = 58

HEAD: Final = "#!/usr/bin/env bash\n"


def quoted(value: Any) -> str:
    """A value as one word of the shell; lists are several words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(quoted(item) for item in value)
    return shlex.quote(str(value))


def array(name: str, options: Table) -> str:
    """A bash array of options, one per line with its reason.

    A value of True is an option without a value, None and False leave it out.

    >>> print(array("ARGS", (Line("tp", 8, "in a node"), Line("flag", True))))
    ARGS=(
      --tp 8                                                  # in a node
      --flag
    )
    """
    rows = [f"  {_option(line)}" for line in options if line.value is not None and line.value is not False]
    reasons = [line.why for line in options if line.value is not None and line.value is not False]
    return "\n".join([f"{name}=(", *map(commented, rows, reasons), ")"])


def _option(line: Line) -> str:
    name = f"--{line.name}" if line.name else ""
    return name if line.value is True else f"{name} {quoted(line.value)}".strip()


def comments(text: str) -> str:
    """Every line of a text as a comment."""
    return "".join(f"# {line}\n" for line in text.splitlines())


def commented(text: str, why: str) -> str:
    """The line with its reason behind it."""
    return f"{text:<{COMMENT_COLUMN - 1}} # {one_line(why)}" if why else text


def exports(variables: Iterable[Line]) -> str:
    """Environment variables, one per line with its reason."""
    return "\n".join(commented(f"export {line.name}={quoted(line.value)}", line.why) for line in variables)


def words_of(script: str, name: str) -> list[str]:
    """The words of an array that a script sets, as bash splits them: how a script is read back."""
    _, _, rest = script.partition(f"\n{name}=(\n")
    body, _, _ = rest.partition("\n)\n")
    return shlex.split(body, comments=True)


def options_in(words: list[str], *, prefix: str = "--") -> dict[str, Any]:
    """Options among words: name -> text, list of texts where there are several, True where there is none.

    >>> options_in(["--tp", "8", "--on", "--sizes", "1", "2"])
    {'tp': '8', 'on': True, 'sizes': ['1', '2']}
    """
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith(prefix) and not _is_number(word):
            name, equals, value = word.removeprefix(prefix).partition("=")
            found[name] = value if equals else True
        elif name:
            before = found[name]
            found[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return found


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()
