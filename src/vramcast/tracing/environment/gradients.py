"""Gradients that cross devices: C++ knows every simulated tensor as one of the meta device and moves none of them.

[copy] pytorch tools/autograd/derivatives.yaml, `_to_copy`: the gradient goes where the original was
[assign] pytorch torch/csrc/autograd/python_variable.cpp, `THPVariable_set_grad`: compares devices
"""

from __future__ import annotations

from typing import Any, cast

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


def send_back(original: torch.Tensor, copy: torch.Tensor, simulation: Simulation) -> torch.Tensor:
    """A copy that may be on another simulated device; its gradient goes where the original was [copy]."""
    node = copy.grad_fn
    if node is None or copy is original:
        return copy
    home, there = simulation.memory.of(original), simulation.memory.of(copy)
    if home is not None and there is not None and home.device is not there.device:
        device = home.device

        def back(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
            return tuple(None if each is None else simulation.moved(each, device) for each in gradients)

        node.register_prehook(back)
    return copy


def patch_gradients(patches: Patches, simulation: Simulation) -> None:
    """Let weights of the host that are real take gradients that came from a card, as offloading does."""
    slot, device = torch._C.TensorBase.grad, torch._C.TensorBase.device

    def assign(self: torch.Tensor, gradient: torch.Tensor | None) -> None:
        if (
            isinstance(gradient, torch.Tensor) and device.__get__(self).type == "cpu"
            and device.__get__(gradient).type == "meta" and gradient.device.type == "cpu"
        ):
            gradient = _with_data(gradient, simulation)
        slot.__set__(self, gradient)

    patches.set(torch.Tensor, "grad", property(slot.__get__, assign, slot.__delete__))


def _with_data(tensor: torch.Tensor, simulation: Simulation) -> torch.Tensor:
    """A real tensor of the host of the same size: its values where they are known, else zeros."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):  # made of others, as a DTensor
        names, context = tensor.__tensor_flatten__()
        inner: dict[str, Any] = {name: getattr(tensor, name) for name in names}
        for name, part in inner.items():
            inner[name] = _with_data(part, simulation) if isinstance(part, torch.Tensor) else part
        made: Any = type(tensor)
        return cast(torch.Tensor, made.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride()))
    known = simulation.values.of(tensor)
    if known is not None:
        return known
    with torch._C._DisableTorchDispatch():
        return torch.zeros(tensor.size(), dtype=tensor.dtype)
