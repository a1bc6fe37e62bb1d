"""Gathering and scattering: sorted indices and partial rows of what backward sums; masks, sparse gradients.

Truth values as indices: torch turns them into coordinates first, which live until the operator returns. Sparse
gradients (`nn.Embedding(sparse=True)`) are indices int64 and values, a block each. How many rows are distinct only
the data knows: all, up to the number there are, which is the most.

[expand] pytorch aten/src/ATen/native/IndexingUtils.h `expandTensors`
[embedding] pytorch aten/src/ATen/native/cuda/Embedding.cu `embedding_dense_backward_cuda`,
EmbeddingBackwardKernel.cu `embedding_backward_cuda_kernel`
[bag] pytorch aten/src/ATen/native/cuda/EmbeddingBag.cu: `_embedding_bag_cuda`, `embedding_bag_backward_cuda_sum_avg`;
aten/src/ATen/native/EmbeddingBag.cpp `_embedding_bag_backward`
[put] pytorch aten/src/ATen/native/cuda/Indexing.cu `index_put_with_sort_kernel`, `computeLinearIndex`
[advanced] pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp: `_index_put_impl_`, `index_put`
[coalesce] pytorch aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu `_coalesce_sparse_cuda`
[math] pytorch aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu: `add_out_dense_sparse_cuda`,
`add_out_sparse_cuda`
[mask] pytorch aten/src/ATen/native/sparse/SparseTensor.cpp `sparse_mask`, SparseTensorMath.cpp
`_mul_dense_sparse_out`: the same operators in the same order are seen on the CPU
[accumulate] pytorch torch/csrc/autograd/functions/accumulate_grad.h: a sparse gradient that nobody else holds becomes
the parameter's without a copy
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules import engine
from vramcast.tracing.rules.layouts import INT64, accumulator, contiguous_copy, num_bytes
from vramcast.tracing.rules.sorting import radix_sort_bytes, scan_bytes, unique_by_key_bytes

MASKS: Final = frozenset({torch.bool, torch.uint8})
COORDINATES: Final = "coordinates of a mask"


def is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in MASKS


def masks_among(indices: Iterable[Any]) -> list[torch.Tensor]:
    return [index for index in indices if is_mask(index)]


def coordinates_bytes(mask: torch.Tensor, count: int) -> int:
    """An integer a dimension for each of the elements that a mask chooses [bytes]. Source: [expand]"""
    return INT64 * mask.dim() * count


def check_masks(tensor: torch.Tensor, indices: Iterable[Any]) -> None:
    """Raises: IndexError, in torch's words, for a mask that is not as large as what it chooses from"""
    dim = 0
    for index in indices:
        if not is_mask(index):
            dim += 1
            continue
        for each in range(index.dim()):
            if dim + each >= tensor.dim() or index.size(each) != tensor.size(dim + each):
                raise IndexError(
                    f"The shape of the mask {list(index.size())} at index {each} does not match the shape of the "
                    f"indexed tensor {list(tensor.size())} at index {dim + each}"
                )
        dim += index.dim()


FEW_INDICES: Final = 3072  # up to so many one kernel adds rows where they belong, without sorting [embedding]
ROWS_A_THREAD: Final = 10  # NROWS_PER_THREAD
MAX: Final = 2  # of a bag's modes: sum, mean, maximum


def embedding_backward(call: Call) -> Any:
    """The weight's gradient: indices are sorted, rows summed in parts of ten."""
    grad, indices, rows = (call.arg(index, "") for index in range(3))
    contiguous_copy(call, indices)
    contiguous_copy(call, grad)
    counts = bool(call.arg(4, "scale_grad_by_freq"))
    if indices.numel() <= FEW_INDICES and not counts:
        return call.empty((rows, grad.size(-1)), dtype=grad.dtype)
    return _sums_of_rows(call, grad, indices, rows, counts=counts)


def _sums_of_rows(call: Call, grad: torch.Tensor, indices: torch.Tensor, rows: int, *, counts: bool) -> torch.Tensor:
    count, width, index = indices.numel(), grad.size(-1), indices.dtype.itemsize
    call.scratch(count * index, "sorted indices")
    call.scratch(count * index, "order of indices")
    if counts:
        call.scratch(count * index, "counts of indices")
    numbers = call.scratch(count * index, "positions")
    bits = max(1, (rows - 1).bit_length())
    sort = call.scratch(radix_sort_bytes(count, key=index, value=index, bits=bits, sm=call.device.sm), "radix sort")
    call.release(sort)
    call.release(numbers)
    out = call.empty((rows, width), dtype=grad.dtype)
    _segments(call, count, rows, index)
    segments = min(count, rows)
    parts = count // ROWS_A_THREAD + segments
    call.scratch(parts * index, "starts of parts")
    call.scratch(parts * width * accumulator(grad.dtype).itemsize, "sums of parts")
    return out


def embedding_bag(call: Call) -> Any:
    """Sums, the bag of every index, how many each bag has, and where maxima came from [bag `_embedding_bag_cuda`]."""
    weight, indices, offsets = call.args[:3]
    mode, has_last = call.arg(4, "mode", 0), call.arg(7, "include_last_offset", False)
    bags = offsets.size(0) - bool(has_last)
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    for given in (indices, offsets):
        if given.dtype is not dtype:
            call.scratch(given.numel() * dtype.itemsize, "converted indices")
    sizes = call.empty(offsets.size(), dtype=dtype)
    bag_of_index = call.empty((indices.size(0),), dtype=dtype)
    out = call.empty((bags, weight.size(1)), dtype=weight.dtype)
    largest = call.empty((bags, weight.size(1)) if mode == MAX else (0,), dtype=dtype)
    return out, bag_of_index, sizes, largest


def bag_backward(call: Call, bags: torch.Tensor | None = None) -> Any:
    """Rows of a sparse gradient, or sums of rows [bag `_embedding_bag_backward`]."""
    grad, indices, offsets, told, sizes, largest, rows, counts, mode, is_sparse, weights, *rest = call.args
    bags = told if bags is None else bags
    with call.simulation:
        if is_sparse:
            return torch.ops.aten._embedding_bag_sparse_backward(
                grad, indices, offsets, bags, sizes, rows, counts, mode, weights, *rest
            )
        return torch.ops.aten._embedding_bag_dense_backward(
            grad, indices, bags, sizes, largest, rows, counts, mode, weights, *rest
        )


def embedding_bag_backward(call: Call) -> Any:
    """Sums and means sort the indices as embeddings do, however few there are; maxima are added where they belong."""
    grad, indices, _, _, _, rows, counts, mode = call.args[:8]
    contiguous_copy(call, grad)
    if mode == MAX or not indices.numel():
        return call.empty((rows, grad.size(1)), dtype=grad.dtype)
    return _sums_of_rows(call, grad, indices, rows, counts=counts)


def _segments(call: Call, count: int, rows: int, index: int) -> None:
    """Rows of equal indices, and how many parts each has."""
    sm = call.device.sm
    call.scratch(count * index, "starts of segments")
    call.scratch(INT64, "number of segments")
    keys = call.scratch(count * index, "distinct indices")
    unique = call.scratch(unique_by_key_bytes(count, sm), "unique by key")
    call.release(unique)
    call.release(keys)
    segments = min(count, rows)
    call.scratch(segments * index, "parts a segment")
    call.scratch(segments * index, "first part of segments")
    scan = call.scratch(scan_bytes(segments, index, sm, f"int{8 * index}"), "prefix sum")
    call.release(scan)
    call.scratch(INT64, "number of parts")


def index_put(call: Call) -> Any:
    """`x[indices] += values` sorts the linear indices; without accumulation nothing is allocated but casts of them."""
    out = call.run()
    put(call)
    return out


def put(call: Call) -> None:
    """What writing to indices takes on the way [put]."""
    x, indices, values = (call.arg(index, "") for index in range(3))
    accumulates = call.arg(3, "accumulate", False)
    is_fill = not accumulates and values.numel() == 1  # where masks are filled instead
    if is_fill or all(index is None for index in indices):
        return
    sizes, covered = _coordinates(call, x, indices, values)
    if not accumulates and not torch.are_deterministic_algorithms_enabled():
        return
    count = prod(torch.broadcast_shapes(*sizes))
    slices = x.numel() // max(1, covered)
    call.scratch(count * INT64, "linear indices")
    if not values.is_contiguous() or values.numel() < count * slices:
        call.scratch(count * slices * values.dtype.itemsize, "expanded values")
    if not x.is_contiguous():
        call.scratch(num_bytes(x), "contiguous copy")
    call.scratch(count * INT64, "sorted indices")
    call.scratch(count * INT64, "order of indices")
    positions = call.scratch(count * INT64, "positions")
    bits = max(1, (x.numel() // max(1, slices) - 1).bit_length())
    sort = call.scratch(radix_sort_bytes(count, key=INT64, value=INT64, bits=bits, sm=call.device.sm), "radix sort")
    call.release(sort)
    call.release(positions)


def _coordinates(
    call: Call, x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> tuple[list[torch.Size], int]:
    """Sizes of the indices, masks turned into coordinates, and how many elements of `x` they tell apart."""
    sizes: list[torch.Size] = []
    dim, covered = 0, 1
    for index in indices:
        if index is None:
            dim += 1
            continue
        width = index.dim() if is_mask(index) else 1
        covered *= prod(x.size()[dim : dim + width])
        dim += width
        if is_mask(index):
            count = chosen(call, x, index, values)
            call.scratch(coordinates_bytes(index, count), COORDINATES)
            sizes.append(torch.Size([count]))
        else:
            sizes.append(index.size())
    return sizes, covered


def chosen(call: Call, x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> int:
    """How many elements a mask chooses: as it holds, else as many as there are values."""
    known = call.simulation.values.of(mask)
    if known is not None:
        return int(known.count_nonzero())
    rows, rest = divmod(values.numel() * mask.numel(), max(1, x.numel()))
    return rows if rows and not rest else mask.numel()


def masked_scatter(call: Call) -> Any:
    """Where the mask holds the next value goes: a prefix sum of it [IndexKernel.cu `masked_scatter_cuda_impl`]."""
    out = call.run()
    x, mask, source = call.args[:3]
    count = x.numel()
    call.scratch(count * INT64, "prefix sum of the mask")
    contiguous_copy(call, source)
    call.scratch(scan_bytes(count, INT64, call.device.sm), "prefix sum")
    if mask.numel() != count:
        call.scratch(count, "expanded mask")
    return out


ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
DISTINCT: Final = "all rows of a sparse gradient are distinct"


def clone_sparse(call: Call) -> Any:
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
    for what in ("order of indices", "starts of rows"):
        call.scratch(count * INT64, what)
    # A comparison of its own makes thrust merge: keys and places are copied once more.
    call.release(call.scratch(2 * count * INT64, "merge sort"))
    call.release(call.scratch(unique_by_key_bytes(count, call.device.sm), "unique by key"))
    made = call.empty((rows, *values.size()[1:]), dtype=values.dtype)
    kept = flat[:rows].view(1, rows) if dims == 1 else call.empty((indices.size(0), rows), dtype=torch.int64)
    return _sparse(x, kept, made, is_coalesced=True)


def add_sparse(call: Call) -> Any:
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


def sparse_mask(call: Call) -> Any:
    """Rows that the mask names: gathered, then multiplied by its ones [mask]."""
    x, like = call.args[:2]
    indices, values = like._indices(), like._values()
    call.scratch(x.dtype.itemsize, "one")
    call.scratch(values.numel() * x.dtype.itemsize, "gathered rows")
    kept = call.empty(indices.size(), dtype=indices.dtype)
    made = call.empty(values.size(), dtype=x.dtype)
    return _sparse(like, kept, made, is_coalesced=like.is_coalesced())


def _sparse(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, *, is_coalesced: bool) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        like.sparse_dim(), like.dense_dim(), like.size(), indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device="meta",
    )
    return out._coalesced_(is_coalesced)


RULES: Final[Mapping[str, Rule]] = {
    "aten._index_put_impl_": index_put,
    "aten._embedding_bag": embedding_bag,
    "aten._embedding_bag_backward": bag_backward,
    "aten._embedding_bag_dense_backward": embedding_bag_backward,
    "aten._embedding_bag_forward_only": embedding_bag,
    "aten.embedding_dense_backward": embedding_backward,
    "aten.index_put_": index_put,
    "aten.masked_scatter_": masked_scatter,
    "aten._coalesce": coalesce,
    "aten.add.Tensor": add_sparse,
    "aten.add_.Tensor": add_sparse,
    "aten.clone": clone_sparse,
    "aten.sparse_mask": sparse_mask,
}


PLAIN: Final = frozenset({
    "aten._embedding_bag_per_sample_weights_backward",
    "aten.as_strided_scatter", "aten.diagonal_backward", "aten.diagonal_scatter", "aten.embedding_renorm_",
    "aten.gather", "aten.index", "aten.index_add", "aten.index_add_", "aten.index_copy", "aten.index_copy_",
    "aten.index_fill", "aten.index_fill_", "aten.index_select", "aten.masked_fill", "aten.masked_fill_",
    "aten.scatter", "aten.scatter_", "aten.scatter_add", "aten.scatter_add_", "aten.select_backward",
    "aten.select_scatter", "aten.slice_backward", "aten.slice_scatter", "aten.take",
})|frozenset({
    "aten._coalesced_", "aten._sparse_coo_tensor_with_dims", "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten.is_coalesced",
})
