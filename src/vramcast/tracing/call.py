"""What a rule gets: one operator call on a simulated device, and ways to say what it allocates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from vramcast.tracing.memory import Device
from vramcast.tracing.tape import Block

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation


class Callee(Protocol):
    """What is called: an operator, or a function of a compiled module."""

    @property
    def func(self) -> Any:
        """The operator's overload; None for a function."""

    @property
    def name(self) -> str:
        """As it stands in ledgers."""


class Call:
    """One call of an operator whose tensors live on `device`."""

    __slots__ = ("_scratch", "args", "device", "func", "is_read", "kwargs", "name", "simulation")

    def __init__(
        self, simulation: Simulation, operator: Callee, args: Sequence[Any], kwargs: dict[str, Any], device: Device
    ) -> None:
        self.simulation, self.args, self.kwargs, self.device = simulation, args, kwargs, device
        self.func, self.name = operator.func, operator.name
        self.is_read = True  # False: its rule knows the outputs, nobody what else is allocated
        self._scratch: list[Block] = []

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The meta kernel; its new outputs become blocks, in the order returned.

        Args: instead of the call's own, where given
        """
        out = self.simulation.on_meta(self.func, args or self.args, kwargs or self.kwargs, self.device)
        self.simulation.adopt(out, self.device, self.name)
        return out

    def apart(self, key: Any) -> Any:
        """The operator's own kernel of that dispatch key; every operator within is seen alone."""
        with self.simulation, self.simulation.kernels.running(False):
            return self.func._op_dk(key, *self.args, **self.kwargs)

    def empty(
        self, size: Sequence[int], *, dtype: torch.dtype, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A new tensor on the device, contiguous unless strides are given."""
        if strides is None:
            tensor = torch.empty(size, dtype=dtype, device="meta")
        else:
            tensor = torch.empty_strided(size, strides, dtype=dtype, device="meta")
        self.simulation.memory.adopt(tensor, self.device, self.name)
        return tensor

    def scratch(self, num_bytes: int, what: str) -> Block | None:
        """Memory the operator takes now and gives back when it returns, last taken first [bytes]."""
        block = self.device.take(num_bytes, self.name, kind="scratch", name=what)
        if block is not None:
            self._scratch.append(block)
        return block

    def release(self, block: Block | None) -> None:
        """Give a scratch block back before the operator returns."""
        if block is not None:
            self._scratch.remove(block)
            self.device.give(block)

    def workspace(self, key: object, num_bytes: int, what: str) -> None:
        """Memory a library keeps from its first use on, per stream [bytes]."""
        device = self.device
        place = key, device.stream
        held = device.workspaces.get(place)
        if held is None or held.num_bytes < num_bytes:
            block = device.take(num_bytes, self.name, kind="workspace", name=what)
            if block is not None:
                device.workspaces[place] = block
                if held is not None:
                    device.give(held)

    def finish(self) -> None:
        """The operator returns."""
        while self._scratch:
            self.device.give(self._scratch.pop())


Rule = Callable[[Call], Any]
"""Returns what the operator returns."""
