"""The card and its tensors as kernels see them: layouts, copies, multiprocessors, the version of torch.

[format] pytorch c10/core/MemoryFormat.h: `is_channels_last_strides_2d_s4`, `get_channels_last_strides_2d`
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from vramcast.catalogue.gpus import multiprocessors, threads
from vramcast.domain.device import Gpu
from vramcast.operators.reduction import H100, Chip
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.tape import Block

FP32, INT32, INT64 = 4, 4, 8  # [bytes]
NARROW: Final = frozenset({torch.float16, torch.bfloat16})
LITTLE_SHARED: Final = frozenset({86, 87, 89, 120, 121})
"""Cards whose multiprocessors have 99 KiB of shared memory a block: some kernels of wide heads do not fit."""


def num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """acc_type on CUDA: fp32 for 16-bit numbers."""
    return torch.float32 if dtype in NARROW else dtype


def like(
    call: Call, tensor: torch.Tensor, *, dtype: torch.dtype | None = None, contiguous: bool = False
) -> torch.Tensor:
    """`empty_like`: dense tensors keep their order of dimensions unless a contiguous one is asked for."""
    strides = None
    if not contiguous:
        strides = torch.empty_like(tensor, device="meta").stride() if not tensor.is_contiguous() else None
    return call.empty(tensor.size(), dtype=dtype or tensor.dtype, strides=strides)


def contiguous_copy(
    call: Call, tensor: torch.Tensor | None, layout: torch.memory_format = torch.contiguous_format
) -> Block | None:
    """`tensor.contiguous(layout)` for the time of the operator: nothing where it is so."""
    if tensor is None or tensor.is_contiguous(memory_format=layout):
        return None
    return call.scratch(num_bytes(tensor), "contiguous copy")


def reads_contiguous(*places: int) -> Rule:
    """Of operators that read these arguments contiguous: structured kernels make their outputs before they copy."""

    def rule(call: Call) -> Any:
        out = call.run()
        arguments = call.func._schema.arguments
        for place in places:
            contiguous_copy(call, call.arg(place, arguments[place].name))
        return out

    return rule


def first(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, (tuple, list)) else out


CONTIGUOUS: Final = torch.contiguous_format
_ORDERS: Final = {4: (torch.channels_last, (1, 3, 2, 0)), 5: (torch.channels_last_3d, (1, 4, 3, 2, 0))}
"""Dimensions from the innermost outwards."""


def suggested(tensor: torch.Tensor) -> torch.memory_format:
    """`Tensor::suggest_memory_format`: channels last where the strides say so, contiguous where they fit both.

    >>> suggested(torch.empty(2, 8, 4, 4).to(memory_format=torch.channels_last)), suggested(torch.empty(2, 8, 1, 1))
    (torch.channels_last, torch.contiguous_format)
    """
    if tensor.dim() not in _ORDERS:
        return CONTIGUOUS
    layout, order = _ORDERS[tensor.dim()]
    sizes, strides = tensor.size(), tensor.stride()
    if strides[1] == 0:
        return CONTIGUOUS
    least = 0
    for dim in order:
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return CONTIGUOUS
        least = strides[dim] * max(1, sizes[dim])
    return layout


def dense_strides(sizes: Sequence[int], layout: torch.memory_format) -> list[int]:
    """Strides of a new tensor of that layout.

    >>> dense_strides((2, 3, 4, 5), torch.channels_last)
    [60, 1, 15, 3]
    """
    order = next(order for found, order in _ORDERS.values() if found is layout)
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim] = step
        step *= max(1, sizes[dim])
    return strides


def empty_in(call: Call, size: Sequence[int], dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    """A new tensor of that layout; of one spatial dimension there is only one."""
    strides = None if layout is CONTIGUOUS or len(size) == 3 else dense_strides(size, layout)
    return call.empty(size, dtype=dtype, strides=strides)


Version = tuple[int, int]
PARTS: Final = 2


@cache
def installed() -> Version:
    """Major and minor number."""
    major, minor = torch.__version__.split("+")[0].split(".")[:PARTS]
    return int(major), int(minor)


def at_least(version: tuple[int, ...]) -> bool:
    return installed() >= version


def chip(call: Call) -> Chip:
    """A card that no row lists is taken for an H100: partial sums differ by their blocks only."""
    return H100 if call.device.gpu is None else of_card(call.device.gpu)


@cache
def of_card(gpu: Gpu) -> Chip:
    count = multiprocessors(gpu.name)
    return H100 if count is None else Chip(count, threads(gpu.compute_capability))


def allows_tf32(kind: str) -> bool:
    """Whether products of 32-bit numbers may be computed in tf32, "matmul" or "conv", by either way of setting it.

    `allow_tf32` raises where a script said `fp32_precision` [torch/backends/__init__.py].
    """
    return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")
