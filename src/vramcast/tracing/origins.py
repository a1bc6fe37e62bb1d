"""Who asks for memory: the module, the line of Python, the phase; in backward also where its forward was.

What a run assumed because tensors have no data: which value, where, how often. Whoever knows better gives the value:
`train.py:33=0.25`.
What LBFGS keeps depends on values, so the most that it may keep is assumed: each iteration adds a direction and a
step, as long as the curvature is positive, up to `history_size` of each.
[lbfgs] pytorch torch/optim/lbfgs.py `LBFGS.step`
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from msgspec import Struct
from torch.optim import lbfgs
from torch.utils.weak import WeakIdKeyDictionary

from vramcast.domain.program import Category
from vramcast.domain.snapshot import Frame
from vramcast.errors import Note
from vramcast.question.tracing import Value
from vramcast.tracing.memory import Memory, sparse_parts
from vramcast.tracing.tape import UNTOLD, Origin, Phase


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


FULL: Final = "LBFGS: curvatures are positive, the history is full (2 x history_size gradients) from the second step on"
_FILE: Final = lbfgs.__file__
_CONDITION: Final = "if ys > "


def is_curvature() -> bool:
    """Whether what is read now is LBFGS' question whether the curvature is positive."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return frame is not None and linecache.getline(_FILE, frame.f_lineno).strip().startswith(_CONDITION)


def fill_history(optimizer: torch.optim.LBFGS) -> bool:
    """Add what later iterations would; whether there was room."""
    parameters = optimizer.param_groups[0]["params"]
    state: dict[str, Any] = optimizer.state.get(parameters[0], {})
    gradient, directions = state.get("prev_flat_grad"), state.get("old_dirs")
    if gradient is None or directions is None:
        return False
    missing = optimizer.param_groups[0]["history_size"] - len(directions)
    for _ in range(missing):
        directions.insert(0, torch.empty_like(gradient))
        state["old_stps"].insert(0, torch.empty_like(gradient))
        state["ro"].insert(0, gradient.new_empty(()))
    return missing > 0


class Holders:
    """Notes during the run, for blocks of all devices, what each is."""

    def __init__(self, memory: Memory, origins: Origins, assumptions: Assumptions) -> None:
        self._memory, self._origins, self._assumptions = memory, origins, assumptions
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter -> its name
        self._numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._count = count(1)

    def is_on_device(self, module: torch.nn.Module, inputs: Any = ()) -> bool:
        """Whether a module works on what is simulated: transforms of data on the host do not."""
        devices = self._memory.devices
        tensors = (each for each in inputs if isinstance(each, torch.Tensor))
        held = chain(tensors, module.parameters(), module.buffers())
        residents = (self._memory.of(local_part(each)) for each in held)
        return any(resident is not None and resident.device in devices for resident in residents)

    def enter_root(self, module: torch.nn.Module, inputs: Any = ()) -> None:
        """A forward begins: a hook. Only the outermost module is looked at."""
        if self._origins.modules or not self.is_on_device(module, inputs):
            return
        self._origins.has_run_forward = True
        for name, parameter in module.named_parameters():
            self._names[parameter] = name
            self._note(parameter, Category.WEIGHTS, name)
        for name, buffer in module.named_buffers():
            self._note(buffer, Category.WEIGHTS, name)

    def after_backward(self) -> None:
        """A backward ended: what parameters hold as gradients now are gradients, also where no optimizer follows."""
        self._note_gradients(list(self._names))

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """An optimizer's step begins: a hook. Now every gradient is there, or a closure is about to make them.

        Returns: the arguments, where a closure is among them: what it runs is no work of the optimizer
        """
        self._note_gradients(_parameters(optimizer))
        self._origins.in_optimizer = True
        closure = kwargs.get("closure") or next((arg for arg in args[1:] if callable(arg)), None)
        if closure is None:
            return None

        def outside() -> Any:
            self._origins.in_optimizer = False
            try:
                return closure()
            finally:
                self._note_gradients(_parameters(optimizer))
                self._origins.in_optimizer = True

        return tuple(outside if arg is closure else arg for arg in args), {
            name: outside if value is closure else value for name, value in kwargs.items()
        }

    def _note_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            name = self._names.get(parameter, "")
            self._note(parameter, Category.WEIGHTS, name)
            if parameter.is_leaf and parameter.grad is not None:  # of others torch warns
                self._note(parameter.grad, Category.GRADIENTS, name)

    def after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if isinstance(optimizer, torch.optim.LBFGS) and fill_history(optimizer):
            self._assumptions.note(FULL)
        self._origins.in_optimizer = False
        for parameter, states in optimizer.state.items():
            if isinstance(states, dict):
                for key, state in states.items():
                    for part in state if isinstance(state, list) else (state,):
                        self._note(part, Category.OPTIMIZER, f"{self._names.get(parameter, '')}.{key}".lstrip("."))
        if optimizer not in self._numbers:
            self._numbers[optimizer] = next(self._count)
        self._memory.mark_step(self._numbers[optimizer])
        for device in self._memory.devices:
            device.reach()  # the host is never a whole step ahead

    def _note(self, tensor: Any, category: Category, name: str) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        local = local_part(tensor)
        if local.is_sparse:
            for part in sparse_parts(local):
                self._note(part, category, name)
            return
        resident = self._memory.of(local)
        if resident is None or resident.block is None:
            return
        block = resident.block
        is_view_of_bucket = block.category is Category.COMMUNICATION and category is Category.GRADIENTS
        if block.category in UNTOLD or is_view_of_bucket:
            block.category, block.name = category, name


def local_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor."""
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
