"""Where loops and functions of a script end, among its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramcast.formats.lexer import Token

LOOPS: Final = ("for", "while", "until", "select")
BEFORE_A_COMMAND: Final = ("then", "do", "else", "elif", "{", "!", "if", "while", "until", "time")


def loop_parts(tokens: Sequence[Token], place: int) -> tuple[int, int] | None:
    """Where the `do` and the `done` of the loop stand that begins at a place."""
    begin, depth, starts = -1, 0, True
    for index in range(place, len(tokens)):
        token = tokens[index]
        word = token.plain
        if starts and word in LOOPS:
            depth += 1
        elif starts and word == "do" and depth == 1 and begin < 0:
            begin = index
        elif starts and word == "done":
            depth -= 1
            if not depth:
                return (begin, index) if begin > 0 else None
        starts = bool(token.mark) or (starts and word in BEFORE_A_COMMAND) or word == "do"
    return None


def body_end(tokens: Sequence[Token], place: int) -> int | None:
    """Where the brace stands that closes the one at a place."""
    depth, starts = 0, True
    for index in range(place, len(tokens)):
        word = tokens[index].plain
        if starts and word == "{":
            depth += 1
        elif starts and word == "}":
            depth -= 1
            if not depth:
                return index
        starts = bool(tokens[index].mark) or (starts and word in (*BEFORE_A_COMMAND, "}", "case"))
    return None
