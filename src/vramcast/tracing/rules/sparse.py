"""Sparse gradients (`nn.Embedding(sparse=True)`): indices int64 and values, a block each.

How many rows are distinct only the data knows: all, up to the number there are, which is the most.

[coalesce] pytorch aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu `_coalesce_sparse_cuda`
[math] pytorch aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu: `add_out_dense_sparse_cuda`,
`add_out_sparse_cuda`
[mask] pytorch aten/src/ATen/native/sparse/SparseTensor.cpp `sparse_mask`, SparseTensorMath.cpp
`_mul_dense_sparse_out`: the same operators in the same order are seen on the CPU
[accumulate] pytorch torch/csrc/autograd/functions/accumulate_grad.h: a sparse gradient that nobody else holds becomes
the parameter's without a copy
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules import engine
from vramcast.tracing.rules.cub import unique_by_key_bytes
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes

INT64: Final = 8
ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
DISTINCT: Final = "all rows of a sparse gradient are distinct"


def clone(call: Call) -> Any:
    """Copies of indices and values; none where autograd hands a gradient to its parameter [accumulate]."""
    x = call.args[0]
    if not x.is_sparse:
        return call.run()
    indices, values = x._indices(), x._values()
    node = torch._C._current_autograd_node()
    is_handed_over = node is not None and node.name() == ACCUMULATE
    if not is_handed_over or not indices.is_contiguous() or not values.is_contiguous():
        indices = call.empty(indices.size(), dtype=indices.dtype)
        values = call.empty(values.size(), dtype=values.dtype)
    return _sparse(x, indices, values, is_coalesced=x.is_coalesced())


def coalesce(call: Call) -> Any:
    """Indices are sorted with their places, rows of equal ones summed [coalesce]."""
    x = call.args[0]
    indices, values = x._indices(), x._values()
    count, dims = values.size(0), x.sparse_dim()
    contiguous_copy(call, values)
    rows = min(count, max(1, x.size()[:dims].numel()))
    call.simulation.assumptions.note(DISTINCT)
    flat = call.empty((count,), dtype=torch.int64)
    if not call.device.is_cpu:
        for what in ("order of indices", "starts of rows"):
            call.scratch(count * INT64, what)
        # A comparison of its own makes thrust merge: keys and places are copied once more.
        call.release(call.scratch(2 * count * INT64, "merge sort"))
        call.release(call.scratch(unique_by_key_bytes(count, call.device.sm), "unique by key"))
    made = call.empty((rows, *values.size()[1:]), dtype=values.dtype)
    if call.device.is_cpu:
        for what in ("sorted indices", "order of indices", "positions"):
            call.scratch(count * INT64, what)
    kept = flat[:rows].view(1, rows) if dims == 1 else call.empty((indices.size(0), rows), dtype=torch.int64)
    return _sparse(x, kept, made, is_coalesced=True)


def add(call: Call) -> Any:
    """To a dense tensor in its memory, or a copy of it; two sparse ones one behind the other [math]."""
    one, other = call.args[:2]
    if not (isinstance(other, torch.Tensor) and other.is_sparse):
        return engine.accumulate(call) if call.func is torch.ops.aten.add.Tensor else call.run()
    if one.is_sparse:
        if call.arg(2, "alpha", 1) != 1:
            call.scratch(num_bytes(other._values()), "scaled values")
        return _concatenated(call, one, other)
    out = one if call.name.endswith("_") else call.empty(one.size(), dtype=one.dtype)
    if other.dtype is not one.dtype:
        call.scratch(other._values().numel() * one.dtype.itemsize, "converted values")
    contiguous_copy(call, other._values())
    return out


def _concatenated(call: Call, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    parts = one._indices(), one._values()
    count = parts[1].size(0) + other._values().size(0)
    indices = call.empty((parts[0].size(0), count), dtype=torch.int64)
    values = call.empty((count, *parts[1].size()[1:]), dtype=parts[1].dtype)
    out = _sparse(one, indices, values, is_coalesced=False)
    if not call.name.endswith("_"):
        return out
    one.data = out
    return one


def mask(call: Call) -> Any:
    """Rows that the mask names: gathered, then multiplied by its ones [mask]."""
    x, like = call.args[:2]
    indices, values = like._indices(), like._values()
    call.scratch(x.dtype.itemsize, "one")
    call.scratch(values.numel() * x.dtype.itemsize, "gathered rows")
    kept = call.empty(indices.size(), dtype=indices.dtype)
    made = call.empty(values.size(), dtype=x.dtype)
    return _sparse(like, kept, made, is_coalesced=like.is_coalesced())


def _sparse(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, *, is_coalesced: bool) -> torch.Tensor:
    """A sparse tensor of those parts."""
    out: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        like.sparse_dim(), like.dense_dim(), like.size(), indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device="meta",
    )
    return out._coalesced_(is_coalesced)


RULES: Final[Mapping[str, Rule]] = {
    "aten._coalesce": coalesce,
    "aten.add.Tensor": add,
    "aten.add_.Tensor": add,
    "aten.clone": clone,
    "aten.sparse_mask": mask,
}
PLAIN: Final = frozenset({
    "aten._coalesced_", "aten._sparse_coo_tensor_with_dims", "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten.is_coalesced",
})
