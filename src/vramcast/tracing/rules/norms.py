"""Batch, layer, RMS, group and weight norm: the order of their outputs, partial sums of their weights' gradients.

cuDNN's mode of batch norm for torch's default layout needs no workspace and no reserve; that of channels last keeps
some bits a value only where an activation is fused, which torch never asks for.

[layer] pytorch aten/src/ATen/native/cuda/layer_norm_kernel.cu: `layer_norm_cuda`, `layer_norm_backward_cuda`,
`LaunchGammaBetaBackwardCUDAKernel`, `_fused_rms_norm_cuda`
[group] pytorch aten/src/ATen/native/group_norm.cpp and cuda/group_norm_kernel.cu
[weight] pytorch aten/src/ATen/native/cuda/WeightNorm.cu: outputs and nothing else
[cudnn] pytorch aten/src/ATen/native/cudnn/BatchNorm.cpp
[native] pytorch aten/src/ATen/native/cuda/Normalization.cu `batch_norm_cuda`, `batch_norm_backward_cuda`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import (
    CONTIGUOUS,
    accumulator,
    at_least,
    chip,
    contiguous_copy,
    empty_in,
    like,
    suggested,
)
from vramcast.tracing.rules.reductions import reduce, sum_kernel
from vramcast.units import ceil_div

SPLIT_SINCE: Final = (2, 8)
"""Since then rows are split over blocks where there are many of them and few columns [layer]."""
MANY_ROWS: Final = 64 * 1024
BLOCK: Final = 32  # columns, and rows of one block
MOST_BLOCKS: Final = 64 * 1024 // 2


def layer_norm(call: Call) -> Any:
    """Output, mean and reciprocal deviation, or the reciprocal root alone; statistics of 16-bit inputs are fp32."""
    is_rms = "rms" in call.name
    x, shape, weight, bias = (call.arg(index, "") for index in range(4))
    bias = None if is_rms else bias
    if not is_rms:
        _check(x, shape, weight=weight, bias=bias)
    for tensor in (x, weight, bias):
        contiguous_copy(call, tensor)
    out = like(call, x, contiguous=True)
    sizes = [1 if dim >= x.dim() - len(shape) else size for dim, size in enumerate(x.size())]
    return out, *(call.empty(sizes, dtype=accumulator(x.dtype)) for _ in range(1 if is_rms else 2))


def _check(x: torch.Tensor, shape: Sequence[int], **parameters: torch.Tensor | None) -> None:
    """What the kernel refuses, in its words [pytorch aten/src/ATen/native/layer_norm.h `_check_layer_norm_inputs`]."""
    for name, tensor in parameters.items():
        if tensor is not None and list(tensor.size()) != list(shape):
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(tensor.size())} and normalized_shape = {list(shape)}"
            )
    if list(x.size()[-len(shape) :]) != list(shape):
        wanted = ", ".join(map(str, ("*", *shape)))
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [{wanted}], but got input of "
            f"size{list(x.size())}"
        )


def layer_norm_backward(call: Call) -> Any:
    """Gradients of input, weight and bias; RMS norm has no mean and no bias."""
    if "rms" in call.name:
        grad, x, shape, _, weight, mask = (call.arg(index, "") for index in range(6))
        parameters = [weight]
    else:
        grad, x, shape, _, _, weight, bias, mask = (call.arg(index, "") for index in range(8))
        parameters = [weight, bias]
    for tensor in (x, *parameters):
        contiguous_copy(call, tensor)
    dx, *gradients = (
        like(call, tensor, contiguous=True) if wanted else None
        for tensor, wanted in zip((x, *parameters), mask, strict=True)
    )
    contiguous_copy(call, grad)
    columns = prod(shape)
    return dx, *_column_sums(call, x.numel() // max(1, columns), columns, gradients)


def _column_sums(
    call: Call, rows: int, columns: int, gradients: list[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The weights' gradients; from partial sums where many rows are split over blocks."""
    strips = ceil_div(columns, BLOCK)
    if not at_least(SPLIT_SINCE) or rows <= MANY_ROWS or columns // BLOCK >= chip(call).multiprocessors // 2:
        return gradients
    blocks = min(MOST_BLOCKS // strips, ceil_div(rows, BLOCK))
    partial = [
        None if gradient is None else call.empty((blocks, columns), dtype=gradient.dtype) for gradient in gradients
    ]
    for index, sums in enumerate(partial):
        if sums is not None:
            total = call.empty(gradients[index].size(), dtype=sums.dtype)  # type: ignore[union-attr]
            reduce(call, sums, (0,), total, sum_kernel(sums.dtype, sums.dtype))
            gradients[index] = total
    return gradients


def group_norm(call: Call) -> Any:
    """Output, mean, deviation; two coefficients a channel on the way."""
    x, weight, bias, batch, channels, pixels, groups = (call.arg(index, "") for index in range(7))
    out = like(call, x, contiguous=True)
    mixed = weight is not None and weight.dtype is not x.dtype
    dtype = torch.float32 if mixed else x.dtype
    mean, rstd = (call.empty((batch, groups), dtype=dtype) for _ in range(2))
    if pixels != 1 and (weight is not None or bias is not None):
        coefficients = batch * channels * accumulator(x.dtype).itemsize
        call.scratch(coefficients, "scale of channels")
        call.scratch(coefficients, "shift of channels")
    return out, mean, rstd


def group_norm_backward(call: Call) -> Any:
    """Gradients of input, weight, bias; sums a channel and coefficients a group on the way."""
    x, weight = call.arg(1, "input"), call.arg(4, "weight")
    batch, channels, pixels, groups, mask = (call.arg(index, "") for index in range(5, 10))
    dx = like(call, x, contiguous=True) if mask[0] else None
    dweight = like(call, weight, contiguous=True) if mask[1] else None
    dbias = like(call, weight, contiguous=True) if mask[2] else None
    size = accumulator(x.dtype).itemsize
    for name in ("products a channel", "sums a channel"):
        call.scratch(batch * channels * size, name)
    if pixels != 1 and dx is not None:
        for name in ("coefficients a group", "shifts a group"):
            call.scratch(batch * groups * size, name)
        if weight is not None:
            call.scratch(batch * channels * size, "coefficients a channel")
    return dx, dweight, dbias


def cudnn_batch_norm(call: Call) -> Any:
    """Output, mean and deviation of the batch, reserve."""
    x, weight, training = call.args[0], call.args[1], call.args[5]
    out = empty_in(call, x.size(), x.dtype, suggested(x))
    count = x.size(1) if training else 0
    mean, deviation = (call.empty((count,), dtype=weight.dtype) for _ in range(2))
    return out, mean, deviation, call.empty((0,), dtype=torch.uint8)


def cudnn_batch_norm_backward(call: Call) -> Any:
    x, grad, weight = call.args[:3]
    contiguous_copy(call, grad, suggested(x))
    dx = empty_in(call, x.size(), x.dtype, suggested(x))
    return dx, *(call.empty(weight.size(), dtype=weight.dtype) for _ in range(2))


def native_batch_norm(call: Call) -> Any:
    """Output, mean, reciprocal deviation; statistics of 16-bit inputs are fp32."""
    x = call.args[0]
    out = call.empty(x.size(), dtype=x.dtype, strides=torch.empty_like(x, device="meta").stride())
    return out, *(call.empty((x.size(1),), dtype=accumulator(x.dtype)) for _ in range(2))


def native_batch_norm_backward(call: Call) -> Any:
    """Gradients of input, weight and bias; channels last needs sums a channel first."""
    grad, x, weight = call.args[:3]
    training, mask = call.args[7], call.args[9]
    if suggested(x) is CONTIGUOUS:
        dx = call.empty(x.size(), dtype=x.dtype) if mask[0] else None
        return dx, *_weight_gradients(call, x, weight, mask)
    if training or mask[1] or mask[2]:
        for name in ("sum of gradients", "sum of gradients times deviations"):
            call.scratch(x.size(1) * accumulator(x.dtype).itemsize, name)
    dweight, dbias = _weight_gradients(call, x, weight, mask)
    dx = call.empty(x.size(), dtype=grad.dtype, strides=x.stride()) if mask[0] else None
    return dx, dweight, dbias


def _weight_gradients(
    call: Call, x: torch.Tensor, weight: torch.Tensor | None, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    dtype = x.dtype if weight is None else weight.dtype
    dweight, dbias = (call.empty((x.size(1),), dtype=dtype) if wanted else None for wanted in mask[1:3])
    return dweight, dbias


RULES: Final[Mapping[str, Rule]] = {
    "aten._fused_rms_norm": layer_norm,
    "aten._fused_rms_norm_backward": layer_norm_backward,
    "aten.native_group_norm": group_norm,
    "aten.native_group_norm_backward": group_norm_backward,
    "aten.native_layer_norm": layer_norm,
    "aten.native_layer_norm_backward": layer_norm_backward,
    "aten.cudnn_batch_norm": cudnn_batch_norm,
    "aten.cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "aten._native_batch_norm_legit": native_batch_norm,
    "aten.native_batch_norm": native_batch_norm,
    "aten.native_batch_norm_backward": native_batch_norm_backward,
}


PLAIN: Final = frozenset({"aten._weight_norm_interface", "aten._weight_norm_interface_backward"})  # [weight]
