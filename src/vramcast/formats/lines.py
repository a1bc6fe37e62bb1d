"""What files are written in: tables of names and values with their reasons, as YAML and as options of bash scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

YAML_COLUMN: Final = 46
BASH_COLUMN: Final = 58
"""Where the reason behind a line begins."""

HEAD: Final = "#!/usr/bin/env bash\n"


class Line(NamedTuple):
    """One line of a file.

    `value` is a scalar, a list of scalars, a list of tables or a table (a tuple of lines).
    """

    name: str
    value: Any
    why: str = ""  # the reason, one sentence without a full stop


Table = tuple[Line, ...]


def when(there: object, *lines: Line) -> Table:
    """Lines that a file has where something is so.

    >>> when(2 > 1, Line("a", 1)), when(None, Line("a", 1))
    ((Line(name='a', value=1, why=''),), ())
    """
    return lines if there else ()


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


PLAIN: Final = re.compile(r"(?:[A-Za-z_/]|\./)[\w./@+-]*")
"""Texts that need no quotes, unless YAML reads them as something else."""

OTHER_THINGS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", "none", "nan", "inf"))
"""Words that some reader of YAML takes for no text."""


def yaml_text(table: Table, *, head: str = "") -> str:
    """The table as YAML; the lines of `head` stand above it as comments.

    >>> print(yaml_text((Line("dp", 8, "ranks"), Line("deep", (Line("on", True),)))), end="")
    dp: 8                                         # ranks
    deep:
      "on": true
    """
    above = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return above + "\n".join(_lines(table, 0)) + "\n"


def yaml_documents(tables: list[Table], *, head: str = "") -> str:
    return "---\n".join([yaml_text(tables[0], head=head), *(yaml_text(table) for table in tables[1:])])


def _lines(table: Table, depth: int) -> list[str]:
    found: list[str] = []
    for line in table:
        found += _line(line, depth)
    return found


def _line(line: Line, depth: int) -> list[str]:
    indent, name, value = "  " * depth, _scalar(line.name), line.value
    if isinstance(value, tuple) and value:
        return [commented(f"{indent}{name}:", line.why, column=YAML_COLUMN), *_lines(value, depth + 1)]
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [commented(f"{indent}{name}:", line.why, column=YAML_COLUMN), *_items(value, depth + 1)]
    if isinstance(value, str) and "\n" in value and _is_block(value):
        body = [f"{indent}  {text}".rstrip() for text in value.rstrip("\n").split("\n")]
        mark = "|" if value.endswith("\n") else "|-"
        return [commented(f"{indent}{name}: {mark}", line.why, column=YAML_COLUMN), *body]
    return [commented(f"{indent}{name}: {_value(value)}", line.why, column=YAML_COLUMN)]


def _is_block(text: str) -> bool:
    """Whether a literal block gives the text back: it must not begin with a space nor end in blanks."""
    lines = text.rstrip("\n").split("\n")
    trailing = len(text) - len(text.rstrip("\n"))
    printable = all(part.isprintable() and part == part.rstrip() for part in lines)
    return printable and trailing <= 1 and bool(lines[0]) and lines[0][0] != " "


def _items(tables: list[Table], depth: int) -> list[str]:
    found: list[str] = []
    for table in tables:
        inner = _lines(table, depth + 1)
        indent = "  " * depth
        found += [f"{indent}- {inner[0][len(indent) + 2:]}", *inner[1:]]
    return found


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]" if value or isinstance(value, list) else "{}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(name)}: {_value(item)}" for name, item in value.items()) + "}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    text = str(value)
    if PLAIN.fullmatch(text) and text.lower() not in OTHER_THINGS:
        return text
    return _double_quoted(text)


def _double_quoted(text: str) -> str:
    r"""A text between double quotes; what YAML does not take as it stands is escaped.

    >>> print(_double_quoted('a "b"' + chr(8)))
    "a \"b\"\x08"
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _float(value: float) -> str:
    """YAML 1.1 reads a number with an exponent as a text unless it has a point and a sign.

    >>> _float(1e-05), _float(0.5)
    ('1.0e-05', '0.5')
    """
    mantissa, mark, exponent = repr(value).partition("e")
    if not mark:
        return mantissa
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent if exponent[0] in '+-' else '+' + exponent}"


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
    rows = [
        commented(f"  {_option(line)}", line.why)
        for line in options if line.value is not None and line.value is not False
    ]
    return "\n".join([f"{name}=(", *rows, ")"])


def _option(line: Line) -> str:
    name = f"--{line.name}" if line.name else ""
    return name if line.value is True else f"{name} {quoted(line.value)}".strip()


def comments(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())


def commented(text: str, why: str, *, column: int = BASH_COLUMN) -> str:
    return f"{text:<{column - 1}} # {one_line(why)}" if why else text


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
