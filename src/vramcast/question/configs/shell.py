"""Command lines of a shell script: read, never run.

Assignments, arrays, quotes, comments, continued lines, `${NAME:-default}` and whole-number arithmetic are followed in
the order of the file; branches and loops are passed through once. What only a run would know (`$@`, `$(...)`, variables
of the environment) stays in the words as `${NAME}`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from vramcast.errors import SourceError

MOST_WORDS: Final = 20_000
MOST_TEXT: Final = 1 << 22
"""Characters that all variables put in may come to."""

DEEPEST: Final = 8
"""Variables inside defaults of variables."""

UNSET: Final = re.compile(r"\$\{[^}]*\}")
"""What stays of a variable that the script does not set."""

NAME: Final = re.compile(r"[A-Za-z_]\w{0,80}")
ASSIGNED: Final = re.compile(r"([A-Za-z_]\w{0,80})(\+?)=")
REFERENCE: Final = re.compile(r"([A-Za-z_]\w{0,80})(?:\[[@*]\])?(?::?[-=](.*))?", re.DOTALL)
HERE: Final = re.compile(r"<<-?[ \t]*([\"']?)(\w{1,80})\1")
ARGUMENT: Final = re.compile(r"(?:^|\s)--[A-Za-z]")
BREAKS: Final = "\n;&|()"
DECLARES: Final = ("export", "local", "declare", "readonly", "typeset")
STARTS: Final = ("then", "do", "else", "elif", "if", "{", "time", "-x", "-a", "-r", "-g")
"""Words behind which a command begins."""

SUMS: Final[dict[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}


class Piece(NamedTuple):
    """Part of a word."""

    kind: str  # text, variable, sum, unknown
    text: str
    quoted: bool


class Token(NamedTuple):
    """A word, an array or what ends a command."""

    pieces: tuple[Piece, ...] = ()
    items: tuple[Token, ...] | None = None  # of `NAME=( ... )`
    ends: bool = False


class Script(NamedTuple):
    """What a script would run."""

    commands: tuple[tuple[str, ...], ...]
    unused: dict[str, tuple[str, ...]]  # variables with arguments that no command uses
    notes: tuple[str, ...]


def read_script(text: str, name: str) -> Script:
    """The commands of a script with its variables put in.

    Args:
        text: the script
        name: of the file, for sentences

    Raises: SourceError for quotes that do not end and for scripts that grow without bound

    >>> read_script('TP=2\\nARGS="\\n --tp $TP \\\\\\n --bf16"\\nrun $ARGS "$@"', "x.sh").commands
    (('run', '--tp', '2', '--bf16', '${@}'),)
    """
    lexer = Lexer(text, name)
    interpreter = Interpreter(name)
    interpreter.run(lexer.tokens())
    return interpreter.script(lexer.skipped)


class Lexer:
    """Words with their quotes."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name, self.place = text.replace("\r\n", "\n"), name, 0
        self.skipped: list[str] = []
        self.waiting: list[str] = []  # here-documents that begin on the next line
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
            elif char in "<>":
                self._redirection()
            elif char in BREAKS:
                self.place += 1
                yield Token(ends=True)
                if char == "\n":
                    self._here_documents()
            else:
                yield self._word()

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.place)
        self.place = len(self.text) if end < 0 else end

    def _redirection(self) -> None:
        """A file that is read or written is no word of the command."""
        here = HERE.match(self.text, self.place)
        if here is not None and not self.text.startswith("<<<", self.place):
            self.place = here.end()
            self.waiting.append(here[2])
            return
        while self.place < len(self.text) and self.text[self.place] in "<>&| \t":
            self.place += 1
        if self.place < len(self.text) and self.text[self.place] not in BREAKS:
            self._word()

    def _here_documents(self) -> None:
        for word in self.waiting:
            end = re.compile(rf"^[ \t]*{word}[ \t]*$", re.MULTILINE).search(self.text, self.place)
            self.place = len(self.text) if end is None else end.end()
            self.skipped.append(f"the text between << {word} and {word}")
        self.waiting.clear()

    def _word(self) -> Token:
        pieces: list[Piece] = []
        while self.place < len(self.text) and self.text[self.place] not in " \t<>" + BREAKS:
            char = self.text[self.place]
            if char == "'":
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
        return Token() if redirected else Token(tuple(pieces))

    def _array(self) -> tuple[Token, ...]:
        self.place += 1
        self.in_array = True
        items = tuple(token for token in self.tokens(")") if not token.ends)
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
            raise SourceError(f"{self.name}: no closing quotation for {closing}; check the quotes")
        self.place = end + 1
        return self.text[start:end]

    def _double_quoted(self) -> Iterator[Piece]:
        yield Piece("text", "", True)  # "" is a word as well
        while True:
            if self.place >= len(self.text):
                raise SourceError(f"{self.name}: no closing quotation for \"; check the quotes")
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
            return Piece("unknown", f"({self._nested('(', ')')[:40]})", quoted)
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
            raise SourceError(f"{self.name}: ${opening} without {closing}; check the brackets and quotes")
        self.place = place
        return self.text[start : place - len(closing)]


class Interpreter:
    """Variables as the script sets them, and the commands with them put in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, list[str]] = {}
        self.used: set[str] = set()
        self.again: dict[str, str] = {}  # variables with several values -> the last
        self.commands: list[list[str]] = []
        self.size = 0

    def run(self, tokens: Iterator[Token]) -> None:
        """Assignments and commands in order."""
        command: list[str] = []
        for token in tokens:
            if token.ends:
                self._finish(command)
                command = []
            elif not command and self._assigns(token):
                continue
            else:
                words = self._expanded(token)
                command += [] if not command and words and words[0] in (*STARTS, *DECLARES) else words
            if len(command) > MOST_WORDS:
                raise SourceError(f"{self.name}: a command of more than {MOST_WORDS} words")
        self._finish(command)

    def _finish(self, command: list[str]) -> None:
        """A line that begins with an argument goes on with the command before it."""
        words = [part for word in command for part in _parts(word)]
        if words and words[0].startswith("--") and self.commands:
            self.commands[-1] += words
        elif words:
            self.commands.append(words)

    def _assigns(self, token: Token) -> bool:
        """Whether a token sets a variable; it is set."""
        first = token.pieces[0] if token.pieces else None
        match = ASSIGNED.match(first.text) if first is not None and first.kind == "text" and not first.quoted else None
        if match is None or first is None:
            return False
        name = match[1]
        if token.items is not None:
            value = [word for item in token.items for word in self._expanded(item)]
        else:
            rest = Piece("text", first.text[match.end():], False)
            value = ["".join(self._text(piece, 0) for piece in (rest, *token.pieces[1:]))]
        before = self.values.get(name)
        if match[2]:
            joined = token.items is not None or before is None
            value = [*(before or []), *value] if joined else ["".join((before or []) + value)]
        elif before is not None and before != value:
            self.again[name] = " ".join(value)
        self._grow(sum(map(len, value)))
        self.values[name] = value
        return True

    def _grow(self, size: int) -> None:
        self.size += size
        if self.size > MOST_TEXT:
            raise SourceError(f"{self.name}: its variables come to more than {MOST_TEXT} characters")

    def _expanded(self, token: Token) -> list[str]:
        """A word as one or, by what is put in, several words."""
        words, joins = [""], False
        there = False
        for piece in token.pieces:
            if piece.kind == "variable" and (found := self._several(piece)) is not None:
                if found:
                    words[-1] += found[0]
                    words += found[1:]
                there, joins = there or bool(found), True
                continue
            words[-1] += self._text(piece, 0)
            there = True
        return [word for word in words if word or not joins] if there else []

    def _several(self, piece: Piece) -> list[str] | None:
        """The words of an array, or of a text that no quotes hold together; None for others."""
        match = REFERENCE.fullmatch(piece.text)
        if match is None or match[1] not in self.values:
            return None
        value = self.values[match[1]]
        whole = "[" in piece.text
        if piece.quoted and not whole:
            return None
        self.used.add(match[1])
        self._grow(sum(map(len, value)))
        return list(value) if piece.quoted else [part for word in value for part in word.split()]

    def _text(self, piece: Piece, depth: int) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "unknown" or depth > DEEPEST:
            return f"${{{piece.text.replace('}', ')')}}}"
        if piece.kind == "sum":
            return self._sum(piece.text)
        match = REFERENCE.fullmatch(piece.text)
        if match is None:
            return f"${{{piece.text.replace('}', ')')[:80]}}}"
        name, default = match[1], match[2]
        if name in self.values and (default is None or any(self.values[name])):
            self.used.add(name)
            found = " ".join(self.values[name])
        elif default is None:
            return f"${{{name}}}"
        else:
            inner = Lexer(default, self.name)
            inner_pieces = (part for token in inner.tokens() for part in (*token.pieces, Piece("text", " ", True)))
            found = "".join(self._text(part, depth + 1) for part in inner_pieces).strip()
        self._grow(len(found))
        return found

    def _sum(self, text: str) -> str:
        """Whole-number arithmetic of variables that are set."""
        plain = NAME.sub(lambda match: " ".join(self.values.get(match[0], [match[0]])), text[:200].replace("$", ""))
        plain = plain.replace("{", "").replace("}", "")
        self.used |= set(NAME.findall(text))
        try:
            return str(_evaluated(ast.parse(plain.strip()[:400], mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
            return f"${{(({text.strip()[:60].replace('}', ')')}))}}"

    def script(self, skipped: list[str]) -> Script:
        """The commands, and what is to be said of them."""
        unused = {
            name: tuple(part for word in value for part in _parts(word))
            for name, value in self.values.items() if name not in self.used and any(map(ARGUMENT.search, value))
        }
        notes = [f"{what} is not read" for what in skipped]
        notes += [
            f"{name} is set several times; read as {value[:60]}" for name, value in self.again.items()
            if name in self.used
        ]
        return Script(tuple(map(tuple, self.commands)), unused, tuple(notes))


def _parts(word: str) -> list[str]:
    """A text that is itself a command line as its words: of `bash -c "..."`, and of variables with arguments."""
    if not (ARGUMENT.search(word) and re.search(r"\s", word)):
        return [word]
    lines = [line for line in word.splitlines() if not line.lstrip().startswith("#")]
    return [part.strip("\"'") for part in " ".join(lines).split() if part != "\\"]


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**18:
        return node.value
    if isinstance(node, ast.BinOp):
        found = SUMS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(found) < 10**18:
            return found
    raise ValueError("not whole-number arithmetic")
