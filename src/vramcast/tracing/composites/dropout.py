"""Dropout: CUDA has one kernel for it, other devices multiply with a random mask.

[dropout] pytorch aten/src/ATen/native/Dropout.cpp `dropout`: `is_fused_kernel_acceptable`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites.apart import apart

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation


def dropout(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """[dropout]"""
    memory = simulation.memory

    def run(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        resident = memory.of(x)
        if not train or p == 0 or not x.numel():
            return x
        if resident is None or resident.device.is_cpu or p == 1:
            return apart(torch.ops.aten.dropout.default, x, p, train)
        return torch.ops.aten.native_dropout(x, p, train)[0]

    return run


COMPOSITES: Final[Mapping[str, Any]] = {"dropout": dropout}
