"""Reading simulated tensors in Python: lists, NumPy arrays, text. Scalars are read by an operator, see `unknowns`."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


def patch_reading(patches: Patches, simulation: Simulation) -> None:
    """Known values where they are, assumed ones elsewhere; text says which of both."""
    memory, unknowns = simulation.memory, simulation.unknowns
    for name in ("tolist", "numpy", "__array__", "__dlpack__"):
        patches.set(torch.Tensor, name, _on_values(getattr(torch.Tensor, name), simulation))
    text = torch._tensor_str._str

    def described(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if memory.of(self) is None:
            return text(self, tensor_contents=tensor_contents)
        return _text(self, simulation)

    patches.set(torch._tensor_str, "_str", described)
    contains = torch.Tensor.__contains__

    def holds(self: torch.Tensor, element: Any) -> bool:
        resident = memory.of(self)
        return contains(self if resident is None else unknowns.array(self), element)

    patches.set(torch.Tensor, "__contains__", holds)


def _on_values(method: Any, simulation: Simulation) -> Any:
    """The method, on a real tensor with the values."""
    memory, unknowns = simulation.memory, simulation.unknowns

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        resident = memory.of(self)
        if resident is None:
            return method(self, *args, **kwargs)
        if method.__name__ == "numpy" and not kwargs.get("force"):
            _check_host(self, on_host=resident.device is memory.host)
        return method(unknowns.array(self), *args, **kwargs)

    return call


def _check_host(tensor: torch.Tensor, *, on_host: bool) -> None:
    """What C++ refuses, in its words."""
    if not on_host:
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    if tensor.requires_grad:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def _text(tensor: torch.Tensor, simulation: Simulation) -> str:
    known = simulation.values.of(tensor)
    device = f"device='{tensor.device}'"
    gradient = ", requires_grad=True" if tensor.requires_grad else ""
    if known is not None:
        return f"{repr(known.detach())[:-1]}, {device}{gradient})"
    return f"tensor(..., {device}, size={tuple(tensor.size())}, dtype={tensor.dtype}{gradient})"
