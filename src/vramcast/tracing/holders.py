"""Who holds which block: parameters, gradients and optimizer states tell what their storages are for.

What LBFGS keeps depends on values, so the most that it may keep is assumed: each iteration adds a direction and a
step, as long as the curvature is positive, up to `history_size` of each.
[lbfgs] pytorch torch/optim/lbfgs.py `LBFGS.step`
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from itertools import chain, count
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.optim import lbfgs
from torch.utils.weak import WeakIdKeyDictionary

from vramcast.domain.program import Category
from vramcast.tracing.memory import Memory, sparse_parts
from vramcast.tracing.origins import Assumptions, Origins
from vramcast.tracing.tape import UNTOLD

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
