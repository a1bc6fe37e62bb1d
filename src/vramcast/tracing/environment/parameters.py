"""`.data =` between real and simulated tensors, so that `Module.to("cuda")` keeps its parameters and what ties them.

C++ refuses that, as their implementations differ; two tensors of one Python type can swap them instead.
[swap] pytorch torch/csrc/autograd/python_variable.cpp, THPModule_swap_tensor_impl
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation, blank


def patch_parameters(patches: Patches, simulation: Simulation) -> None:
    """Assigning data works across the border, as it does from host to card."""
    memory = simulation.memory
    data = torch._C.TensorBase.data
    is_compatible = torch._has_compatible_shallow_copy_type

    def assign(self: torch.Tensor, value: torch.Tensor) -> None:
        if not isinstance(value, torch.Tensor) or is_compatible(self, value):
            data.__set__(self, value)
            return
        gradient, self.grad = self.grad, None
        other = value.detach()
        other = other.as_subclass(type(self)) if not isinstance(self, torch.nn.Parameter) else other
        torch._C._swap_tensor_impl(self, other.requires_grad_(self.requires_grad))
        if gradient is not None:  # of the kind of its tensor, until whoever assigns converts it too
            empty = blank(gradient) if self.is_meta or memory.of(self) is not None else torch.empty_like(gradient)
            if memory.of(self) is not None:
                memory.adopt(empty, memory.host, "aten.empty_like")
            self.grad = empty

    def compatible(input: torch.Tensor, from_: torch.Tensor) -> bool:  # names that torch.compile compares
        return is_compatible(input, from_) or (memory.of(input) is not None) != (memory.of(from_) is not None)

    patches.set(torch.Tensor, "data", property(data.__get__, assign, data.__delete__))
    patches.set(torch, "_has_compatible_shallow_copy_type", compatible)


def patch_pinning(patches: Patches, simulation: Simulation) -> None:
    """Pinned host memory: a copy on the host that says it is pinned, and is counted as the host's allocator does."""
    held = simulation.memory.pinned

    def pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if held.holds(self.untyped_storage()):
            return self
        copy = self.detach().clone()
        held.hold(copy.untyped_storage())
        return copy

    patches.set(torch.Tensor, "pin_memory", pin)
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: held.holds(self.untyped_storage()))
