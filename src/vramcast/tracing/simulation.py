"""The dispatch mode: every operator passes here, below autograd, and is answered without data.

[mode] torch.utils._python_dispatch.TorchDispatchMode
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.tracing.assumptions import Assumptions
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.categories import Kind
from vramcast.tracing.kernels import META, Kernels
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.operators import Operator
from vramcast.tracing.origins import Origins
from vramcast.tracing.placement import Placement, mismatch
from vramcast.tracing.unknowns import Unknowns
from vramcast.tracing.values import Values

_fake_mode: Final = torch._C._get_dispatch_mode
_FAKE: Final = torch._C._TorchDispatchModeKey.FAKE


class Unseen:
    """An operator of which nobody has read what it allocates on CUDA."""

    __slots__ = ("calls", "num_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.num_bytes = 0  # of its outputs, all calls together


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
        self.unseen: dict[str, Unseen] = {}
        self.in_flight: dict[int, torch.Tensor] = {}  # key of a collective's result -> input, until someone waits
        self.reduction = ""  # of the collective under way, where Python names it: "sum"
        self.composites: dict[str, Callable[..., Any]] = {}  # what autograd's keys hold, for where they are left out
        self._rules, self._plain = rules, plain
        self._operators: dict[Any, Operator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper that keeps torch.compile out costs more than the work, and nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer one operator."""
        if _fake_mode(_FAKE) is not None:  # DTensor works out a layout on PyTorch's own fake tensors
            return func(*args, **(kwargs or {}))
        if types and not all(map(_is_one_storage, types)):
            # A DTensor takes itself apart first; its inner tensors come here.
            return NotImplemented
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = Operator(func, self._rules, self._plain)
        if operator.takes_apart:
            with self:
                return self.composites.get(operator.composite, func.decompose)(*args, **(kwargs or {}))
        if operator.is_view:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        device = self.placement.of(operator, args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        return self._run(operator, args, kwargs, device)

    def adopt(self, out: Any, device: Device, name: str) -> None:
        """Give every new tensor among the outputs a place, in the order returned."""
        if isinstance(out, torch.Tensor):
            self.memory.adopt(out, device, name)
        elif isinstance(out, (tuple, list)):
            for part in out:
                self.adopt(part, device, name)

    def _run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], device: Device) -> Any:
        """Run on meta tensors, let the rule say what CUDA allocates, keep known values known."""
        known = self.values.of_call(operator, args, kwargs)
        if known is not None and not isinstance(known, (torch.Tensor, tuple, list)):
            return known
        if known is None and operator.asks and self.unknowns.answers(operator, args):
            return self.unknowns.answer(operator, args, kwargs, device)
        if isinstance(known, torch.Tensor) and operator.mutates and self.memory.of(args[0]) is None:
            return args[0]  # real memory, which holds the values now
        if isinstance(known, torch.Tensor) and device is self.memory.host and operator.name == "aten._to_copy" and (
            device not in self.memory.devices
        ):
            return known  # real from now on, as small host tensors are: C++ reads states of generators
        mapped = {**kwargs, "device": META} if operator.makes else kwargs
        comes_from_elsewhere = operator.name == "aten._to_copy" and not self._is_on(args[0], device)
        if (operator.makes and operator.name == "aten._to_copy") or device is self.memory.host:
            args = self._without_data(args)
        before = len(device.tape.events)
        if operator.depends_on_values and known is not None:
            out = _blanks(known)
            self.adopt(out, device, operator.name)
        elif operator.rule is not None:
            out = self._by_rule(operator.rule, Call(self, operator, args, mapped, device))
        else:
            out = self.on_meta(operator.func, args, mapped, device)
            self.adopt(out, device, self._maker(operator, args, device))
            if not operator.is_known and len(device.tape.events) > before:
                self._note_unseen(operator, device, before)
        if comes_from_elsewhere:
            self._note_input(out)
        if known is not None:
            self.values.keep(known, out)
        elif operator.mutates:
            self.values.forget(operator, args, kwargs)
        elif operator.supposes:
            self.unknowns.suppose(operator, args, kwargs, out)
        return out

    def _is_on(self, tensor: torch.Tensor, device: Device) -> bool:
        resident = self.memory.of(tensor)
        return resident is not None and resident.device is device

    def _note_input(self, out: torch.Tensor) -> None:
        """A copy from the host or from another device: an input, unless it turns out to be a weight."""
        resident = self.memory.of(out)
        if resident is not None and resident.block is not None:
            resident.block.kind = Kind.INPUT

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
        if device is self.memory.host and operator.name == "aten._to_copy":
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
            raise self._explained(error, device) from None

    def _explained(self, error: RuntimeError, device: Device) -> RuntimeError:
        """What CUDA would say."""
        if "is not on the expected device meta" in str(error):
            return mismatch(device.torch_device, self.memory.host.torch_device)
        return error

    def _without_data(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, real tensors replaced by meta ones of the same layout."""
        return tuple(self._blank(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)

    def _blank(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.memory.of(tensor) is not None or tensor.is_meta else blank(tensor)

    def _note_unseen(self, operator: Operator, device: Device, before: int) -> None:
        unseen = self.unseen.setdefault(operator.name, Unseen())
        unseen.calls += 1
        blocks = device.tape.blocks
        unseen.num_bytes += sum(blocks[event - 1].num_bytes for event in device.tape.events[before:] if event > 0)


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same layout."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)


def _blanks(known: Any) -> Any:
    return blank(known) if isinstance(known, torch.Tensor) else type(known)(_blanks(part) for part in known)


@cache
def _is_one_storage(kind: type) -> bool:
    """Whether tensors of a type have no dispatch of their own."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
