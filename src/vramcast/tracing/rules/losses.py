"""Losses.

[loss] pytorch aten/src/ATen/native/Loss.cpp: `mse_loss_out`, `smooth_l1_loss_out`, `huber_loss`
[cuda] pytorch aten/src/ATen/native/cuda/Loss.cu: `binary_cross_entropy_out_cuda`
[2d] pytorch aten/src/ATen/native/cuda/NLLLoss2d.cu
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, first, num_bytes
from vramcast.tracing.rules.reductions import all_dims, reduce, sum_kernel

NONE: Final = 0  # at::Reduction


def pointwise(call: Call) -> Any:
    """The loss of every element, then their sum or mean."""
    out = call.run()
    names = [argument.name for argument in call.func._schema.arguments]
    index = names.index("reduction")
    if call.arg(index, "reduction", 1) != NONE and not call.device.is_cpu:
        a, b = call.args[:2]
        sizes = torch.broadcast_shapes(a.size(), b.size())
        elements = torch.empty(sizes, dtype=torch.promote_types(a.dtype, b.dtype), device="meta")
        call.scratch(num_bytes(elements), "loss of elements")
        reduce(call, elements, all_dims(elements), first(out), sum_kernel(elements.dtype, out.dtype))
    return out


def nll_loss_2d(call: Call) -> Any:
    """Loss and total weight; input and target are read contiguous."""
    out = call.run()
    contiguous_copy(call, call.arg(0, "self"))
    contiguous_copy(call, call.arg(1, "target"))
    return out


def nll_loss_2d_backward(call: Call) -> Any:
    """The gradient; the target is read contiguous."""
    out = call.run()
    contiguous_copy(call, call.arg(2, "target"))
    return out


RULES: Final[Mapping[str, Rule]] = {
    "aten.binary_cross_entropy": pointwise,
    "aten.huber_loss": pointwise,
    "aten.mse_loss": pointwise,
    "aten.nll_loss2d_backward": nll_loss_2d_backward,
    "aten.nll_loss2d_forward": nll_loss_2d,
    "aten.smooth_l1_loss": pointwise,
}
PLAIN: Final = frozenset({
    "aten.binary_cross_entropy_backward", "aten.huber_loss_backward", "aten.log_sigmoid_backward",
    "aten.log_sigmoid_forward", "aten.mse_loss_backward", "aten.nll_loss_backward", "aten.nll_loss_forward",
    "aten.smooth_l1_loss_backward", "aten.soft_margin_loss_backward",
})
