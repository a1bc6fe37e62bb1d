"""Batch norm: outputs, statistics and reserve in the order in which CUDA takes them.

cuDNN's mode for torch's default layout needs no workspace and no reserve; that of channels last keeps some bits a value
only where an activation is fused, which torch never asks for.

[cudnn] pytorch aten/src/ATen/native/cudnn/BatchNorm.cpp
[native] pytorch aten/src/ATen/native/cuda/Normalization.cu `batch_norm_cuda`, `batch_norm_backward_cuda`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.memory_formats import CONTIGUOUS, dense_strides, suggested


def cudnn_batch_norm(call: Call) -> Any:
    """Output, mean and deviation of the batch, reserve."""
    if call.device.is_cpu:
        return call.run()
    x, weight, training = call.args[0], call.args[1], call.args[5]
    out = _like(call, x)
    count = x.size(1) if training else 0
    mean, deviation = (call.empty((count,), dtype=weight.dtype) for _ in range(2))
    return out, mean, deviation, call.empty((0,), dtype=torch.uint8)


def cudnn_batch_norm_backward(call: Call) -> Any:
    """Gradients of input, weight and bias."""
    if call.device.is_cpu:
        return call.run()
    x, grad, weight = call.args[:3]
    if not grad.is_contiguous(memory_format=suggested(x)):
        call.scratch(grad.numel() * grad.dtype.itemsize, "contiguous copy")
    dx = _like(call, x)
    return dx, *(call.empty(weight.size(), dtype=weight.dtype) for _ in range(2))


def native_batch_norm(call: Call) -> Any:
    """Output, mean, reciprocal deviation; statistics of 16-bit inputs are fp32."""
    if call.device.is_cpu:
        return call.run()
    x = call.args[0]
    out = call.empty(x.size(), dtype=x.dtype, strides=torch.empty_like(x, device="meta").stride())
    return out, *(call.empty((x.size(1),), dtype=_wide(x.dtype)) for _ in range(2))


def native_batch_norm_backward(call: Call) -> Any:
    """Gradients of input, weight and bias; channels last needs sums a channel first."""
    if call.device.is_cpu:
        return call.run()
    grad, x, weight = call.args[:3]
    training, mask = call.args[7], call.args[9]
    if suggested(x) is CONTIGUOUS:
        dx = call.empty(x.size(), dtype=x.dtype) if mask[0] else None
        return dx, *_weight_gradients(call, x, weight, mask)
    if training or mask[1] or mask[2]:
        for name in ("sum of gradients", "sum of gradients times deviations"):
            call.scratch(x.size(1) * _wide(x.dtype).itemsize, name)
    dweight, dbias = _weight_gradients(call, x, weight, mask)
    dx = call.empty(x.size(), dtype=grad.dtype, strides=x.stride()) if mask[0] else None
    return dx, dweight, dbias


def _weight_gradients(
    call: Call, x: torch.Tensor, weight: torch.Tensor | None, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    dtype = x.dtype if weight is None else weight.dtype
    dweight, dbias = (call.empty((x.size(1),), dtype=dtype) if wanted else None for wanted in mask[1:3])
    return dweight, dbias


def _like(call: Call, x: torch.Tensor) -> torch.Tensor:
    layout = suggested(x)
    strides = None if layout is CONTIGUOUS else dense_strides(x.size(), layout)
    return call.empty(x.size(), dtype=x.dtype, strides=strides)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize == 2 else dtype


RULES: Final[Mapping[str, Rule]] = {
    "aten.cudnn_batch_norm": cudnn_batch_norm,
    "aten.cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "aten._native_batch_norm_legit": native_batch_norm,
    "aten.native_batch_norm": native_batch_norm,
    "aten.native_batch_norm_backward": native_batch_norm_backward,
}
PLAIN: Final = frozenset[str]()
