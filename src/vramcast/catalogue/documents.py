"""TOML and YAML that somebody else wrote, as plain values: bounded in depth and time, no code, one error.

[yaml] PyYAML scanner.py `stale_possible_simple_keys` goes through all open brackets at every token, constructor.py
multiplies the parts of 1:2:3 into one integer, and a token takes it 20 microseconds
[toml] CPython tomllib `key_value_rule` looks at every beginning of a dotted key
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.errors import Note, VramcastError

DEEPEST: Final = 64
"""Brackets, tables and parts of a key inside one another."""
MOST_TOKENS: Final = 100_000
"""Of a YAML file of settings: keys, values and marks [count]."""
LONGEST_NUMBER: Final = 64
"""Characters of a plain number or date; beyond them it is no value of anything."""

TOML_TEXT: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|' r"'''.*?'''|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'|#[^\n]*", re.DOTALL
)
TOML_BETWEEN: Final = re.compile(r"[=,{}\[\]]|\n")
NUMERIC: Final = re.compile(r"[-+0-9_:.eE]+")


class NoDocument(VramcastError):
    """Why a text cannot be read, in a few words."""


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML document.

    Raises: NoDocument
    """
    import tomllib

    if any(part.count(".") > DEEPEST for part in TOML_BETWEEN.split(TOML_TEXT.sub("", text))):
        raise NoDocument("a key has more than {} parts", DEEPEST)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are plain ValueErrors
        raise NoDocument("{}", _shortened(error)) from None


def parse_yaml(text: str, *, most_tokens: int = MOST_TOKENS) -> Any:
    """The value of a YAML document.

    Raises: NoDocument
    """
    import yaml

    class Bounded(yaml.SafeLoader):
        """Counts what is read of it as it is read."""

        count = depth = 0

        def get_token(self) -> Any:
            token = super().get_token()  # type: ignore[no-untyped-call]
            self.count += 1
            if self.count > most_tokens + 1:
                raise NoDocument("more than {} keys, values and marks", most_tokens)
            name = type(token).__name__
            self.depth += name.endswith("StartToken") - name.endswith("EndToken")
            if self.depth > DEEPEST:
                raise NoDocument(f"more than {DEEPEST} levels")
            text_of = token.value if isinstance(token, yaml.ScalarToken) and token.plain else ""
            if len(text_of) > LONGEST_NUMBER and NUMERIC.fullmatch(text_of):
                raise NoDocument("a number of {} characters", len(text_of))
            return token

    try:
        loader = Bounded(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _written_out(node, {}, most_tokens)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise NoDocument("{}", _shortened(error)) from None
    except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError, RecursionError) as error:
        raise NoDocument("a value is none of its tag ({})", _shortened(error)) from None  # !!timestamp x, !!int ""


def _written_out(node: Any, known: dict[int, tuple[int, int]], most: int, level: int = 0) -> tuple[int, int]:
    """How many values a node stands for, and how deep they go, with all that its aliases repeat.

    Raises: NoDocument where that is too much, as of an alias inside what it names
    """
    size, height = known.get(id(node), (0, 0))
    if not size:
        size, parts = 1, node.value if isinstance(node.value, list) else ()
        if level > DEEPEST:
            raise NoDocument(f"more than {DEEPEST} levels")
        for part in (one for item in parts for one in (item if isinstance(item, tuple) else (item,))):
            more, depth = _written_out(part, known, most, level + 1)
            size, height = size + more, max(height, depth + 1)
        known[id(node)] = size, height
    if size > most:
        raise NoDocument("more than {} keys, values and marks", most)
    if level + height > DEEPEST:
        raise NoDocument(f"more than {DEEPEST} levels")
    return size, height


def _shortened(error: Exception) -> str:
    """What went wrong and where; not the line itself, which may hold a secret."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    text = " ".join(str(error if mark is None else problem or "not understood").split())[:200]
    return text if mark is None else Note("{}, line {}", text, mark.line + 1)
