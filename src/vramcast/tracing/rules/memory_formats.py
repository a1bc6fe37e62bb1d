"""Memory formats as C++ reads them off the strides.

[format] pytorch c10/core/MemoryFormat.h: `is_channels_last_strides_2d_s4`, `get_channels_last_strides_2d`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

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
