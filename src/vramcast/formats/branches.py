"""Which branches of a script run, as far as it is decided by itself, by its arguments and by a clean environment.

Where loops and functions of a script end, among its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from vramcast.formats.lexer import Token

Verdict = bool | None
"""True, false, or None where only a run knows."""

TESTS: Final = ("[", "[[", "test", "((")

MOST_OF_A_TEST: Final = 60
"""Words of a test that is followed."""

COMPARED: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}

EMPTY: Final = re.compile(r"\$\{(?:[A-Za-z_]\w*|[1-9@*])\}")
"""A variable of the environment, or an argument of the script: there is none."""

OF_ENVIRONMENT: Final = re.compile(r"\$\{[A-Za-z_]\w*\}")
"""A variable of the environment; what an argument nobody gave is compared with decides nothing."""

NO_ARGUMENTS: Final = "${#}"
"""Their number, where nobody gave any."""

OPENS: Final = ("if", "case", "for", "while", "until", "select")
CLOSES: Final = {"fi": ("if",), "esac": ("case",), "done": ("for", "while", "until", "select")}


def both(first: Verdict, second: Verdict) -> Verdict:
    """`and` of what may be unknown.

    >>> both(None, False), both(True, None), both(True, True)
    (False, None, True)
    """
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def either(first: Verdict, second: Verdict) -> Verdict:
    """`or` of what may be unknown."""
    return opposite(both(opposite(first), opposite(second)))


def opposite(verdict: Verdict) -> Verdict:
    """`not` of what may be unknown."""
    return None if verdict is None else not verdict


def tested(words: list[str]) -> Verdict:
    """What a command that tests something says; None for every other command.

    >>> tested(["[", "fp8", "=", "fp8", "]"]), tested(["[", "-z", "${1}", "]"]), tested(["[[", "-f", "x", "]]"])
    (True, True, None)
    >>> tested(["[[", "a", "==", "a", "&&", "2", "-gt", "1", "]]"]), tested(["[", "${1}", "=", "7B", "]"])
    (True, None)
    """
    if words in (["true"], [":"]):
        return True
    if not words or words == ["false"]:
        return False if words else None
    if words[0] == "((" and len(words) == 2:
        return None if "${" in words[1] else words[1] != "0"
    if words[0] not in TESTS:
        return None
    return _joined([word for word in words[1:] if word not in ("]", "]]")], pattern=words[0] == "[[")


def _joined(words: list[str], *, pattern: bool) -> Verdict:
    """Parts that "or" and "and" join."""
    if "(" in words or ")" in words or len(words) > MOST_OF_A_TEST:
        return None
    for names, join in ((("||", "-o"), either), (("&&", "-a"), both)):
        for place, word in enumerate(words):
            if word in names and 0 < place < len(words) - 1 and words[0] not in names:
                return join(_joined(words[:place], pattern=pattern), _joined(words[place + 1 :], pattern=pattern))
    turned = words[:1] == ["!"]
    found = _said(words[1:] if turned else words, pattern=pattern)
    return opposite(found) if turned else found


def _said(words: list[str], *, pattern: bool) -> Verdict:
    words = ["0" if word == NO_ARGUMENTS else word for word in words]
    alone = len(words) < 3 or any(word in ("", "x", "null") for word in words)
    words = [(EMPTY if alone else OF_ENVIRONMENT).sub("", word) for word in words]
    if any("${" in word for word in words):
        return None
    match words:
        case []:
            return False
        case [one]:
            return bool(one)
        case ["-z" | "-n" as kind]:
            return kind == "-z"
        case ["-z" | "-n" as kind, value]:
            return bool(value) is (kind == "-n")
        case [left, "=" | "==" | "!=" as kind, *rest]:
            right = rest[0] if rest else ""
            same = fnmatchcase(left, right) if pattern else left == right
            return same is (kind != "!=")
        case [left, kind, right] if kind in COMPARED and _whole(left) and _whole(right):
            return COMPARED[kind](int(left or 0), int(right or 0))
    return None


def matched(text: str, patterns: list[str]) -> Verdict:
    """Whether one of the patterns of a `case` is that of a text.

    >>> matched("7B", ["7B", "7b"]), matched("x", ["*"]), matched("${1}", ["7B"]), matched("${1}", ["*"])
    (True, True, None, True)
    """
    text = OF_ENVIRONMENT.sub("", text)
    if "*" in patterns:
        return True
    if "${" in text or any("${" in pattern for pattern in patterns):
        return None
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _whole(text: str) -> bool:
    return re.fullmatch(r"-?\d{0,18}", text) is not None


class Branch:
    """One `if`, `case` or loop that is open."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.runs: Verdict = False if kind in ("if", "case") else None  # the part that is read; none before `then`
        self.before: Verdict = False  # whether an earlier part runs
        self.subject = ""  # of a `case`
        self.why = ""  # what would decide it, where nobody knows
        self.on_nothing = False  # whether it is decided only as nobody gives a variable or an argument

    def next_part(self, verdict: Verdict) -> None:
        """A further part of an `if`, which runs where no earlier one did."""
        self.before = either(self.before, self.runs)
        self.runs = both(opposite(self.before), verdict)


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
