"""Words of a script with their variables put in, as far as those are known.

Whole-number arithmetic of a shell, with comparisons and one choice.

What stands between `${` and `}`: a name, an element, and what is done with the value.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fnmatch import translate
from typing import Final, NamedTuple

from vramcast.errors import SourceError
from vramcast.formats.lexer import COUNTED, NAME, Lexer, Piece, Token
from vramcast.formats.paths import NOTHING_GIVEN, Invocation

MOST_STEPS: Final = 200_000
"""Words that are looked at, those of loops and functions as often as they are."""

MOST_TEXT: Final = 1 << 22
"""Characters that all variables put in may come to."""

DEEPEST: Final = 8
"""Variables inside defaults of variables, functions and scripts inside each other."""

ALL_OF_THEM: Final = re.compile(r"[@*](?::(\d{1,3}))?")
"""A script's own arguments."""

UNSET: Final = re.compile(r"\$\{[^}]*\}")
"""What stays of a variable that the script does not set."""

EXPR: Final = re.compile(r"\(?\s*expr\s+([\w\s$/{}+-]{1,200}?)\s*\)?")
"""`$(expr 16 / $N)`: whole-number arithmetic by a program."""


class Expander:
    """Variables and arguments, and words with them put in."""

    def __init__(self, name: str, given: Invocation = NOTHING_GIVEN) -> None:
        self.name = name
        self.given = given
        self.values: dict[str, list[str]] = {name: [value] for name, value in given.environment.items()}
        self.used: set[str] = set()
        self.unset: set[str] = set()  # variables of arguments that only branches set which do not run
        self.open: dict[str, str] = {}  # variables whose value hangs on a branch that is not decided -> what decides
        self.own: list[str] | None = list(given.arguments or ())  # the script's own arguments, or those that it sets
        self.own_known = given.arguments is not None
        self.without = False  # whether it hands on arguments, and nobody says which it is started with
        self.mentioned: list[str] = []  # variables of the command that is being read
        self.size = self.steps = 0

    def _step(self, count: int) -> None:
        self.steps += count
        if self.steps > MOST_STEPS:
            raise SourceError("{}: its loops and functions come to more than {} words", self.name, MOST_STEPS)

    def _grow(self, size: int) -> None:
        self.size += size
        if self.size > MOST_TEXT:
            raise SourceError("{}: its variables come to more than {} characters", self.name, MOST_TEXT)

    def _expanded(self, token: Token) -> list[str]:
        """A word as one or, by what is put in, several words."""
        words, joins = [""], False
        there = False
        for piece in token.pieces:
            if piece.kind in ("variable", "unknown") and (found := self._several(piece)) is not None:
                if found:
                    words[-1] += found[0]
                    words += found[1:]
                there, joins = there or bool(found), True
                continue
            words[-1] += self._text(piece, 0)
            there = True
        return [word for word in words if word or not joins] if there else []

    def _value(self, name: str) -> list[str] | None:
        """What a variable or an argument has; None where nobody knows it."""
        if name == "#":
            return [str(len(self.own))] if self.own is not None and self.own_known else None
        if name in ("@", "*"):
            return None if self.own is None else list(self.own)
        if not name.isdecimal():
            return self.values.get(name)
        place = int(name)
        if place == 0 or self.own is None:
            return [self.name] if place == 0 else None
        return self.own[place - 1 : place] or ([""] if self.own_known else None)

    def _several(self, piece: Piece) -> list[str] | None:
        """The words of an array, or of a text that no quotes hold together; None for others."""
        found = reference(piece.text)
        if found is None or found.length or found.indirect or found.name in self.open:
            return None
        if found.name in ("@", "*"):
            part = ALL_OF_THEM.fullmatch(piece.text)
            self.without = self.without or (self.own == [] and not self.own_known)
            return None if self.own is None or part is None else self.own[max(0, int(part[1] or 1) - 1):]
        value = self._value(found.name)
        if value is None and found.name in self.unset and not found.rest:
            return None if piece.quoted else []
        default = DEFAULT.fullmatch(found.rest)
        usual = not found.rest or (default is not None and default[1][-1] in "-=?" and bool(value) and any(value or ()))
        whole = found.element in ("@", "*")
        if value is None or not usual or (found.element is not None and not whole) or (piece.quoted and not whole):
            return None
        self.mentioned.append(found.name)
        self.used.add(found.name)
        self._grow(sum(map(len, value)))
        return list(value) if piece.quoted else [part for word in value for part in word.split()]

    def _text(self, piece: Piece, depth: int) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "unknown" and (computed := EXPR.fullmatch(piece.text)) is not None:
            return self._sum(computed[1])
        if piece.kind == "sum":
            return self._sum(piece.text)
        if piece.text == COUNTED and COUNTED in self.given.environment:
            return self.given.environment[COUNTED]
        found = reference(piece.text) if depth <= DEEPEST else None
        if found is None:
            return f"${{{'_'.join(re.sub('[{}]', '', piece.text).split())[:80]}}}"
        text = self._referred(found, depth)
        self._grow(len(text))
        return text

    def _referred(self, found: Reference, depth: int) -> str:
        """The text of one variable with what is done with it; `${NAME}` where nobody knows it."""
        name, unknown = found.name, f"${{{found.name}}}"
        self.mentioned.append(name)
        self.used.add(name)
        if name in self.open:
            return unknown
        value = self._value(name)
        if found.indirect:
            value = self._value(value[0]) if value and NAME.fullmatch(value[0]) else None
        if found.length:
            if value is None:
                return unknown
            return str(len(value) if found.element or name in "@*" else len(" ".join(value)))
        if found.element not in (None, "@", "*"):
            place = found.element or ""
            inner = "" if value is None or not place.isdecimal() else "".join(value[int(place) : int(place) + 1])
            return inner if value is not None and place.isdecimal() and not found.rest else unknown
        default = DEFAULT.fullmatch(found.rest)
        if default is not None:
            return self._defaulted(found, value, default[1], default[2], depth)
        if value is None:
            return "" if name in self.unset and not found.rest else unknown
        text = " ".join(value)
        if not found.rest:
            return text
        self._step(10)
        cut = None if "${" in text else changed(text, found.rest)
        return unknown if cut is None else cut

    def _defaulted(self, found: Reference, value: list[str] | None, kind: str, text: str, depth: int) -> str:
        """A value, or what stands for one that is not there."""
        there = value is not None and (kind[0] != ":" or any(value))
        if kind[-1] == "+":
            return self._inner(text, depth) if there else ""
        if there:
            return " ".join(value or ())
        if kind[-1] == "?":
            return f"${{{found.name}}}"
        inner = self._inner(text, depth)
        if kind[-1] == "=" and not found.name.isdecimal():
            self.values[found.name] = [inner]
        return inner

    def _inner(self, text: str, depth: int) -> str:
        """A text inside braces with its variables put in."""
        self._step(1)
        lexer = Lexer(text, self.name)
        pieces = (part for token in lexer.tokens() for part in (*token.pieces, Piece("text", " ", True)))
        return "".join(self._text(part, depth + 1) for part in pieces).strip()

    def _sum(self, text: str) -> str:
        """Whole-number arithmetic of variables that are set."""
        names = NAME.findall(text[:200])
        self.mentioned += names
        self.used |= set(names)
        plain = re.sub(r"\$\{?(\d+|#)\}?", lambda match: " ".join(self._value(match[1]) or [match[0]]), text[:200])
        plain = NAME.sub(
            lambda match: " ".join([match[0]] if match[0] in self.open else self.values.get(match[0], [match[0]])),
            plain.replace("$", ""),
        )
        plain = plain.replace("{", "").replace("}", "").replace("&&", " and ").replace("||", " or ")
        try:
            return str(calculated(plain.strip()[:400]))
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
            return f"${{(({re.sub('[{}]', '', ''.join(text.split()))[:60]}))}}"


def asked_by(name: str, root: str) -> str:
    """The option that would say what a variable has.

    >>> asked_by("SIZE", "1"), asked_by("SIZE", "MODEL"), asked_by("2", "2")
    ('--env SIZE=... or --args', '--env SIZE=...', '--args')
    """
    own = not NAME.fullmatch(name)
    of_arguments = root.isdecimal() or root in ("@", "*", "#")
    return "--args" if own else f"--env {name}=... or --args" if of_arguments else f"--env {name}=..."


CHOICE: Final = re.compile(r"([^?:]+)\?([^?:]+):([^?:]+)")
"""`condition ? one : other`."""

SUMS: Final[dict[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}


def calculated(text: str) -> int:
    """A sum, or one of two by a condition."""
    choice = CHOICE.fullmatch(text)
    if choice is not None:
        text = choice[2] if calculated(choice[1].strip()) else choice[3]
    return int(_evaluated(ast.parse(text.strip(), mode="eval").body))


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return int(SUMS[type(node.ops[0])](_evaluated(node.left), _evaluated(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        both_ = isinstance(node.op, ast.And)
        return int((all if both_ else any)(_evaluated(value) for value in node.values))
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**18:
        return node.value
    if isinstance(node, ast.BinOp):
        found = SUMS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(found) < 10**18:
            return found
    raise ValueError("not whole-number arithmetic")


REFERENCE: Final = re.compile(r"(!?)([A-Za-z_]\w{0,80}|\d{1,3}|[@*#])(?:\[([^\]]{0,80})\])?(.*)", re.DOTALL)
DEFAULT: Final = re.compile(r"(:?[-=+?])(.*)", re.DOTALL)
REPLACED: Final = re.compile(r"(//?[#%]?)([^/]{1,80})(?:/(.*))?", re.DOTALL)
SLICE: Final = re.compile(r":\s*(-?\d{1,6})(?::(-?\d{1,6}))?")
MOST_OF_A_VALUE: Final = 10_000
"""Characters of a value that is cut or replaced in."""


class Reference(NamedTuple):
    """A variable in braces."""

    name: str
    element: str | None = None  # "@", "*", a number
    rest: str = ""  # what is done with the value
    indirect: bool = False  # the value is the name of another one
    length: bool = False


def reference(text: str) -> Reference | None:
    """The parts of a reference; None for what is none.

    >>> reference("TP:-8"), reference("#A[@]")
    (Reference(name='TP', element=None, rest=':-8', indirect=False, length=False), \
Reference(name='A', element='@', rest='', indirect=False, length=True))
    """
    length = len(text) > 1 and text[0] == "#" and (text[1].isalnum() or text[1] in "_@*")
    match = REFERENCE.fullmatch(text[1:] if length else text)
    return Reference(match[2], match[3], match[4], bool(match[1]), length) if match is not None else None


def changed(value: str, rest: str) -> str | None:
    """A value cut, replaced in, or in other letters; None for what is not followed.

    >>> changed("a/b/c.sh", "##*/"), changed("c.sh", "%.sh"), changed("a-b", "//-/_"), changed("Ab", "^^")
    ('c.sh', 'c', 'a_b', 'AB')
    >>> changed("hello", ":1:3"), changed("x", "@Q")
    ('ell', None)
    """
    if len(value) > MOST_OF_A_VALUE or len(rest) > 200:
        return None
    if rest in ("^^", ",,", "^", ","):
        cut = value if len(rest) == 2 else value[:1]
        return (cut.upper() if rest[0] == "^" else cut.lower()) + value[len(cut):]
    if rest[:1] in ("#", "%"):
        return _cut(value, rest[0], rest[1:].removeprefix(rest[0]), longest=rest[1:2] == rest[0])
    if (found := SLICE.fullmatch(rest)) is not None:
        begin, size = int(found[1]), found[2]
        part = value[begin:]
        return part if size is None else part[: int(size)]
    replaced = REPLACED.fullmatch(rest)
    if replaced is None or re.search(r"[*?\[\\]", replaced[2]):
        return None
    kind, old, new = replaced[1], replaced[2], replaced[3] or ""
    if kind[-1] in "#%":
        ends = value.startswith(old) if kind[-1] == "#" else value.endswith(old)
        return (new + value[len(old):] if kind[-1] == "#" else value[: -len(old)] + new) if ends else value
    return value.replace(old, new, -1 if kind == "//" else 1)


def _cut(value: str, side: str, pattern: str, *, longest: bool) -> str:
    """A value without the shortest or longest beginning or end that a pattern fits."""
    fits = re.compile(translate(pattern)).match
    places = range(min(len(value), 1000) + 1)
    if side == "#":
        found = [place for place in places if fits(value[:place])]
        return value[(found[-1] if longest else found[0]):] if found else value
    found = [place for place in places if fits(value[len(value) - place:])]
    return value[: len(value) - (found[-1] if longest else found[0])] if found else value
