"""Command lines of a shell script: read, never run.

Assignments, arrays, quotes, comments, continued lines, `${NAME:-default}` and whole-number arithmetic are followed in
the order of the file; of branches those that run without arguments in a clean environment, as far as the script
decides it. What only a run would know (`$(...)`, variables of the environment, what an undecided branch sets) stays in
the words as `${NAME}`; so does `$@` inside braces, which may be a function's.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from vramcast.errors import SourceError
from vramcast.formats.branches import CLOSES, OPENS, TESTS, Branch, Verdict, both, opposite, tested
from vramcast.formats.lexer import ASSIGNED, NAME, Lexer, Piece, Token

MOST_WORDS: Final = 20_000
MOST_TEXT: Final = 1 << 22
"""Characters that all variables put in may come to."""

DEEPEST: Final = 8
"""Variables inside defaults of variables."""

ALL_OF_THEM: Final = re.compile(r"[@*](?::1)?")
"""A script's own arguments."""

UNSET: Final = re.compile(r"\$\{[^}]*\}")
"""What stays of a variable that the script does not set."""

REFERENCE: Final = re.compile(r"(\w{1,81})(?:\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
ARGUMENT: Final = re.compile(r"(?:^|\s)--[A-Za-z]")
DECLARES: Final = ("export", "local", "declare", "readonly", "typeset")
STARTS: Final = ("do", "{", "}", "time", "-x", "-a", "-r", "-g", "!", "function")
"""Words behind which a command begins."""

SUMS: Final[dict[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}


class Script(NamedTuple):
    """What a script would run."""

    commands: tuple[tuple[str, ...], ...]
    unused: dict[str, tuple[str, ...]]  # variables with arguments that no command uses
    notes: tuple[str, ...]
    variables: dict[str, str] = {}  # at its end
    undecided: frozenset[str] = frozenset()  # arguments that stand in a branch nobody here can decide


def read_script(text: str, name: str) -> Script:
    """The commands of a script with its variables put in.

    Args:
        text: the script
        name: of the file, for sentences

    Raises: SourceError for quotes that do not end and for scripts that grow without bound

    >>> read_script('TP=2\\nARGS="\\n --tp $TP \\\\\\n --bf16"\\nrun $ARGS "$@"', "x.sh").commands
    (('run', '--tp', '2', '--bf16'),)
    """
    lexer = Lexer(text, name)
    interpreter = Interpreter(name)
    interpreter.run(lexer.tokens())
    return interpreter.script(lexer.skipped)


class Interpreter:
    """Variables as the script sets them, and the commands with them put in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, list[str]] = {}
        self.used: set[str] = set()
        self.again: set[str] = set()  # variables with several values, one after the other
        self.open: set[str] = set()  # variables whose value hangs on a branch that is not decided
        self.undecided: set[str] = set()
        self.commands: list[list[str]] = []
        self.size = 0
        self.branches: list[Branch] = []
        self.asking = False  # between `if` and `then`
        self.said: Verdict = None  # of the command before
        self.joint = ""  # what stands between it and this one
        self.braces = 0  # that are open: of functions, or of commands held together
        self.own: list[str] | None = []  # the script's own arguments: none, or those that it sets

    def run(self, tokens: Iterator[Token]) -> None:
        """Assignments and commands in order."""
        command: list[str] = []
        for token in tokens:
            if token.mark:
                self._finish(command, token.mark)
                command = []
            elif not command and (self._controls(token.plain) or self._assigns(token)):
                continue
            elif not command and token.plain in ("{", "}"):
                self.braces = max(0, self.braces + (1 if token.plain == "{" else -1))
            else:
                words = self._expanded(token)
                command += [] if not command and words and words[0] in (*STARTS, *DECLARES) else words
            if len(command) > MOST_WORDS:
                raise SourceError(f"{self.name}: a command of more than {MOST_WORDS} words")
        self._finish(command, "\n")

    def _controls(self, word: str) -> bool:
        """Whether a word opens, parts or closes a branch; it is followed."""
        top = self.branches[-1] if self.branches else None
        if word in OPENS and len(self.branches) < 64:
            self.branches.append(Branch(word))
            self.asking = word in ("if", "while", "until")
        elif word == "elif" and top is not None:
            self.asking = True
        elif word == "then" and top is not None:
            top.next_part(self.said)
            self.asking = False
        elif word == "else" and top is not None:
            top.next_part(True)
        elif word in CLOSES and top is not None and top.kind in CLOSES[word]:
            self.branches.pop()
        elif word == "do" and top is not None:
            self.asking = False
        else:
            return False
        self.joint = ""
        return True

    def _runs(self) -> Verdict:
        """Whether what is being read runs."""
        found: Verdict = True
        for branch in self.branches:
            found = both(found, branch.runs)
        if self.joint == "&&":
            return both(found, self.said)
        return both(found, opposite(self.said)) if self.joint == "||" else found

    def _finish(self, command: list[str], mark: str) -> None:
        """A command that runs is kept; one that tests something is what the next ones hang on."""
        words = [part for word in command for part in _parts(word)]
        pattern = mark == ")" and bool(self.branches) and self.branches[-1].kind == "case"
        if words and not pattern:
            verdict = self._verdict(words)
            runs = not self.asking and words[0] not in TESTS and self._runs() is not False
            if words[:2] == ["set", "--"] and runs:
                self.own = words[2:] if self._runs() else None
            elif verdict is None and runs:
                self._keep(words)
            self.said = verdict
        self.joint = mark if mark in ("&&", "||") else ""

    def _verdict(self, words: list[str]) -> Verdict:
        """What a command says, with what it is joined to."""
        own = tested(words)
        if self.joint == "&&":
            return both(self.said, own)
        return opposite(both(opposite(self.said), opposite(own))) if self.joint == "||" else own

    def _keep(self, words: list[str]) -> None:
        """A line that begins with an argument goes on with the command before it."""
        if words[0].startswith("--") and self.commands:
            self.commands[-1] += words
        else:
            self.commands.append(words)

    def _assigns(self, token: Token) -> bool:
        """Whether a token sets a variable; it is set where it runs."""
        first = token.pieces[0] if token.pieces else None
        match = ASSIGNED.match(first.text) if first is not None and first.kind == "text" and not first.quoted else None
        if match is None or first is None:
            return False
        runs = self._runs()
        if runs is False or self.asking:
            return True
        name = match[1]
        if token.items is not None:
            value = [word for item in token.items for word in self._expanded(item)]
        else:
            rest = Piece("text", first.text[match.end():], False)
            value = ["".join(self._text(piece, 0) for piece in (rest, *token.pieces[1:]))]
        before = self.values.get(name)
        if runs is None and self._leaves_open(name, value, before, adds=bool(match[2])):
            return True
        if match[2]:
            joined = token.items is not None or before is None
            value = [*(before or []), *value] if joined else ["".join((before or []) + value)]
        elif before is not None and before != value and runs:
            self.again.add(name)
        self._grow(sum(map(len, value)))
        self.values[name] = value
        if runs and not match[2]:
            self.open.discard(name)
        return True

    def _leaves_open(self, name: str, value: list[str], before: list[str] | None, *, adds: bool) -> bool:
        """A value that a branch may give: arguments are marked, others leave the variable open; True: it is dropped."""
        if any(map(ARGUMENT.search, value)) and (adds or before is None):
            self.undecided |= {word.partition("=")[0] for text in value for word in text.split() if word[:2] == "--"}
        elif any(map(UNSET.search, value)):
            return True  # what is given on the command line: without it the script's own value stays
        elif adds or before != value:
            self.open.add(name)
        return False

    def _grow(self, size: int) -> None:
        self.size += size
        if self.size > MOST_TEXT:
            raise SourceError(f"{self.name}: its variables come to more than {MOST_TEXT} characters")

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

    def _several(self, piece: Piece) -> list[str] | None:
        """The words of an array, or of a text that no quotes hold together; None for others."""
        match = REFERENCE.fullmatch(piece.text)
        if not self.braces and self.own is not None and ALL_OF_THEM.fullmatch(piece.text):
            return list(self.own)
        if match is None or match[1] not in self.values or match[1] in self.open:
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
        name, default = match[1], match[3]
        if name in self.open:
            self.used.add(name)
            return f"${{{name}}}"
        if name in self.values and (default is None or any(self.values[name])):
            self.used.add(name)
            found = " ".join(self.values[name])
        elif default is None:
            return f"${{{name}}}"
        else:
            inner = Lexer(default, self.name)
            inner_pieces = (part for token in inner.tokens() for part in (*token.pieces, Piece("text", " ", True)))
            found = "".join(self._text(part, depth + 1) for part in inner_pieces).strip()
            if match[2].endswith("="):
                self.values[name] = [found]
        self._grow(len(found))
        return found

    def _sum(self, text: str) -> str:
        """Whole-number arithmetic of variables that are set."""
        open_ = self.open
        plain = NAME.sub(
            lambda match: " ".join([match[0]] if match[0] in open_ else self.values.get(match[0], [match[0]])),
            text[:200].replace("$", ""),
        )
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
        again = sorted(self.again & self.used)
        notes += [f"{name} is set several times; read in the order of the file" for name in again]
        values = {name: " ".join(value) for name, value in self.values.items() if name not in self.open}
        return Script(tuple(map(tuple, self.commands)), unused, tuple(notes), values, frozenset(self.undecided))


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
