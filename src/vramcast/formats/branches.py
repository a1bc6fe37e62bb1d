"""Which branches of a script run, as far as the script itself decides it: without arguments, in a clean environment."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

Verdict = bool | None
"""True, false, or None where only a run knows."""

TESTS: Final = ("[", "[[", "test")

COMPARED: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}

EMPTY: Final = re.compile(r"\$\{(?:[A-Za-z_]\w*|[1-9@*])\}")
"""A variable of the environment, or an argument of the script: there is none."""

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
    """
    if words in (["true"], [":"]):
        return True
    if not words or words == ["false"]:
        return False if words else None
    if words[0] not in TESTS:
        return None
    pattern = words[0] == "[["
    inner = [EMPTY.sub("", word) for word in words[1:] if word not in ("]", "]]")]
    turned = inner[:1] == ["!"]
    found = _said(inner[1:] if turned else inner, pattern=pattern)
    return opposite(found) if turned else found


def _said(words: list[str], *, pattern: bool) -> Verdict:
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


def _whole(text: str) -> bool:
    return re.fullmatch(r"-?\d{0,18}", text) is not None


class Branch:
    """One `if`, `case` or loop that is open."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.runs: Verdict = False if kind == "if" else None  # the part that is being read; none before `then`
        self.before: Verdict = False  # whether an earlier part runs

    def next_part(self, verdict: Verdict) -> None:
        """A further part of an `if`, which runs where no earlier one did."""
        self.before = either(self.before, self.runs)
        self.runs = both(opposite(self.before), verdict)
