"""New tensors and copies as kernels make them."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracing.call import Call
from vramcast.tracing.tape import Block


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return tensor.numel() * tensor.dtype.itemsize


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """acc_type on CUDA: fp32 for 16-bit numbers."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def like(
    call: Call, tensor: torch.Tensor, *, dtype: torch.dtype | None = None, contiguous: bool = False
) -> torch.Tensor:
    """`empty_like`: dense tensors keep their order of dimensions unless a contiguous one is asked for."""
    strides = None
    if not contiguous:
        strides = torch.empty_like(tensor, device="meta").stride() if not tensor.is_contiguous() else None
    return call.empty(tensor.size(), dtype=dtype or tensor.dtype, strides=strides)


def contiguous_copy(call: Call, tensor: torch.Tensor | None) -> Block | None:
    """`tensor.contiguous()` for the time of the operator: nothing where it is contiguous."""
    if tensor is None or tensor.is_contiguous():
        return None
    return call.scratch(num_bytes(tensor), "contiguous copy")


def first(out: Any) -> torch.Tensor:
    """The first of an operator's outputs."""
    return out[0] if isinstance(out, (tuple, list)) else out


__all__ = ["accumulator", "contiguous_copy", "first", "like", "num_bytes"]
