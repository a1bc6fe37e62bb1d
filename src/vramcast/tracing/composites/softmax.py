"""softmax with a wider result type: CUDA's kernel reads fp16 and writes fp32, without a copy of the input.

[softmax] pytorch aten/src/ATen/native/SoftMax.cpp `softmax`, `log_softmax`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites.apart import apart

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation


def _made(composite: Any, kernel: Any) -> Callable[[Simulation], Callable[..., torch.Tensor]]:
    def make(simulation: Simulation) -> Callable[..., torch.Tensor]:
        memory = simulation.memory

        def run(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
            resident = memory.of(x)
            on_card = resident is not None and not resident.device.is_cpu
            if on_card and x.dtype is torch.float16 and dtype is torch.float32:
                return kernel(x, dim, True)
            return apart(composite, x, dim, dtype)

        return run

    return make


COMPOSITES: Final[Mapping[str, Any]] = {
    "log_softmax.int": _made(torch.ops.aten.log_softmax.int, torch.ops.aten._log_softmax),
    "softmax.int": _made(torch.ops.aten.softmax.int, torch.ops.aten._softmax),
}
