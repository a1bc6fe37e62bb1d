"""Arguments that servers print: Python dictionaries, keyword arguments, representations of objects."""

from __future__ import annotations

import re
from typing import Any, Final

MOST_ARGUMENTS: Final = 2_000
LONGEST_VALUE: Final = 4_096

OPENING: Final = "([{<"
CLOSING: Final = ")]}>"
QUOTES: Final = "'\""
KEY: Final = re.compile(r"\s*['\"]?([A-Za-z_][\w.-]{0,80})['\"]?\s*[=:]\s*")

VALUE: Final = r"'[^']{0,1000}'|\"[^\"]{0,1000}\"|[\w./:+-]{1,200}"

WORDS: Final[dict[str, Any]] = {"None": None, "null": None, "True": True, "False": False, "true": True, "false": False}


def split_arguments(text: str) -> dict[str, Any]:
    """The arguments of the outermost level; what brackets hold stays text.

    >>> split_arguments("model='a,b', tp=2, extra={'model': 'x'}, graphs=None) and more")
    {'model': 'a,b', 'tp': 2, 'extra': "{'model': 'x'}", 'graphs': None}
    """
    found: dict[str, Any] = {}
    for piece in _pieces(text):
        match = KEY.match(piece)
        if match is not None and len(found) < MOST_ARGUMENTS:
            found.setdefault(match[1], _value(piece[match.end() :].strip()[:LONGEST_VALUE]))
    return found


def _pieces(text: str) -> list[str]:
    """The text between commas of the outermost level, up to the bracket that ends it."""
    pieces: list[str] = []
    start = depth = 0
    quote = ""
    escaped = False
    for position, character in enumerate(text):
        if quote:
            if escaped or character == "\\":
                escaped = not escaped
            elif character == quote:
                quote = ""
        elif character in QUOTES:
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
            if depth < 0:
                return [*pieces, text[start:position]]
        elif character == "," and depth == 0:
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]]


def _value(text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    if len(text) > 1 and text[0] in QUOTES and text.endswith(text[0]):
        return text[1:-1]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,18}(?:\.\d{1,18})?(?:e-?\d{1,2})?", text):
        return float(text)
    return text


def argument(text: str, key: str) -> Any:
    """One argument wherever it stands in a text whose arguments are apart by spaces; None where it does not.

    >>> argument("model='x' tensor_parallel_size=2 backend='pytorch'", "tensor_parallel_size")
    2
    """
    match = re.search(rf"(?<!\w){key}['\"]?\s{{0,3}}[=:]\s{{0,3}}({VALUE})", text)
    return None if match is None else _value(match[1])
