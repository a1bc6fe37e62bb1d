"""Operator calls written down as data, so that each can be asked again for other sizes.

A call is a template, which names the operator and says what its arguments are, and the numbers in it: sizes, strides,
offsets, bytes of storages, integers. Runs that differ in sizes alone have the same templates in the same order.

    ["aten::mm", "", 0, [["t", 0, "float32", 2], ["t", 1, "float32", 2]], {}, ["card", "card"]]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec
from vramcast.tracing.memory import META, Device, Memory, Resident, _Ref, storage_of
from vramcast.tracing.operators import Operator
from vramcast.tracing.tape import Block, Called, Tape

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

Ints = tuple[int, ...]

_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class CallLog:
    """Writes down the outermost calls of every card, those within a call are part of it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._is_within = False

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> Any:
        """The call's result."""
        run = self._simulation._run
        if self._is_within or device.is_cpu:
            return run(operator, args, kwargs, device)
        template, ints, floats = described(operator, args, kwargs, device, self._simulation.memory)
        tape = device.tape
        begin, self._is_within = len(tape.events), True
        try:
            return run(operator, args, kwargs, device)
        finally:
            self._is_within = False
            end = len(tape.events)
            if end > begin or operator.rule is not None:
                tape.calls.append(Called(begin, end, template, ints, floats))


def described(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device, memory: Memory
) -> tuple[str, Ints, tuple[float, ...]]:
    """Template and numbers of a call; the template of one that depends on more than that begins with "?"."""
    writer = _Writer(memory)
    schema = operator.func._schema
    parts = [
        schema.name, schema.overload_name, device.stream, [writer.of(arg) for arg in args],
        {name: writer.of(arg) for name, arg in kwargs.items()}, writer.places,
    ]
    mark = "?" if writer.is_opaque or operator.depends_on_values or operator.asks else ""
    return mark + json.dumps(parts), (*writer.ints, *writer.num_bytes), tuple(writer.floats)


class _Writer:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._storages: dict[int, int] = {}
        self.ints: list[int] = []
        self.floats: list[float] = []
        self.num_bytes: list[int] = []
        self.places: list[str] = []
        self.is_opaque = False

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            self.ints.append(value)
            return ["i"]
        if isinstance(value, float):
            self.floats.append(value)
            return ["f"]
        if isinstance(value, (list, tuple)):
            return ["l", *map(self.of, value)]
        if isinstance(value, str):
            return ["s", value]
        if isinstance(value, torch.device):
            return ["v", str(value)]
        if isinstance(value, _NAMED):
            return ["n", str(value)]
        if isinstance(value, torch.Generator):
            return None
        self.is_opaque = True
        return ["?", type(value).__name__]

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.layout is not torch.strided:
            self.is_opaque = True
            return ["?", str(tensor.layout)]
        storage = storage_of(tensor)
        place = self._storages.setdefault(storage._cdata, len(self.places))
        if place == len(self.places):
            self.places.append(self._place(tensor))
            self.num_bytes.append(storage.nbytes())
        self.ints += (*tensor.size(), *tensor.stride(), tensor.storage_offset())
        return ["t", place, str(tensor.dtype).removeprefix("torch."), tensor.dim()]

    def _place(self, tensor: torch.Tensor) -> str:
        resident = self._memory.of(tensor)
        if resident is None and tensor.is_meta:
            return "meta"
        if resident is None and not tensor.dim():
            return "real"
        if resident is None:  # on the host, as larger ones are without data
            return "host"
        return "host" if resident.device is self._memory.host else "card"


class Asked:
    """What one call does: sizes of its blocks in order, negative where one is freed, and those it leaves behind."""

    __slots__ = ("blocks", "events", "kept")

    def __init__(self, blocks: list[Block], events: tuple[int, ...], kept: list[int]) -> None:
        self.blocks, self.events, self.kept = blocks, events, kept


class Asking:
    """Makes calls again in an active simulation that has nothing else to do; within `with`, its dispatch is off."""

    def __init__(self, simulation: Simulation, device: Device) -> None:
        self._simulation, self._device = simulation, device
        self._read: dict[str, tuple[Operator, Any]] = {}
        self._begun: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Asking:
        self._stack.enter_context(_disable_current_modes())
        self._stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        self._stack.enter_context(self._simulation.kernels.running())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, template: str, ints: Ints, floats: tuple[float, ...], workspaces: frozenset[str]) -> Asked:
        """The blocks of a call, as if it were made with these numbers.

        Args:
            workspaces: those that the call makes as the first that needs them; the others are there
        """
        is_new = template not in self._begun
        operator, parts = self._parsed(template)
        device, run = self._device, self._simulation._run
        device.stream = parts[2]
        args, kwargs = _Reader(parts, ints, floats, self._simulation.memory, device).arguments()
        if workspaces:
            device.workspaces.clear()
        elif is_new:
            self._begun.add(template)
            run(operator, args, kwargs, device)  # what a library keeps is there from now on
        tape = device.tape
        begin = len(tape.events)
        out = run(operator, args, kwargs, device)
        found = tape.events[begin:]
        del out
        return _numbered(found, tape, workspaces)

    def has_rule(self, template: str) -> bool:
        """Whether an operator may do something else for other sizes; False also for one that nobody has here."""
        try:
            return self._parsed(template)[0].rule is not None
        except AttributeError:  # of a library that only the script's process loaded
            return False

    def _parsed(self, template: str) -> tuple[Operator, Any]:
        known = self._read.get(template)
        if known is None:
            parts = json.loads(template.removeprefix("?"))
            library, _, name = parts[0].partition("::")
            func = getattr(getattr(getattr(torch.ops, library), name), parts[1] or "default")
            known = self._read[template] = self._simulation.operator_of(func), parts
        return known


def _numbered(events: list[int], tape: Tape, workspaces: frozenset[str]) -> Asked:
    """The events of one call, its blocks counted from 1; workspaces that others made are left out."""
    numbers: dict[int, int] = {}
    blocks: list[Block] = []
    found: list[int] = []
    for event in events:
        index = abs(event) - 1
        if event > 0:
            block = tape.blocks[index]
            if block.category is not Category.WORKSPACES or block.name in workspaces:
                blocks.append(block)
                numbers[index] = len(blocks)
                found.append(len(blocks))
        elif index in numbers:
            found.append(-numbers[index])
    ended = {-event for event in found if event < 0}
    return Asked(blocks, tuple(found), [number for number in range(1, len(blocks) + 1) if number not in ended])


class _Reader:
    """Arguments from a template and numbers."""

    def __init__(self, parts: Any, ints: Ints, floats: tuple[float, ...], memory: Memory, device: Device) -> None:
        self._parts, self._memory, self._device = parts, memory, device
        self._places = parts[5]
        self._ints: Iterator[int] = iter(ints)
        self._floats = iter(floats)
        self._num_bytes = ints[len(ints) - len(self._places):]
        self._storages: dict[int, torch.UntypedStorage] = {}

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = tuple(map(self._of, self._parts[3]))
        return args, {name: self._of(value) for name, value in self._parts[4].items()}

    def _of(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        match value[0]:
            case "t":
                return self._tensor(value[1], getattr(torch, value[2]), value[3])
            case "i":
                return next(self._ints)
            case "f":
                return next(self._floats)
            case "l":
                return [self._of(part) for part in value[1:]]
            case "s":
                return value[1]
            case "v":
                return torch.device(value[1])
            case "n":
                return getattr(torch, value[1].removeprefix("torch."))
        raise InvalidSpec("an argument of {} is not read", self._parts[0])

    def _tensor(self, place: int, dtype: torch.dtype, dims: int) -> torch.Tensor:
        size = [next(self._ints) for _ in range(dims)]
        stride = [next(self._ints) for _ in range(dims)]
        offset = next(self._ints)
        where = self._places[place]
        if where == "real":
            return torch.zeros(size, dtype=dtype)
        storage = self._storages.get(place)
        if storage is None:
            storage = torch.empty(self._num_bytes[place], dtype=torch.uint8, device=META).untyped_storage()
            self._storages[place] = storage
            if where != "meta":
                self._settle(storage, self._device if where == "card" else self._memory.host)
        return torch.empty(0, dtype=dtype, device=META).set_(storage, offset, size, stride)

    def _settle(self, storage: torch.UntypedStorage, device: Device) -> None:
        """It lives there without a block of its own: what holds arguments is no part of the call."""
        ref = _Ref(storage, self._memory._died)
        ref.key = storage._cdata
        self._memory.residents[ref.key] = Resident(device, None, ref, "")
