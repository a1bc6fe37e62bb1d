"""x W^T + b where no fused product takes the bias: CUDA adds it in place.

[linear] pytorch aten/src/ATen/native/Linear.cpp `linear`: tensors like subclasses, as meta tensors are, get a new sum
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites.apart import apart

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

MATRIX: Final = 2


def linear(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """[linear]"""
    memory = simulation.memory

    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        is_fused = bias is None or x.dim() == MATRIX or (x.is_contiguous() and bias.dim() == 1)
        if is_fused or memory.of(x) is None:
            return apart(torch.ops.aten.linear.default, x, weight, bias)
        return torch.matmul(x, weight.t()).add_(bias)

    return run


COMPOSITES: Final[Mapping[str, Any]] = {"linear": linear}
