"""What sorting and selecting take on the CPU: copies of the rows, their order.

[sort] pytorch aten/src/ATen/native/cpu/SortingKernel.cpp `_fill_indices`
[kth] pytorch aten/src/ATen/native/Sorting.cpp `kthvalue_out_impl_cpu`
[median] the same file: `median_with_indices_impl`
[unique] pytorch aten/src/ATen/native/Unique.cpp `unique_cpu_sorted_template`
[select] pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp `masked_select_out_impl_cpu`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.cpu_indexing import through_tile
from vramcast.tracing.rules.layouts import num_bytes

INT64: Final = 8
GRAIN: Final = 32_768
"""Elements from which on a loop is shared by threads: at::internal::GRAIN_SIZE."""


def sorted_along(call: Call) -> Any:
    """The positions along the dimension, which are copied into the indices [sort]."""
    out = call.run()
    x = call.args[0]
    if x.dim():
        call.scratch(x.size(call.arg(1, "dim", -1)) * INT64, "positions")
    return out


def kth_value(call: Call) -> Any:
    """A copy of everything and the order of it [kth]."""
    out = call.run()
    x = call.arg(0, "self")
    call.scratch(num_bytes(x), "copy")
    call.scratch(x.numel() * INT64, "order")
    return out


def median(call: Call) -> Any:
    """Along a dimension that is not the innermost, a copy of everything in which it is [median]."""
    out = call.run()
    x, dim = call.arg(0, "self"), call.arg(1, "dim")
    if x.dim() and x.stride(dim) != 1:
        rows = x.transpose(dim, -1)
        call.scratch(num_bytes(x), "contiguous copy")
        through_tile(call, torch.empty(rows.size(), dtype=x.dtype, device="meta"), rows)
    return out


def unique(call: Call) -> None:
    """Sorted values and where they were; while they are sorted, their order [unique]."""
    x = call.args[0]
    if x.dtype is torch.bool:
        return
    call.scratch(num_bytes(x), "sorted values")
    call.scratch(x.numel() * INT64, "order")
    call.release(call.scratch(x.numel() * INT64, "numbers"))


def masked_select(call: Call) -> None:
    """The mask as numbers and their sums, unless one thread goes through both in order [select]."""
    x, mask = call.args[:2]
    size = torch.broadcast_shapes(x.size(), mask.size())
    count = prod(size)
    is_serial = count < GRAIN or torch.get_num_threads() == 1
    is_plain = all(tensor.size() == size and tensor.is_contiguous() for tensor in (x, mask))
    if not (is_serial and is_plain):
        call.scratch(count * INT64, "mask as numbers")
        call.scratch(count * INT64, "prefix sums of the mask")


SIZED: Final[Mapping[str, Callable[[Call], None]]] = {"aten._unique2": unique, "aten.masked_select": masked_select}
"""Of operators whose result is as large as their data say: what the CPU takes before it makes the result."""
RULES: Final[Mapping[str, Rule]] = {
    "aten.sort": sorted_along,
    "aten.kthvalue": kth_value, "aten.median.dim": median, "aten.nanmedian.dim": median,
}
