"""The words of a shell script, with their quotes: what stands in which kind of quotes is kept apart.

Which branches of a script run, as far as it is decided by itself, by its arguments and by a clean environment.

Where loops and functions of a script end, among its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from vramcast.errors import SourceError

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


NAME: Final = re.compile(r"[A-Za-z_]\w{0,80}")
ASSIGNED: Final = re.compile(r"([A-Za-z_]\w{0,80})(\+?)=")
HERE: Final = re.compile(r"<<(-?)[ \t]*\\?([\"']?)(\w{1,80})\2")
BREAKS: Final = "\n;&|()"
BROKEN: Final = re.compile(r"\\[ \t]+(?=#|\n|$)")
"""A backslash with blanks behind it, or a remark: it joins no line to the next, and hands on a blank."""

PLACEHOLDER: Final = re.compile(r"<(?:[^\W\d_]|\.\w)(?:[\w ./:|-]{0,60}\w)?>")
"""`<model_path>` of a documentation: a shell would take it for two files and swallow the word behind it."""

COUNTED: Final = "(nvidia-smi | wc -l)"
"""How a command is called here that counts the cards of the machine, however it does so."""

COUNTS: Final = re.compile(r"\s*nvidia-smi\b[^;&]{0,200}\|\s*wc\s+-l\s*")

PROBES: Final = re.compile(r"\s*python3? -c (['\"])import torch_npu\1[^&|;]{0,40}&& *echo \w+ *\|\| *echo (\w+)\s*")
"""A command that says one word where an NPU is, and another where there is none: none of our cards is one."""


class Piece(NamedTuple):
    """Part of a word."""

    kind: str  # text, variable, sum, unknown
    text: str
    quoted: bool


class Token(NamedTuple):
    """A word, an array or what ends a command."""

    pieces: tuple[Piece, ...] = ()
    items: tuple[Token, ...] | None = None  # of `NAME=( ... )`
    mark: str = ""  # what ends a command: a new line, ";", "&&", "||", "|", ")" ...
    into: str = ""  # ">" before the file that is written, "<" before one that is read
    here: int | None = None  # which here-document is read

    @property
    def plain(self) -> str:
        """The word where it is one text without quotes, as words of the language are; else ""."""
        first = self.pieces[0] if len(self.pieces) == 1 else None
        return first.text if first is not None and first.kind == "text" and not first.quoted else ""


class Here(NamedTuple):
    """A here-document."""

    end: str  # the word that ends it
    plain: bool  # whether nothing is put in, as its word stands in quotes
    text: str = ""


class Lexer:
    """Words with their quotes."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name, self.place = text.replace("\r\n", "\n"), name, 0
        self.here: list[Here] = []
        self.waiting: list[int] = []  # here-documents that begin on the next line
        self.in_array = False  # arrays hold no arrays

    def tokens(self, closing: str = "") -> Iterator[Token]:
        """Tokens up to a closing parenthesis, or the end."""
        while self.place < len(self.text):
            char = self.text[self.place]
            if closing and char == closing:
                self.place += 1
                return
            if char in " \t" or self.text.startswith("\\\n", self.place):
                self.place += 1 if char in " \t" else 2
            elif char == "#":
                self._to_line_end()
            elif (blank := BROKEN.match(self.text, self.place)) is not None:
                self.place = blank.end()
            elif char in "<>" and not PLACEHOLDER.match(self.text, self.place):
                yield self._redirection()
            elif not closing and self.text.startswith("((", self.place):
                yield Token((Piece("text", "((", False),))
                yield Token((Piece("sum", self._nested("((", "))"), True),))
            elif char in BREAKS:
                double = self.text.startswith(char * 2, self.place) and char in "&|;"
                self.place += 1 + double
                yield Token(mark=char * (1 + double))
                if char == "\n":
                    self._here_documents()
            else:
                yield self._word()

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.place)
        self.place = len(self.text) if end < 0 else end

    def _redirection(self) -> Token:
        """A file that is read or written is no word of the command."""
        here = HERE.match(self.text, self.place)
        if here is not None and not self.text.startswith("<<<", self.place):
            quoted = bool(here[2]) or "\\" in here[0]
            self.place = here.end()
            self.waiting.append(len(self.here))
            self.here.append(Here(here[3], quoted))
            return Token(here=len(self.here) - 1)
        start = self.place
        while self.place < len(self.text) and self.text[self.place] in "<>&| \t":
            self.place += 1
        into = ">" if ">" in self.text[start : self.place] else "<"
        if self.place < len(self.text) and self.text[self.place] not in BREAKS:
            return self._word()._replace(into=into)
        return Token(into=into)

    def _here_documents(self) -> None:
        for index in self.waiting:
            here = self.here[index]
            end = re.compile(rf"^[ \t]*{here.end}[ \t]*$", re.MULTILINE).search(self.text, self.place)
            text = self.text[self.place : len(self.text) if end is None else end.start()]
            self.place = len(self.text) if end is None else end.end()
            self.here[index] = here._replace(text=text)
        self.waiting.clear()

    def put_in(self) -> Iterator[Piece]:
        """The pieces of a here-document: variables, and everything else as it stands."""
        while self.place < len(self.text):
            char = self.text[self.place]
            if char in "$`":
                yield self._dollar(quoted=True)
            elif char == "\\":
                following = self.text[self.place + 1 : self.place + 2]
                self.place += 2
                if following != "\n":
                    yield Piece("text", following if following in "$`\\" else char + following, True)
            else:
                yield Piece("text", self._plain("$`\\"), True)

    def _word(self) -> Token:
        pieces: list[Piece] = []
        while self.place < len(self.text) and self.text[self.place] not in " \t>" + BREAKS:
            char = self.text[self.place]
            if char == "<":
                if (named := PLACEHOLDER.match(self.text, self.place)) is None:
                    break
                pieces.append(Piece("unknown", named[0], True))
                self.place = named.end()
            elif char == "'":
                pieces.append(Piece("text", self._until("'", self.place + 1), True))
            elif char == '"':
                self.place += 1
                pieces += self._double_quoted()
            elif char in "$`":
                pieces.append(self._dollar(quoted=False))
            elif char == "\\":
                if not self.text.startswith("\\\n", self.place):
                    pieces.append(Piece("text", self.text[self.place + 1 : self.place + 2], True))
                self.place += 2
            else:
                pieces.append(Piece("text", self._plain(" \t<>'\"$`\\" + BREAKS), False))
        text = "".join(piece.text for piece in pieces if piece.kind == "text" and not piece.quoted)
        if self.text.startswith("(", self.place) and ASSIGNED.fullmatch(text) and not self.in_array:
            return Token(tuple(pieces), self._array())
        redirected = len(pieces) == 1 and text.isdigit() and self.text[self.place : self.place + 1] in ("<", ">")
        return Token(into=text) if redirected else Token(tuple(pieces))

    def _array(self) -> tuple[Token, ...]:
        self.place += 1
        self.in_array = True
        items = tuple(token for token in self.tokens(")") if not (token.mark or token.into or token.here is not None))
        self.in_array = False
        return items

    def _plain(self, stops: str) -> str:
        start = self.place
        while self.place < len(self.text) and self.text[self.place] not in stops:
            self.place += 1
        return self.text[start : self.place]

    def _until(self, closing: str, start: int) -> str:
        end = self.text.find(closing, start)
        if end < 0:
            raise SourceError("{}: no closing quotation for {}; check the quotes", self.name, closing)
        self.place = end + 1
        return self.text[start:end]

    def _double_quoted(self) -> Iterator[Piece]:
        yield Piece("text", "", True)  # "" is a word as well
        while True:
            if self.place >= len(self.text):
                raise SourceError("{}: no closing quotation for \"; check the quotes", self.name)
            char = self.text[self.place]
            if char == '"':
                self.place += 1
                return
            if char in "$`":
                yield self._dollar(quoted=True)
            elif char == "\\":
                following = self.text[self.place + 1 : self.place + 2]
                self.place += 2
                if following != "\n":
                    yield Piece("text", following if following in '"$`\\' else char + following, True)
                else:
                    yield Piece("text", " ", True)
            else:
                yield Piece("text", self._plain('"$`\\'), True)

    def _dollar(self, *, quoted: bool) -> Piece:
        """A variable, a sum, or what only a shell can say."""
        if self.text[self.place] == "`":
            return Piece("unknown", f"`{self._until('`', self.place + 1)[:40]}`", quoted)
        self.place += 1
        if self.text.startswith("((", self.place):
            return Piece("sum", self._nested("((", "))"), quoted)
        if self.text.startswith("(", self.place):
            inner = self._nested("(", ")")
            if probe := PROBES.fullmatch(inner[:300]):
                return Piece("text", probe[2], quoted)
            return Piece("unknown", COUNTED if COUNTS.fullmatch(inner[:300]) else f"({inner[:40]})", quoted)
        if self.text.startswith("{", self.place):
            return Piece("variable", self._nested("{", "}"), quoted)
        found = NAME.match(self.text, self.place)
        if found is not None:
            self.place = found.end()
            return Piece("variable", found[0], quoted)
        char = self.text[self.place : self.place + 1]
        if char and (char in "@*#?!-" or char.isdigit()):
            self.place += 1
            return Piece("unknown", char, quoted)
        return Piece("text", "$", quoted)

    def _nested(self, opening: str, closing: str) -> str:
        """What lies between brackets, those inside it counted."""
        start = self.place + len(opening)
        depth, place = len(opening), start
        while place < len(self.text) and depth:
            depth += (self.text[place] == opening[0]) - (self.text[place] == closing[0])
            place += 1
        if depth:
            raise SourceError("{}: ${} without {}; check the brackets and quotes", self.name, opening, closing)
        self.place = place
        return self.text[start : place - len(closing)]
