"""Distances of all pairs of rows.

[cdist] pytorch aten/src/ATen/native/Distance.cpp `cdist_impl`, `_cdist_backward`, `_pdist_backward`
[cuda] pytorch aten/src/ATen/native/cuda/DistanceKernel.cu: backward writes a gradient of every pair, then sums them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes
from vramcast.tracing.rules.reductions import reduce, sum_kernel


def between_two(call: Call) -> Any:
    """cdist: batches are expanded into copies, then the result; what is a product comes apart before [cdist]."""
    x, y = call.args[:2]
    if call.device.is_cpu:
        return call.run()
    batch = torch.broadcast_shapes(x.size()[:-2], y.size()[:-2])
    for tensor in (x, y):
        contiguous_copy(call, tensor.expand(*batch, *tensor.size()[-2:]))
    return call.run()


def between_two_backward(call: Call) -> Any:
    """The gradient of the first rows, summed over a gradient of every pair [cuda]."""
    _, x, y, p, _ = call.args
    out = call.run()
    if call.device.is_cpu or not out.numel() or not y.numel() or p == 0:
        return out
    batch = torch.broadcast_shapes(x.size()[:-2], y.size()[:-2])
    for tensor in (x, y):
        if tensor.size()[:-2] != batch:
            contiguous_copy(call, tensor.expand(*batch, *tensor.size()[-2:]))
    pairs = (batch.numel(), y.size(-2), x.size(-2), x.size(-1))
    _sum_of_pairs(call, pairs, 1, x.dtype)
    return out


def within_one_backward(call: Call) -> Any:
    """pdist: a gradient of every row with every other one [cuda]."""
    _, x, p, _ = call.args
    out = call.run()
    if not call.device.is_cpu and x.numel() and p != 0:
        _sum_of_pairs(call, (x.size(0) - 1, *x.size()), 0, x.dtype)
    return out


def _sum_of_pairs(call: Call, size: Sequence[int], dim: int, dtype: torch.dtype) -> None:
    pairs = torch.empty(size, dtype=dtype, device="meta")
    call.scratch(num_bytes(pairs), "gradient of every pair")
    reduce(call, pairs, (dim,), torch.empty((), dtype=dtype, device="meta"), sum_kernel(dtype, dtype))


RULES: Final[Mapping[str, Rule]] = {
    "aten._cdist_backward": between_two_backward,
    "aten._cdist_forward": between_two,
    "aten._pdist_backward": within_one_backward,
}
PLAIN: Final = frozenset({"aten._pdist_forward"})
