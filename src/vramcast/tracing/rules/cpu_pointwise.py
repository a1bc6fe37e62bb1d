"""Copies that the CPU makes where types are mixed, and buffers of losses and group norms.

Leaves out Python numbers, whose tensors of one element the CPU converts, too.

[iterator] pytorch aten/src/ATen/TensorIterator.cpp `compute_types`: `promote_inputs_to_common_dtype`, only on the CPU
[reduce] pytorch aten/src/ATen/native/ReduceOpsUtils.h `make_reduction_from_out_ty`
[loss] pytorch aten/src/ATen/native/Loss.cpp: `mse_loss_out`, `smooth_l1_loss_out`, `binary_cross_entropy_out_cpu`,
`soft_margin_loss_backward_out`
[copies] pytorch aten/src/ATen/native/SoftMax.cpp `softmax_backward_cpu_out`, layer_norm.cpp `layer_norm_backward_cpu`,
aten/src/ATen/native/cpu/MaxPoolKernel.cpp, AvgPoolKernel.cpp, UpSampleKernel.cpp, mkldnn/Gelu.cpp
[norm] pytorch aten/src/ATen/native/cpu/batch_norm_kernel.cpp `batch_norm_cpu_collect_linear_and_constant_terms`
[group] pytorch aten/src/ATen/native/cpu/group_norm_kernel.cpp `GroupNormBackwardKernelImplInternal`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules import engine, pointwise, sparse
from vramcast.tracing.rules.layouts import num_bytes
from vramcast.tracing.rules.losses import NONE
from vramcast.tracing.rules.memory_formats import CONTIGUOUS, suggested

MIXING: Final = (
    "add atan2 bitwise_and bitwise_or bitwise_xor div eq fmax fmin fmod ge gt hypot le logaddexp logical_and "
    "logical_or logical_xor lt maximum minimum mul ne pow remainder sub true_divide xlogy"
)
FLOATING: Final = frozenset({"atan2", "div", "hypot", "logaddexp", "true_divide", "xlogy"})
"""Whose integer operands become floating."""
READ_CONTIGUOUS: Final = (
    "aten._log_softmax_backward_data", "aten._softmax_backward_data", "aten.avg_pool2d_backward", "aten.gelu_backward",
    "aten.max_pool2d_with_indices_backward", "aten.native_layer_norm_backward", "aten.upsample_bicubic2d_backward",
    "aten.upsample_bilinear2d_backward", "aten.upsample_nearest2d_backward",
)
"""Of which the gradient that comes in is read contiguous, of pools in the layout of the input [copies]."""


def mixed(call: Call) -> Any:
    """Operands of other types are converted into copies first [iterator]."""
    tensors = [arg for arg in call.args if isinstance(arg, torch.Tensor)]
    if any(tensor.is_sparse for tensor in tensors):
        return sparse.add(call)
    if len({tensor.dtype for tensor in tensors}) > 1 or tensors[0].dtype in _INTEGERS:
        common = _common(call, tensors)
        for tensor in tensors:
            if tensor.dtype is not common:
                call.scratch(tensor.numel() * common.itemsize, "converted operand")
    return engine.accumulate(call) if call.func is torch.ops.aten.add.Tensor else call.run()


_INTEGERS: Final = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _common(call: Call, tensors: list[torch.Tensor]) -> torch.dtype:
    common = torch.result_type(*tensors) if len(tensors) == 2 else tensors[0].dtype
    is_floating = call.name.removeprefix("aten.").removesuffix("_") in FLOATING
    return torch.get_default_dtype() if is_floating and common in _INTEGERS else common


def summed(call: Call) -> Any:
    """What is summed is converted to the result's type first [reduce]."""
    out = call.run()
    source = call.args[0]
    if source.dtype is not out.dtype:
        call.scratch(source.numel() * out.dtype.itemsize, "converted input")
    return out


def behind_scalar(call: Call) -> Any:
    """A loss of every element, resized to the scalar that is returned: its memory stays behind it [loss]."""
    names = [argument.name for argument in call.func._schema.arguments]
    if call.arg(names.index("reduction"), "reduction", 1) == NONE:
        return call.run()
    a, b = call.args[:2]
    dtype = torch.promote_types(a.dtype, b.dtype)
    out = call.empty(torch.broadcast_shapes(a.size(), b.size()), dtype=dtype)
    is_reduced_apart = call.name == "aten.binary_cross_entropy"
    call.scratch(dtype.itemsize * (1 if is_reduced_apart else out.numel()), "loss of elements")
    return out.resize_(())


def soft_margin_backward(call: Call) -> Any:
    """A tensor a step: the target's negative, times the input, its exponential, the gradient [loss]."""
    x = call.args[1]
    steps = [call.scratch(num_bytes(x), what) for what in ("negative target", "product", "exponential")]
    for step in steps[:2]:
        call.release(step)
    return call.run()


def with_contiguous_gradient(call: Call) -> Any:
    """The gradient that comes in, a sum's for one, is copied where it does not lie as the kernel reads it [copies]."""
    out = call.run()
    layout = suggested(call.args[1]) if "_pool" in call.name else CONTIGUOUS
    if not call.args[0].is_contiguous(memory_format=layout):
        call.scratch(num_bytes(call.args[0]), "contiguous copy")
    return out


def group_norm_backward(call: Call) -> Any:
    """For every channel of every sample two sums [group]."""
    out = call.run()
    source, rows, channels = call.args[1], call.args[5], call.args[6]
    wide = torch.float32 if source.dtype.itemsize == 2 else source.dtype
    for what in ("sums of gradient times input", "sums of the gradient"):
        call.scratch(rows * channels * wide.itemsize, what)
    return out


def batch_norm(call: Call) -> Any:
    """Scale and shift of every channel beside the outputs [norm]."""
    out = call.run()
    x = call.args[0]
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    for what in ("scale of channels", "shift of channels"):
        call.scratch(x.size(1) * wide.itemsize, what)
    return out


RULES: Final[Mapping[str, Rule]] = {
    **{f"aten.{name}{suffix}": mixed for name in MIXING.split() for suffix in ("", "_")},
    "aten.add.Tensor": mixed,  # stands before what the engine does with sums of gradients
    "aten.nansum": summed,
    "aten.prod": summed,
    "aten.sum": summed,
    "aten.binary_cross_entropy": behind_scalar,
    "aten.mse_loss": behind_scalar,
    "aten.smooth_l1_loss": behind_scalar,
    "aten.soft_margin_loss_backward": soft_margin_backward,
    **dict.fromkeys(READ_CONTIGUOUS, with_contiguous_gradient),
    "aten.native_batch_norm": batch_norm,
    "aten.native_group_norm_backward": group_norm_backward,
    **pointwise.RULES,
}
