"""Command lines of a shell script: read, never run.

Followed are assignments, arrays, quotes, continued lines, `${NAME:-default}` and its kin, whole-number arithmetic,
functions where they are called, loops over words that are known, here-documents and scripts that are given beside; of
branches those that the script decides with its arguments and variables as they are given, else without any. What only a
run would know (`$(...)`, what an undecided branch sets) stays in the words as `${NAME}`, with what would decide it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from vramcast.errors import Note, SourceError
from vramcast.formats.containers import Container, docker_run
from vramcast.formats.expanding import DEEPEST, UNSET, Expander, asked_by
from vramcast.formats.lexer import (
    ASSIGNED,
    CLOSES,
    LOOPS,
    NAME,
    OPENS,
    TESTS,
    Branch,
    Lexer,
    Piece,
    Token,
    Verdict,
    body_end,
    both,
    loop_parts,
    matched,
    opposite,
    tested,
)
from vramcast.formats.paths import NOTHING_GIVEN, Invocation

MOST_WORDS: Final = 20_000
MOST_ROUNDS: Final = 64
"""Words that a loop is followed over, and rounds of one with a condition."""

ARGUMENT: Final = re.compile(r"(?:^|\s)--[A-Za-z]")
DECLARES: Final = ("export", "local", "declare", "readonly", "typeset")
STARTS: Final = ("do", "{", "}", "time", "-x", "-a", "-r", "-g", "!", "exec", "nohup", "sudo", "env")
"""Words behind which a command begins."""

WRITES: Final = ("echo", "printf")
"""Commands that write what others start."""

KUBERNETES: Final = "kubernetes.yaml"
"""How a manifest is called that a script hands to kubectl."""

SHELLS: Final = ("bash", "sh", "zsh", "ash", "dash")

SETS_UP: Final = re.compile(r"(?:.*/)?(?:activate|\.?bashrc|\.?bash_profile|\.?profile|conda\.sh|mamba\.sh|nvm\.sh|"
                            r"set_env\.sh|setvars\.sh|modules?\.sh|bash)(?:$|\s)|/etc/.*")
"""Scripts that only find programs: of environments, shells and toolkits."""


ARGUMENT_LINE: Final = re.compile(r"--|-[A-Za-z]|[+~]{0,2}\w+(?:\.\w+)+=")
"""What no command is called: an argument, or a key of Hydra."""


class Script(NamedTuple):
    """What a script would run."""

    commands: tuple[tuple[str, ...], ...]
    unused: dict[str, tuple[str, ...]]  # variables with arguments that no command uses
    notes: tuple[str, ...]
    variables: dict[str, str] = {}  # at its end
    undecided: Mapping[str, str] = {}  # arguments and variables of a branch nobody here can decide -> what would
    files: Mapping[str, str] = {}  # written by here-documents
    sources: tuple[str, ...] = ()  # scripts that it reads and nobody gave
    loops: Mapping[str, tuple[str, ...]] = {}  # variable -> the several words that it takes
    ends: str = ""  # the command that ends it before its end
    containers: tuple[Container, ...] = ()  # that it starts
    jobs: tuple[tuple[str, ...], ...] = ()  # that it hands to PAI-DLC
    loose: tuple[str, ...] = ()  # arguments that begin a line of their own


def read_script(text: str, name: str, given: Invocation = NOTHING_GIVEN) -> Script:
    """The commands of a script with its variables put in.

    Args:
        text: the script
        name: of the file, for sentences
        given: what it is started with

    Raises: SourceError for quotes that do not end and for scripts that grow without bound

    >>> read_script('TP=2\\nARGS="\\n --tp $TP \\\\\\n --bf16"\\nrun $ARGS "$@"', "x.sh").commands
    (('run', '--tp', '2', '--bf16'),)
    >>> read_script('run --tp $1', "x.sh", Invocation(("8",))).commands
    (('run', '--tp', '8'),)
    """
    interpreter = Interpreter(name, given)
    interpreter.read(OTHERWISE.sub(_exported, text))
    interpreter.read_uncalled()
    return interpreter.script()


OTHERWISE: Final = re.compile(
    r"^[ \t]*(?:(?:\$env:|setenv[ \t]+)([a-z_]\w*)(?:[ \t]*=[ \t]*|[ \t]+)"
    r'|set[ \t]+(?:"([a-z_]\w*)=([^"\n]*)"|([a-z_]\w*)=))', re.IGNORECASE | re.MULTILINE
)
"""How PowerShell, csh and cmd.exe set a variable of the environment."""


def _exported(found: re.Match[str]) -> str:
    power, quoted, value, plain = found.groups()
    return f'export {quoted}="{value}"' if quoted else f"export {power or plain}="


class Interpreter(Expander):
    """Variables as the script sets them, and the commands with them put in."""

    def __init__(self, name: str, given: Invocation = NOTHING_GIVEN) -> None:
        super().__init__(name, given)
        self.again: set[str] = set()  # variables with several values, one after the other
        self.undecided: dict[str, str] = {}
        self.commands: list[list[str]] = []
        self.functions: dict[str, tuple[Sequence[Token], Lexer]] = {}
        self.called: set[str] = set()
        self.files: dict[str, str] = {}
        self.sources: list[str] = []
        self.loops: dict[str, tuple[str, ...]] = {}
        self.skipped: list[str] = []
        self.containers: list[Container] = []
        self.jobs: list[tuple[str, ...]] = []
        self.loose: list[str] = []
        self.depth = 0
        self.branches: list[Branch] = []
        self.asking = False  # between `if` and `then`
        self.said: Verdict = None  # of the command before
        self.why = ""  # what would decide it
        self.on_nothing = False  # whether it says so only as nobody gives a variable or argument
        self.joint = ""  # what stands between it and this one
        self.braces = 0  # that are open: of functions, or of commands held together
        self.into = ""  # the file that it writes
        self.here: str | None = None  # the here-document that it reads
        self.stopped = ""  # the command that ended what is being read: exit, return, break, continue
        self.ends = ""
        self.lexer = Lexer("", name)

    def read(self, text: str) -> None:
        """A script, or a text that is run as one."""
        if self.depth >= DEEPEST:
            return
        before, self.lexer = self.lexer, Lexer(text, self.name)
        self.depth += 1
        self.run(list(self.lexer.tokens()))
        self.depth -= 1
        self.lexer = before

    def read_uncalled(self) -> None:
        """Functions that nobody calls by their name: by a variable, or another script."""
        self.ends, self.stopped, self.own = self.ends or self.stopped, "", None
        for name in [name for name in self.functions if name not in self.called]:
            body, self.lexer = self.functions[name]
            self.braces += 1
            self.run(body)
            self.braces -= 1
            self.stopped = ""

    def run(self, tokens: Sequence[Token]) -> None:
        """Assignments and commands in order."""
        command: list[str] = []
        place, depth = 0, len(self.branches)
        while place < len(tokens) and not self.stopped:
            token = tokens[place]
            place += 1
            self._step(1)
            if command[:1] == ["[["] and command[-1] != "]]" and (token.mark or token.into):
                command += [token.mark] if token.mark.strip() else [">", *self._expanded(token)] if token.into else []
            elif token.mark == "(" and len(command) == 1 and tokens[place : place + 1] == [Token(mark=")")]:
                place = self._defines(command[0], tokens, place + 1)
                command = []
            elif token.mark:
                self._finish(command, token.mark)
                command = []
                if token.mark == ";;" and self.branches and self.branches[-1].kind == "case":
                    place = self._patterns(tokens, place)
            elif token.into or token.here is not None:
                self._redirects(token)
            elif not command and (after := self._block(token.plain, tokens, place)) is not None:
                place = after
            elif not command and (self._controls(token.plain) or self._assigns(token)):
                continue
            elif not command and token.plain in ("{", "}"):
                self.braces = max(0, self.braces + (1 if token.plain == "{" else -1))
            else:
                words = self._expanded(token)
                command += [] if not command and words and words[0] in (*STARTS, *DECLARES) else words
            if len(command) > MOST_WORDS:
                raise SourceError("{}: a command of more than {} words", self.name, MOST_WORDS)
        self._finish(command, "\n")
        del self.branches[depth:]

    def _block(self, word: str, tokens: Sequence[Token], place: int) -> int | None:
        """The place behind a loop, the beginning of a `case` or a function; None for everything else."""
        if word in LOOPS and (parts := loop_parts(tokens, place - 1)) is not None and len(self.branches) < 64:
            begin, end = parts
            self._step(end - place)
            self._loop(word, tokens[place:begin], tokens[begin + 1 : end])
            return end + 1
        if word == "case" and place + 1 < len(tokens) and tokens[place + 1].plain == "in" and len(self.branches) < 64:
            self.mentioned.clear()
            branch = Branch(word)
            branch.subject = " ".join(self._expanded(tokens[place]))
            branch.why, branch.on_nothing = self._decides(), UNSET.search(branch.subject) is not None
            self.branches.append(branch)
            self.joint = ""
            return self._patterns(tokens, place + 2)
        if word == "function" and place < len(tokens):
            after = place + 1
            while after < len(tokens) and tokens[after].mark in ("(", ")"):
                after += 1
            return self._defines(tokens[place].plain, tokens, after)
        return None

    def _patterns(self, tokens: Sequence[Token], place: int) -> int:
        """The patterns of a part of a `case`, which is the next that is read."""
        branch, patterns = self.branches[-1], []
        while place < len(tokens) and tokens[place].mark in ("\n", "("):
            place += 1
        if place >= len(tokens) or tokens[place].plain == "esac":
            return place
        while place < len(tokens) and tokens[place].mark not in (")", "\n", ";"):
            patterns += [] if tokens[place].mark else [" ".join(self._expanded(tokens[place]))]
            place += 1
        branch.next_part(matched(branch.subject, patterns))
        self.joint = ""
        return place + 1

    def _defines(self, name: str, tokens: Sequence[Token], place: int) -> int:
        """A function: its body is read where it is called."""
        while place < len(tokens) and tokens[place].mark == "\n":
            place += 1
        end = body_end(tokens, place) if place < len(tokens) and tokens[place].plain == "{" else None
        if end is None or not name:
            return place
        self._step(end - place)
        if self._runs() is not False and not self.asking:
            self.functions[name] = (tokens[place + 1 : end], self.lexer)
        return end + 1

    def _loop(self, kind: str, head: Sequence[Token], body: Sequence[Token]) -> None:
        if self._runs() is False or self.asking:
            return
        if kind != "for":
            self._rounds(kind, head, body)
            return
        name, items = head[0].plain if head else "", self._items(head)
        if items is None or not NAME.fullmatch(name):
            self._perhaps(body, "")
            return
        wanted = self.given.environment.get(name)
        if wanted in items:
            items = [wanted]
        elif len(set(items)) > 1:
            self.loops[name] = tuple(items)
        for item in items:
            self.values[name] = [item]
            self.open.pop(name, None)
            if not self._body(body):
                break

    def _items(self, head: Sequence[Token]) -> list[str] | None:
        """The words that a loop goes over; None where nobody knows them."""
        if len(head) > 1 and head[1].plain == "in":
            items = [word for token in head[2:] if not token.mark for word in self._expanded(token)]
        else:
            alone = self.own is not None and len([one for one in head if not one.mark]) == 1
            items = list(self.own or ()) if alone else ["{"]
        known = len(items) <= MOST_ROUNDS and not any("${" in word or "{" in word or "*" in word for word in items)
        return items if known else None

    def _rounds(self, kind: str, head: Sequence[Token], body: Sequence[Token]) -> None:
        """A loop with a condition, as long as it is known."""
        for _ in range(MOST_ROUNDS):
            self.asking = True
            self.run(head)
            self.asking = False
            verdict = self.said if kind == "while" else opposite(self.said)
            endless = [token.plain for token in head if not token.mark] in (["true"], [":"])
            if verdict is None or kind == "select":
                self._perhaps(body, self.why)
                return
            if verdict is False or not self._body(body) or endless:
                return

    def _body(self, body: Sequence[Token]) -> bool:
        """One round of a loop; whether there may be another."""
        self._step(len(body))
        self.joint = ""
        self.run(body)
        if self.stopped in ("break", "continue"):
            again, self.stopped = self.stopped == "continue", ""
            return again
        return not self.stopped

    def _perhaps(self, body: Sequence[Token], why: str) -> None:
        """What may run or not, or for values that nobody knows."""
        branch = Branch("for")
        branch.why = why
        self.branches.append(branch)
        self.joint = ""
        self.run(body)
        self.branches.pop()

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
            top.why = top.why or (self.why if self.said is None else "")
            top.on_nothing = self.on_nothing
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
        if command:
            words = [part for word in command for part in _parts(word)]
            verdict = self._verdict(command)
            runs = not self.asking and words[0] not in TESTS and self._runs() is not False
            why = self._decides() if verdict is None else ""
            if runs and verdict is None and not self._does(command, mark):
                self._keep(words)
            self.said, self.why = verdict, why
        elif self.here is not None and mark != "|":
            self._writes()
        self.joint = mark if mark in ("&&", "||") else ""
        if mark != "|":
            self.into, self.here = "", None
        self.mentioned.clear()

    def _does(self, words: list[str], mark: str) -> bool:
        """Whether a word is the shell's own, or a function's, and nothing else runs."""
        name = words[0]
        if name in self.functions and self.depth < DEEPEST:
            self._calls(name, words[1:])
        elif name == "set" and words[1:2] == ["--"]:
            self.own, self.own_known = (words[2:], True) if self._runs() else (None, False)
        elif name == "shift":
            count = int(words[1]) if words[1:] and words[1].isdecimal() else 1
            self.own = self.own[count:] if self.own is not None and self._runs() else None
        elif name in ("exit", "return", "break", "continue"):
            if self._runs() and not self._hangs_on_nothing():
                self.stopped = " ".join(words[:2]) if name in ("exit", "return") else name
        elif name in ("source", ".") and len(words) > 1:
            self._sources(words[1:])
        elif name == "eval" and len(words) > 1:
            self._nested(" ".join(words[1:]), None)
        elif name in ("cat", "tee") and self.here is not None:
            self.into = self.into or (words[1] if name == "tee" and len(words) > 1 else "")
            if mark != "|" or self.into:
                self._writes()
        elif name == "kubectl" and self.here is not None:
            self.into = KUBERNETES
            self._writes()
        elif "dlc" in words[:2] and "submit" in words[1:4]:
            self.jobs.append(tuple(words))
        elif (container := docker_run(words)) is not None and len(self.containers) < MOST_ROUNDS:
            self._contains(container)
        else:
            return self._starts_a_shell(words)
        return True

    def _contains(self, container: Container) -> None:
        """What runs in a container, with its environment."""
        self.containers.append(container)
        self.skipped += [f"--env-file {one[:60]}" for one in container.files]
        self.values |= {name: [value] for name, value in container.environment.items()}
        words = [part for word in container.words for part in _parts(word)]
        if words and not self._starts_a_shell(list(container.words)):
            self._keep(words)

    def _hangs_on_nothing(self) -> bool:
        """Whether a branch is taken only as nobody said what it asks for: then it is not the one that is meant."""
        return any(branch.on_nothing for branch in self.branches) or (bool(self.joint) and self.on_nothing)

    def _starts_a_shell(self, words: list[str]) -> bool:
        """`bash -c TEXT`, and scripts that are given beside: what they run is run in place of them."""
        place = next((place for place, word in enumerate(words) if word.rpartition("/")[2] in SHELLS), None)
        if place is None:
            script = self.given.scripts.get(words[0].rpartition("/")[2])
            if script is not None:
                self._nested(script, words[1:])
            return script is not None
        behind = words[place + 1 :]
        while behind and behind[0].startswith(("-", "+")) and not re.fullmatch(r"-[a-z]*c", behind[0]):
            behind = behind[2:] if behind[0] in ("-o", "+o", "--rcfile") else behind[1:]
        if len(behind) > 1 and re.fullmatch(r"-[a-z]*c", behind[0]):
            self._nested(behind[1], behind[3:])
            return True
        script = self.given.scripts.get(behind[0].rpartition("/")[2]) if behind else None
        if script is not None:
            self._nested(script, behind[1:])
        return script is not None

    def _calls(self, name: str, words: list[str]) -> None:
        """A function in the place where it is called."""
        self.called.add(name)
        body, lexer = self.functions[name]
        kept, self.lexer = self.lexer, lexer
        self._step(len(body))
        self._within(lambda: self.run(body), words)
        self.lexer = kept

    def _nested(self, text: str, words: list[str] | None) -> None:
        """A text that is run as a script, with arguments of its own."""
        self._grow(len(text))
        self._within(lambda: self.read(text), words)
        if self.stopped.startswith("exit"):
            self.stopped = ""

    def _within(self, run: Callable[[], None], words: list[str] | None) -> None:
        """Something inside that has its own arguments and its own branches."""
        own, known, joint, braces, into = self.own, self.own_known, self.joint, self.braces, (self.into, self.here)
        branch = Branch("within")
        branch.runs, branch.why = self._runs(), self._outer_why()
        if words is not None:
            self.own, self.own_known = words, True
        self.braces, self.joint, self.into, self.here = 0, "", "", None
        self.branches.append(branch)
        self.depth += 1
        run()
        self.depth -= 1
        if self.branches and self.branches[-1] is branch:
            self.branches.pop()
        if self.stopped.startswith("return"):
            self.stopped = ""
        self.own, self.own_known, self.joint, self.braces = own, known, joint, braces
        self.into, self.here = into

    def _sources(self, words: list[str]) -> None:
        """A script that is read in place of the command: one given beside, or one to ask for."""
        script = self.given.scripts.get(words[0].rpartition("/")[2])
        if script is not None:
            self._nested(script, words[1:] or None)
        elif not SETS_UP.match(words[0]) and words[0] not in self.sources:
            self.sources.append(words[0])

    def _redirects(self, token: Token) -> None:
        if token.here is not None:
            here = self.lexer.here[token.here]
            text = here.text
            if not here.plain:
                pieces = Lexer(text, self.name).put_in()
                text = "".join(self._text(piece, 0) for piece in pieces)
            self.here = text
            self.skipped.append(Note("the text between << {} and {}", here.end, here.end))
        elif token.into == ">" and token.pieces:
            self.into = " ".join(self._expanded(token)[:1])

    def _writes(self) -> None:
        """A here-document that is a file from here on."""
        name = self.into.rpartition("/")[2]
        if self._runs() is None:
            self.files.pop(name, None)  # nobody knows what stands in it
        elif self.into and self.here is not None and len(self.files) < MOST_ROUNDS:
            self._grow(len(self.here))
            self.files[name] = self.here.lstrip("\n")
            if self.skipped:
                self.skipped.pop()

    def _verdict(self, words: list[str]) -> Verdict:
        """What a command says, with what it is joined to."""
        own = tested(words)
        if own is not None:
            self.on_nothing = any(map(UNSET.search, words))
        if self.joint == "&&":
            return both(self.said, own)
        return opposite(both(opposite(self.said), opposite(own))) if self.joint == "||" else own

    def _keep(self, words: list[str]) -> None:
        """A line that begins with an argument goes on with the command before it."""
        if ARGUMENT_LINE.match(words[0]) and self.commands:
            if not self.commands[-1][0].startswith("-"):  # a file of arguments alone has no command
                self.loose.append(words[0])
            self.commands[-1] += words
        elif words[0] not in WRITES:
            self.commands.append(words)
        self._grow(sum(map(len, words)))

    def _assigns(self, token: Token) -> bool:
        """Whether a token sets a variable; it is set where it runs."""
        first = token.pieces[0] if token.pieces else None
        match = ASSIGNED.match(first.text) if first is not None and first.kind == "text" and not first.quoted else None
        if match is None or first is None:
            return False
        runs = self._runs()
        name = match[1]
        if runs is False or self.asking:
            if any(ARGUMENT.search(piece.text) for piece in token.pieces):
                self.unset.add(name)
            return True
        if token.items is not None:
            value = [word for item in token.items for word in self._expanded(item)]
        else:
            rest = Piece("text", first.text[match.end():], False)
            value = ["".join(self._text(piece, 0) for piece in (rest, *token.pieces[1:]))]
        environment = self.given.environment
        if name in environment and any(map(UNSET.search, value)):
            value = [environment[name]]
        before = self.values.get(name)
        if runs is None and self._leaves_open(name, value, before, adds=bool(match[2])):
            return True
        if match[2]:
            joined = token.items is not None or before is None
            value = [*(before or []), *value] if joined else ["".join((before or []) + value)]
        elif before and before != value and runs and environment.get(name) != before[0]:
            self.again.add(name)
        self._grow(sum(map(len, value)))
        self.values[name] = value
        if runs and not match[2]:
            self.open.pop(name, None)
        self.mentioned.clear()
        return True

    def _leaves_open(self, name: str, value: list[str], before: list[str] | None, *, adds: bool) -> bool:
        """A value that a branch may give: arguments are marked, others leave the variable open; True: it is dropped."""
        why = self._outer_why()
        if any(map(ARGUMENT.search, value)) and (adds or before is None):
            words = (word.partition("=")[0] for text in value for word in text.split() if word[:2] == "--")
            self.undecided |= dict.fromkeys(words, why)
        elif any(map(UNSET.search, value)):
            return True  # what is given on the command line: without it the script's own value stays
        elif adds or before != value:
            self.open[name] = why
        return False

    def _outer_why(self) -> str:
        """What would decide the branch that is being read."""
        return next((branch.why for branch in self.branches if branch.runs is None and branch.why), "")

    def _decides(self) -> str:
        """What would decide a command of variables that are not all known."""
        for name in self.mentioned:
            if name in self.open:
                if self.open[name]:
                    return self.open[name]
                continue
            value = self._value(name)
            unset = UNSET.search(f"${{{name}}}" if value is None else " ".join(value))
            if unset is not None:
                return Note("${} decides; give {}", name, asked_by(name, unset[0][2:-1]))
        return ""

    def script(self) -> Script:
        """The commands, and what is to be said of them."""
        unused = {
            name: tuple(part for word in value for part in _parts(word))
            for name, value in self.values.items() if name not in self.used and any(map(ARGUMENT.search, value))
        }
        notes = [Note("{} is not read", what) for what in dict.fromkeys(self.skipped)]
        if self.without:
            notes.append(Note('"$@" is taken for nothing; --args says what the script is started with'))
        again = sorted(self.again & self.used)
        notes += [Note("{} is set several times; read in the order of the file", name) for name in again]
        values = {name: " ".join(value) for name, value in self.values.items() if name not in self.open}
        undecided = self.undecided | {f"${{{name}}}": why for name, why in self.open.items()}
        return Script(
            tuple(map(tuple, self.commands)), unused, tuple(notes), values, undecided, self.files,
            tuple(self.sources), self.loops, self.ends, tuple(self.containers), tuple(self.jobs), tuple(self.loose),
        )


def _parts(word: str) -> list[str]:
    """A text that is itself a command line as its words: of `bash -c "..."`, and of variables with arguments."""
    if not (ARGUMENT.search(word) and re.search(r"\s", word)):
        return [word]
    lines = [line for line in word.splitlines() if not line.lstrip().startswith("#")]
    return [part.strip("\"'") for part in " ".join(lines).split() if part != "\\"]


