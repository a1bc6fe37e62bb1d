"""Who asks for memory: the module, the line of Python, the phase; in backward also where its forward was.

What a run assumed because tensors have no data: which value, where, how often. Whoever knows better gives the value:
`train.py:33=0.25`.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import torch
from msgspec import Struct

from vramcast.domain.snapshot import Frame
from vramcast.errors import Note
from vramcast.question.tracing import Value
from vramcast.tracing.tape import Origin, Phase


class Place(NamedTuple):
    """A line of Python."""

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"

    @property
    def source(self) -> str:
        """The line itself, with the next where it ends in a colon; "" where it cannot be read."""
        line = linecache.getline(self.filename, self.line).strip()
        return f"{line} {linecache.getline(self.filename, self.line + 1).strip()}" if line.endswith(":") else line


class Assumption(Struct, frozen=True):
    """One thing assumed at one place."""

    what: Note
    place: str  # "train.py:33", "" where it holds everywhere
    count: int
    can_be_given: bool = False  # a value of a script at this line, which --value gives


UNKNOWN: Final = Place("", 0)


class Assumptions:
    """All of one run."""

    def __init__(self, given: Mapping[str, Value] | None = None) -> None:
        """What is given: place ("train.py:33") -> the value of tensors that are read there."""
        self._given = dict(given or {})
        self._counts: dict[tuple[str, str, bool], int] = {}
        self.used: set[str] = set()  # of the places given

    def __iter__(self) -> Iterator[Assumption]:
        return (
            Assumption(what if isinstance(what, Note) else Note(what), place, count, given)
            for (what, place, given), count in self._counts.items()
        )

    def note(self, what: str, place: Place = UNKNOWN, *, can_be_given: bool = False) -> None:
        key = what, str(place) if place.line else "", can_be_given and place.line > 0
        self._counts[key] = self._counts.get(key, 0) + 1

    def given(self, place: Place) -> Value | None:
        """What the user said a tensor read there holds."""
        for key, value in self._given.items():
            name, _, line = key.rpartition(":")
            path = place.filename.replace("\\", "/")
            if line == str(place.line) and (path == name or path.endswith("/" + name)):
                self.used.add(key)
                return value
        return None


_OWN: Final = str(Path(__file__).parent)
_STANDARD: Final = sysconfig.get_path("stdlib")
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_NOT_PLACES: Final = (_OWN, str(Path(torch.__file__).parent), "<")
_COMMAND: Final = str(Path(__file__).parents[1])
"""Where a trace is asked for: what stands further out is no part of what is traced."""
_STARTS: Final = (_OWN, "<frozen ", "<string>")
DEEPEST: Final = 80  # Python frames kept of a stack, this package's own among them

RECOMPUTE: Final = "recompute"
_current_node: Final = torch._C._current_autograd_node
_next_sequence: Final = torch._C._autograd._get_sequence_nr


class Stacks:
    """Every distinct stack once. Index 0 is the empty one.

    Reading them is a good part of a run's time, so frames are looked at only when they are asked for.
    """

    def __init__(self) -> None:
        self._indices: dict[tuple[int, ...], int] = {(): 0}
        self._codes: dict[int, CodeType] = {}  # by identity, which hashes faster than code; kept, so that it lasts

    def here(self, frame: FrameType | None) -> int:
        key: list[int] = []
        append, start, depth = key.append, frame, 0
        while frame is not None and depth < DEEPEST:
            append(id(frame.f_code))
            append(frame.f_lasti)
            frame = frame.f_back
            depth += 1
        stack = tuple(key)
        index = self._indices.get(stack)
        if index is None:
            index = self._indices[stack] = len(self._indices)
            while start is not frame and start is not None:
                self._codes[id(start.f_code)] = start.f_code
                start = start.f_back
        return index

    def frames(self) -> tuple[tuple[Frame, ...], ...]:
        """All stacks, innermost frame first, without this package's own frames."""
        return tuple(
            tuple(
                _frame(code, last) for code, last in zip(map(self._codes.__getitem__, key[::2]), key[1::2], strict=True)
                if not _is_own(code)
            )
            for key in self._indices
        )


@cache
def _is_own(code: CodeType) -> bool:
    """Also torch's way of calling an operator by name, which composites use where CUDA stays in C++."""
    return code.co_filename.startswith(_OWN) or code.co_filename == torch._ops.__file__


@cache
def _is_place(filename: str) -> bool:
    """Whether lines of a file are where a script asks for something; its libraries' are."""
    if filename.startswith(_NOT_PLACES):
        return False
    return filename.startswith(_INSTALLED) or not filename.startswith(_STANDARD)


@cache
def _frame(code: CodeType, last_instruction: int) -> Frame:
    line = next((line for start, end, line in code.co_lines() if start <= last_instruction < end and line), 0)
    return Frame(code.co_qualname, code.co_filename, line or code.co_firstlineno)


def without_start(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Without the frames that started the script, which the user never wrote."""
    end = len(stack)
    while end and stack[end - 1].filename.startswith(_STARTS):
        end -= 1
    return stack[:end]


class Origins:
    """What the run is doing now."""

    def __init__(self) -> None:
        self.stacks = Stacks()
        self.modules: list[str] = []  # qualified names, outermost first
        self._root: dict[int, str] = {}
        self.in_optimizer = False
        self.has_run_forward = False
        self._forwards: dict[int, tuple[str, int]] = {}  # sequence number -> module and stack of the forward
        self._names: dict[int, dict[int, str]] = {}  # id of a root module -> id of a module in it -> its name

    def now(self) -> Origin:
        """Who asks at this moment."""
        stack = self.stacks.here(sys._getframe(1))
        node = _current_node()
        if node is not None:
            module, forward = self._forwards.get(node._sequence_nr(), ("", stack))
            if self.modules:  # recomputed within backward
                return Origin(Phase.BACKWARD, self.modules[-1], stack, stack)
            return Origin(Phase.BACKWARD, module, stack, forward)
        module = self.modules[-1] if self.modules else ""
        if self.in_optimizer:
            return Origin(Phase.OPTIMIZER, module, stack, stack)
        if torch.is_grad_enabled():
            # The node of an operator has its number before the operator runs.
            self._forwards[_next_sequence() - 1] = module, stack
        return Origin(Phase.FORWARD if self.has_run_forward else Phase.SETUP, module, stack, stack)

    def doing(self) -> tuple[str, str]:
        """The phase and the module of an operator that runs now; a phase of its own is what backward computes again."""
        node = _current_node()
        if node is not None:
            if self.modules:
                return RECOMPUTE, self.modules[-1]
            return Phase.BACKWARD.value, self._forwards.get(node._sequence_nr(), ("", 0))[0]
        module = self.modules[-1] if self.modules else ""
        if self.in_optimizer:
            return Phase.OPTIMIZER.value, module
        return (Phase.FORWARD if self.has_run_forward else Phase.SETUP).value, module

    def here(self) -> int:
        return self.stacks.here(sys._getframe(1))

    def place(self) -> Place:
        """The innermost line that is not torch's, Python's or this package's: where a script asks for something."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not _is_place(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(_COMMAND):
            return UNKNOWN
        return Place(frame.f_code.co_filename, frame.f_lineno)

    def enter(self, module: torch.nn.Module, _inputs: object = None) -> None:
        """A module's forward begins: a hook."""
        if not self.modules:
            self._root = self._named(module)
        self.modules.append(self._root.get(id(module)) or type(module).__name__)

    def leave(self, _module: torch.nn.Module, _inputs: object = None, _output: object = None) -> None:
        """A module's forward ends: a hook that is also called after an error."""
        if self.modules:
            self.modules.pop()

    def _named(self, root: torch.nn.Module) -> dict[int, str]:
        names = self._names.get(id(root))
        if names is None:
            names = {id(module): name or type(root).__name__ for name, module in root.named_modules()}
            self._names[id(root)] = names
        return names
