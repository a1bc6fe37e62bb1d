"""Batch norm: cuDNN's where CUDA would take it, ATen's own elsewhere.

[choice] pytorch aten/src/ATen/native/Normalization.cpp `_select_batch_norm_backend`, `_batch_norm_impl_index`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.rules.memory_formats import suggested

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

MOST_SAMPLES: Final = {True: 880_801, False: 65_535}
"""Batch that cuDNN takes, by whether it trains [choice]."""
LARGEST_INDEX: Final = 2**31 - 1
NATIVE, CUDNN = 0, 1
"""Which one ran, as torch counts them."""


def batch_norm(simulation: Simulation) -> Callable[..., tuple[Any, ...]]:
    """[choice `_batch_norm_impl_index`]"""
    memory = simulation.memory

    def run(
        x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor | None,
        variance: torch.Tensor | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool,
    ) -> tuple[Any, ...]:
        if not x.numel():
            return _empty(x, weight, bias)
        _check(x, running_mean=mean, running_var=variance, weight=weight, bias=bias)
        resident = memory.of(x)
        is_asked = resident is not None and not resident.device.is_cpu and cudnn_enabled
        if is_asked and _cudnn_takes(x, weight, bias, mean, variance, training):
            x = x.contiguous(memory_format=suggested(x))
            out = torch.ops.aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
            return (*out, CUDNN)
        out = torch.ops.aten.native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
        return (*out, x.new_empty((0,), dtype=torch.uint8), NATIVE)

    return run


def _empty(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> tuple[Any, ...]:
    """Of nothing: a copy, in the graph of the parameters [choice]."""
    count = x.size(1) if x.dim() > 1 else 0
    mean, deviation = (x.new_empty((count,), dtype=torch.float32) for _ in range(2))
    out = x.clone()
    if weight is not None:
        out = out * weight[0]
    if bias is not None:
        out = out + bias[0]
    return out, mean, deviation, x.new_empty((0,), dtype=torch.uint8), NATIVE


def _check(x: torch.Tensor, **parameters: torch.Tensor | None) -> None:
    """What torch refuses, in its words [choice `check_dims_match_num_input_features`]."""
    for name, tensor in parameters.items():
        if tensor is not None and x.dim() > 1 and tensor.numel() != x.size(1):
            raise RuntimeError(f"{name} should contain {x.size(1)} elements not {tensor.numel()}")


def _cudnn_takes(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor | None,
    variance: torch.Tensor | None, training: bool,
) -> bool:
    """[choice]"""
    if weight is None or bias is None or torch.bfloat16 in (x.dtype, weight.dtype):
        return False
    if x.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    has_statistics = mean is not None and variance is not None
    if not has_statistics and not (training and mean is variance is None):
        return False
    return x.dim() >= 3 and x.size(0) <= MOST_SAMPLES[training] and x.numel() < LARGEST_INDEX


COMPOSITES: Final[Mapping[str, Any]] = {"_batch_norm_impl_index": batch_norm}
