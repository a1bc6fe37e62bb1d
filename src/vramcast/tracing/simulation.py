"""The dispatch mode: every operator passes here, below autograd, and is answered without data.

[mode] torch.utils._python_dispatch.TorchDispatchMode
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec, Note
from vramcast.timing.roofline import Operation
from vramcast.tracing.call import Call, Kernels, Rule, as_on_host
from vramcast.tracing.costs import num_bytes, operation_of
from vramcast.tracing.memory import META, Device, Memory, sparse_parts, storage_of
from vramcast.tracing.operators import Operator, Placement, mismatch
from vramcast.tracing.origins import Assumptions, Origins
from vramcast.tracing.rules.indexing import COORDINATES, coordinates_bytes, masks_among
from vramcast.tracing.unknowns import Unknowns
from vramcast.tracing.values import ABSORBING, DRAWN_ON_HOST, RANDOM_FACTORIES, Values, drawn

if TYPE_CHECKING:
    from vramcast.tracing.varied.calls import CallLog

_fake_mode: Final = torch._C._get_dispatch_mode
_FAKE: Final = torch._C._TorchDispatchModeKey.FAKE


MOVE: Final = "aten._to_copy"  # what `.to` calls to move a tensor
COPY: Final = "aten.copy_"
MOVES: Final = frozenset({MOVE, COPY})
TAKES_MASKS: Final = {"aten.masked_fill": 1, "aten.masked_fill_": 1, "aten.where": 0}
"""Operator -> where among its arguments a mask is [pytorch 1.2 release notes, "bool"]."""
BYTES_AS_MASK: Final = "{} takes masks of bool only now, and the script gives bytes: they are read so, as they were"
READ: Final = "aten._local_scalar_dense"  # a number comes to the host, which waits for it
MOVED_BACK: Final = "ToCopyBackward0"  # the formula of moves between devices
READS_VALUES: Final = frozenset({"aten._pack_padded_sequence"})
"""Operators that are given tensors of the host with their data."""


class Simulation(TorchDispatchMode):
    """Runs operators on tensors without data."""

    def __init__(
        self, memory: Memory, origins: Origins, *, rules: Mapping[str, Rule], plain: frozenset[str],
        assumptions: Assumptions | None = None,
    ) -> None:
        super().__init__()
        self.memory, self.origins, self.values = memory, origins, Values(memory)
        self.assumptions, self.unknowns = assumptions or Assumptions(), Unknowns(self)
        self.kernels = Kernels()
        self.placement = Placement(memory)
        self.unseen: dict[str, tuple[int, int]] = {}
        """Operators of which nobody has read what they allocate on CUDA -> calls, bytes of their outputs."""
        self.in_flight: dict[int, torch.Tensor] = {}  # key of a collective's result -> input, until someone waits
        self.reduction = ""  # of the collective under way, where Python names it: "sum"
        self.data: dict[str, int] = {}  # sizes that data have where they stand in for what is not there
        self.stood_in: list[str] = []  # data sets of the hub in whose place rows stand
        self.compiles_for = 0  # compute capability x 10 of the card that torch's compiler is at work for
        self.folder = Path()  # for files that stand in for what a run would fetch
        self.led: Callable[[Any], Any] = lambda path: path  # where a file that C opens is for this run
        self.composites: dict[str, Callable[..., Any]] = {}  # which stand in above autograd, by own name
        self.calls: CallLog | None = None  # who writes calls down
        self.suspended: Callable[[], AbstractContextManager[None]] = nullcontext  # within: none of them does
        self._rules, self._plain = rules, plain
        self._operators: dict[Any, Operator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper that keeps torch.compile out costs more than the work, and nothing is compiled here."""
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Yes: torch's compiler compiles within it, and what was compiled calls it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _fake_mode(_FAKE) is not None:  # DTensor works out a layout on PyTorch's own fake tensors
            if torch.Tag.nondeterministic_seeded in func.tags and func._schema.is_mutable:
                return args[0]  # drawn in place: its decomposition asks the card's library, and the layout stays
            return func(*args, **(kwargs or {}))
        if types and not all(map(_is_one_storage, types)):
            # A DTensor takes itself apart first; its inner tensors come here.
            return NotImplemented
        operator = self.operator_of(func)
        composite = self.composites.get(operator.own_name)
        if composite is not None and self.placement.of(operator, args, kwargs or {}) is not None:
            with self:  # reached only where autograd is left out (inference mode)
                return composite(*args, **(kwargs or {}))
        if operator.takes_apart:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if operator.is_view:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if operator.name in TAKES_MASKS:
            args = self._with_bool_mask(operator, args)
        device = self.placement.of(operator, args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        if operator.name == MOVE and args[0].layout is torch.sparse_coo:
            return self._moved_parts(args[0], kwargs)
        out = (self._run if self.calls is None else self.calls.run)(operator, args, kwargs, device)
        if device is self.memory.host and operator.name == MOVE and kwargs.get("non_blocking"):
            self._pin(args[0], out)
        return out

    def _with_bool_mask(self, operator: Operator, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Bytes that are a mask, viewed as bool: as older scripts give them and torch no longer takes them."""
        place = TAKES_MASKS[operator.name]
        mask = args[place]
        if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.uint8:
            return args
        self.assumptions.note(Note(BYTES_AS_MASK, operator.name), self.origins.place())
        return *args[:place], mask.view(torch.bool), *args[place + 1:]

    def log_calls(self) -> None:
        """Write down every call on a card's tape from now on."""
        from vramcast.tracing.varied.calls import CallLog

        self.calls = CallLog(self)

    def operator_of(self, func: Any) -> Operator:
        """What is known of an operator's overload."""
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = Operator(func, self._rules, self._plain)
        return operator

    def _pin(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        """A copy from a card that nobody waits for goes to pinned memory [pytorch aten/src/ATen/native/
        TensorConversions.cpp, _to_copy_out: pin_out]."""
        resident = self.memory.of(original)
        if resident is not None and resident.device is not self.memory.host and copy.layout is torch.strided:
            self.memory.pinned.hold(storage_of(copy))

    def adopt(self, out: Any, device: Device, name: str) -> None:
        """Give every new tensor among the outputs a place, in the order returned."""
        if isinstance(out, torch.Tensor):
            self.memory.adopt(out, device, name)
        elif isinstance(out, (tuple, list)):
            for part in out:
                self.adopt(part, device, name)

    def moved(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """A copy on another device, of which nobody knows the values."""
        with self.placement.meta_wanted():
            copy = torch.empty_like(tensor, device=META)
        self.adopt(copy, device, MOVE)
        return copy

    def _moved_parts(self, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """A sparse tensor moves as its indices and values; its meta kernel would forget how many there are."""
        asked = {name: kwargs[name] for name in ("device", "non_blocking") if kwargs.get(name) is not None}
        indices, values = sparse_parts(tensor)
        with self:
            moved = torch.ops.aten._to_copy(indices, **asked), torch.ops.aten._to_copy(
                values, dtype=kwargs.get("dtype"), **asked
            )
        return torch.sparse_coo_tensor(
            *moved, tensor.size(), is_coalesced=tensor.is_coalesced(), check_invariants=False
        )

    def _run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> Any:
        """Run on meta tensors, let the rule say what CUDA allocates, keep known values known."""
        known = self._known(operator, args, kwargs, device)
        if known is None and operator.name in ABSORBING:
            known = self.values.absorbed(operator, args)
        on_card = device is not self.memory.host
        if operator.name == READ and on_card:
            device.wait()
        if known is not None and not isinstance(known, (torch.Tensor, tuple, list)):
            return known
        if known is None and operator.asks and self.unknowns.answers(operator, args):
            return self.unknowns.answer(operator, args, kwargs, device)
        if isinstance(known, torch.Tensor) and operator.mutates and self.memory.of(args[0]) is None:
            return args[0]  # real memory, which holds the values now
        if isinstance(known, torch.Tensor) and device is self.memory.host and operator.name == MOVE:
            return known  # real from now on, as small host tensors are: C++ reads states of generators
        if known is None and device is self.memory.host and _returns_to_real(operator, kwargs):
            return torch.zeros(args[0].size(), dtype=kwargs.get("dtype") or args[0].dtype)
        mapped = {**kwargs, "device": META} if operator.makes else kwargs
        source = self.memory.card_of(args[operator.name == COPY]) if operator.name in MOVES else None
        comes_from_elsewhere = operator.name == MOVE and not self._is_on(args[0], device)
        if operator.name in READS_VALUES:
            pass  # its rule does
        elif (operator.makes and operator.name == MOVE) or device is self.memory.host:
            args = self._without_data(args)
        before, ran = len(device.tape.events), len(device.tape.operations)
        if operator.depends_on_values and known is not None:
            out = self._of_known_size(operator, args, known, device)
        elif operator.rule is not None:
            call = Call(self, operator, args, mapped, device)
            out = self._by_rule(operator.rule, call)
            if not call.is_read:
                self._note_unseen(operator, device, before)
        else:
            out = self.on_meta(operator.func, args, mapped, device)
            self.adopt(out, device, self._maker(operator, args, device))
            if not operator.is_known and len(device.tape.events) > before:
                self._note_unseen(operator, device, before)
        is_transfer = operator.name in MOVES and self._note_transfer(source, out, kwargs)
        if on_card and not is_transfer and len(device.tape.operations) == ran:  # else its parts were counted one by one
            cost = operation_of(operator, args, kwargs, out, *self.origins.doing())
            if cost is not None:
                device.tape.ran(cost)
        if comes_from_elsewhere:
            self._note_input(out)
        for index, name in operator.resizes:
            self._count_resized(args[index] if index < len(args) else kwargs.get(name), operator)
        if known is not None:
            self.values.keep(known, out)
        elif operator.mutates:
            self.values.forget(operator, args, kwargs)
        elif operator.supposes:
            self.unknowns.suppose(operator, args, kwargs, out)
        return out

    def _known(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> Any:
        """The result with its values, None where they are not known."""
        if not operator.is_random or device.gpu is None:
            return self.values.of_call(operator, args, kwargs)
        numbers = drawn(operator, args, kwargs, device)
        if numbers is not None or operator.name in DRAWN_ON_HOST:
            return self.values.of_call(operator, args, kwargs) if numbers is None else numbers
        with self.values.generator_apart() if operator.name in RANDOM_FACTORIES else nullcontext():
            return self.values.of_call(operator, args, kwargs)

    def _of_known_size(self, operator: Operator, args: tuple[Any, ...], known: Any, device: Device) -> Any:
        call = Call(self, operator, args, {}, device)
        for mask in masks_among(args[1]) if operator.name == "aten.index" else ():
            values = self.values.of(mask)
            if values is not None:
                call.scratch(coordinates_bytes(mask, int(values.count_nonzero())), COORDINATES)
        out = _blanks(known)
        self.adopt(out, device, operator.name)
        call.finish()
        return out

    def _count_resized(self, written: Any, operator: Operator) -> None:
        """Storages that the operator may have made larger."""
        for tensor in written if isinstance(written, (list, tuple)) else (written,):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                self.memory.resize(tensor.untyped_storage(), operator.name)

    def _note_transfer(self, source: Device | None, out: Any, kwargs: dict[str, Any]) -> bool:
        """A copy between main memory and a card, or two cards, takes its time there; False: it is none.

        Args:
            source: card that the original lives on; None: the host
        """
        target = self.memory.card_of(out)
        if source is target:
            return False
        for card in (source, target):
            if card is not None:
                card.tape.ran(Operation("transfer", *self.origins.doing(), num_bytes=num_bytes(out)))
        if target is None and source is not None and not kwargs.get("non_blocking"):
            source.wait()
        return True

    def _is_on(self, tensor: torch.Tensor, device: Device) -> bool:
        resident = self.memory.of(tensor)
        return resident is not None and resident.device is device

    def _note_input(self, out: torch.Tensor) -> None:
        """A copy from the host or from another device: an input, unless it turns out to be a weight."""
        resident = self.memory.of(out)
        if resident is not None and resident.block is not None:
            resident.block.category = Category.INPUTS

    def _by_rule(self, rule: Rule, call: Call) -> Any:
        try:
            with self.kernels.running():  # rules ask meta kernels, too
                return rule(call)
        except RuntimeError as error:
            raise self._explained(error, call.device) from None
        finally:
            call.finish()

    def _maker(self, operator: Operator, args: tuple[Any, ...], device: Device) -> str:
        """Who made the values: of a copy to the host, who made the original."""
        if device is self.memory.host and operator.name == MOVE:
            original = self.memory.of(args[0])
            return operator.name if original is None else original.operator
        return operator.name

    def on_meta(self, func: Any, args: Any, kwargs: dict[str, Any], device: Device) -> Any:
        """The meta kernel's answer.

        Raises: RuntimeError, as torch does, where a tensor with data is among those on the device
        """
        try:
            return self.kernels(func, args, kwargs)
        except RuntimeError as error:
            raise self._explained(as_on_host(func, args, kwargs, error), device) from None

    def _explained(self, error: RuntimeError, device: Device) -> Exception:
        """What CUDA would say."""
        missing = re.search(r"Could not run '(.*?)'.*'SparseMeta'", str(error))
        if missing:
            return InvalidSpec(
                "{} of sparse tensors is not simulated; make the gradients dense, as with sparse=False", missing[1]
            )
        if "attempted to run this operator with Meta tensors" in str(error):
            return InvalidSpec(
                "{} is not simulated, as torch has no kernel of it for tensors without data; register one with "
                "torch.library.register_fake, or leave it out of what is traced", str(error).partition(": ")[0]
            )
        if "is not on the expected device meta" in str(error):
            return mismatch(device.torch_device, self.memory.host.torch_device)
        return error

    def _without_data(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, real tensors replaced by meta ones of the same layout, also in lists."""
        return tuple(map(self._blank, args))

    def _blank(self, arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return [self._blank(part) for part in arg]
        if not isinstance(arg, torch.Tensor) or arg.is_meta or self.memory.of(arg) is not None:
            return arg
        return blank(arg)

    def _note_unseen(self, operator: Operator, device: Device, before: int) -> None:
        calls, num_bytes = self.unseen.get(operator.name, (0, 0))
        made = (device.tape.blocks[event - 1] for event in device.tape.events[before:] if event > 0)
        self.unseen[operator.name] = calls + 1, num_bytes + sum(block.num_bytes for block in made)


_running: Final[list[Simulation]] = []
"""Simulations that libraries' own modules are answered by, innermost last."""


@contextmanager
def answering(simulation: Simulation) -> Iterator[None]:
    """Within: what stands in for parts of libraries finds the simulation."""
    _running.append(simulation)
    try:
        yield
    finally:
        _running.remove(simulation)


def running() -> Simulation | None:
    return _running[-1] if _running else None


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same layout."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)


def _returns_to_real(operator: Operator, kwargs: dict[str, Any]) -> bool:
    """Whether autograd moves a gradient back to a tensor of the host with data: it takes no other one."""
    if operator.name != MOVE or torch._C._current_graph_task_id() == -1 or kwargs.get("device") is None:
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == MOVED_BACK and kwargs["device"].type == "cpu"


def _blanks(known: Any) -> Any:
    return blank(known) if isinstance(known, torch.Tensor) else type(known)(_blanks(part) for part in known)


@cache
def _is_one_storage(kind: type) -> bool:
    """Whether tensors of a type have no dispatch of their own."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
