"""YAML with the reason of every line as its comment."""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.emit.lines import Line, Table, one_line

PLAIN: Final = re.compile(r"[A-Za-z_./][\w./@+-]*")
"""Texts that need no quotes, unless YAML reads them as something else."""

OTHER_THINGS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", "none", "nan", "inf"))
"""Words that some reader of YAML takes for no text."""

COMMENT_COLUMN: Final = 46


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
    """Several documents of one file."""
    return "---\n".join([yaml_text(tables[0], head=head), *(yaml_text(table) for table in tables[1:])])


def _lines(table: Table, depth: int) -> list[str]:
    found: list[str] = []
    for line in table:
        found += _line(line, depth)
    return found


def _line(line: Line, depth: int) -> list[str]:
    indent, name, value = "  " * depth, _scalar(line.name), line.value
    if isinstance(value, tuple) and value:
        return [_with_reason(f"{indent}{name}:", line.why), *_lines(value, depth + 1)]
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [_with_reason(f"{indent}{name}:", line.why), *_items(value, depth + 1)]
    if isinstance(value, str) and "\n" in value and _is_block(value):
        body = [f"{indent}  {text}".rstrip() for text in value.rstrip("\n").split("\n")]
        mark = "|" if value.endswith("\n") else "|-"
        return [_with_reason(f"{indent}{name}: {mark}", line.why), *body]
    return [_with_reason(f"{indent}{name}: {_value(value)}", line.why)]


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
    if PLAIN.fullmatch(text) and text.lower() not in OTHER_THINGS and text.strip(".") and not text.startswith(".."):
        return text
    return quoted(text)


def quoted(text: str) -> str:
    r"""A text between double quotes; what YAML does not take as it stands is escaped.

    >>> print(quoted('a "b"' + chr(8)))
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


def _with_reason(text: str, why: str) -> str:
    return f"{text:<{COMMENT_COLUMN - 1}} # {one_line(why)}" if why else text
