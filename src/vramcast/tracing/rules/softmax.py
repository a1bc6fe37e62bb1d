"""softmax and log_softmax.

[softmax] pytorch aten/src/ATen/native/cuda/SoftMax.cu: `host_softmax`, `host_softmax_backward`,
`softmax_backward_cuda_out` multiplies gradient and result first
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy


def forward(call: Call) -> Any:
    """A contiguous input is read where it lies."""
    out = call.run()
    contiguous_copy(call, call.arg(0, "self"))
    return out


def log_backward(call: Call) -> Any:
    """Gradient and result are read contiguous."""
    out = call.run()
    contiguous_copy(call, call.arg(0, "grad_output"))
    contiguous_copy(call, call.arg(1, "output"))
    return out


def backward(call: Call) -> Any:
    """gradient * result is a tensor of its own."""
    out = call.run()
    grad, result = call.arg(0, "grad_output"), call.arg(1, "output")
    if not call.device.is_cpu:
        dtype = torch.promote_types(grad.dtype, result.dtype)
        call.scratch(result.numel() * dtype.itemsize, "gradient * result")
        contiguous_copy(call, result)
    return out


RULES: Final[Mapping[str, Rule]] = {
    "aten._log_softmax": forward,
    "aten._log_softmax_backward_data": log_backward,
    "aten._softmax": forward,
    "aten._softmax_backward_data": backward,
}
PLAIN: Final = frozenset[str]()
