"""What gathering and scattering take on the CPU: coordinates of masks, sorted indices of bags, copies of transposes.

[put] pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp `_index_put_impl_`, IndexingUtils.h `expandTensors`
[bag] pytorch aten/src/ATen/native/EmbeddingBag.cpp: `_embedding_bag_cpu_impl_out`, `make_bag_size_out`,
`make_offset2bag_out`, `_embedding_bag_dense_backward_cpu`
[columns] pytorch aten/src/ATen/native/Col2Im.cpp `col2im_out_cpu_template`, Im2Col.cpp
[copy] pytorch aten/src/ATen/native/Copy.cpp: `copy_transpose_valid`, `copy_same_type_transpose_`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.masks import COORDINATES, coordinates_bytes, masks_among
from vramcast.tracing.rules import blas, indexing, sparse
from vramcast.tracing.rules.layouts import num_bytes

INT64: Final = 8
SUM, MEAN, MAX = range(3)
TILE: Final = 60
"""Rows and columns that a transposed matrix is copied by [copy]."""


def index_put(call: Call) -> Any:
    """Masks are turned into coordinates first [put]."""
    x, indices, values = (call.arg(index, "") for index in range(3))
    is_fill = not call.arg(3, "accumulate", False) and values.numel() == 1  # where masks are filled instead
    for mask in () if is_fill else masks_among(indices):
        call.scratch(coordinates_bytes(mask, indexing.chosen(call, x, mask, values)), COORDINATES)
    return call.run()


def embedding_bag(call: Call) -> Any:
    """Sums, the bag of every index where it is asked for, how many each bag has, where maxima came from [bag]."""
    weight, indices, offsets = call.args[:3]
    mode, has_last = call.arg(4, "mode", SUM), call.arg(7, "include_last_offset", False)
    bags = offsets.size(0) - bool(has_last)
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    for given in (indices, offsets):
        if given.dtype is not dtype:
            call.scratch(given.numel() * dtype.itemsize, "converted indices")
    out = call.empty((bags, weight.size(1)), dtype=weight.dtype)
    bag_of_index = torch.empty((0,), dtype=dtype, device="meta")
    if mode != SUM or call.arg(6, "per_sample_weights") is not None:
        bag_of_index = call.empty((indices.size(0) + 1,), dtype=dtype)
        call.release(call.scratch(num_bytes(bag_of_index), "running sum"))
        bag_of_index = bag_of_index[:-1]
    sizes = call.empty((bags,), dtype=dtype)
    largest = call.empty((bags, weight.size(1)) if mode == MAX else (bags,), dtype=dtype)
    return out, bag_of_index, sizes, largest


def bag_backward(call: Call) -> Any:
    """The bag of every index, where forward did not tell; then rows or sums of rows [bag]."""
    indices, bags = call.args[1], call.args[3]
    if not bags.numel() and call.args[8] != MAX:
        count = indices.numel() + 1
        call.scratch(count * INT64, "bag of every index")
        call.release(call.scratch(count * INT64, "running sum"))
        bags = torch.empty_like(indices, device="meta")
    return indexing.bag_backward(call, bags)


def dense_bag_backward(call: Call) -> Any:
    """Zeros; of sums and means the sorted indices, of maxima the rows they came from [bag]."""
    grad, indices, _, _, largest, rows, _, mode = call.args[:8]
    out = call.empty((rows, grad.size(1)), dtype=grad.dtype)
    if mode == MAX:
        places = call.scratch(largest.size(0) * INT64, "bags that hold something")
        call.scratch(num_bytes(largest), "maxima's rows")
        call.release(places)
        call.scratch(largest.size(0) * INT64, "bags that hold something")
        call.scratch(num_bytes(grad), "their gradients")
        return out
    for what in ("sorted indices", "order of indices", "bags in that order"):
        call.scratch(indices.numel() * INT64, what)
    return out


def columns_to_image(call: Call) -> Any:
    """The image, made as large as the columns and resized: their memory stays behind it [columns]."""
    columns, size = call.args[0], call.func(*call.args).size()
    if size.numel() > columns.numel():
        call.scratch(num_bytes(columns), "columns")
        return call.run()
    return call.empty(columns.size(), dtype=columns.dtype).resize_(size)


def image_to_columns(call: Call) -> Any:
    """A second copy of the image, blank [columns]."""
    call.scratch(num_bytes(call.args[0]), "image")
    return call.run()


def copy(call: Call) -> Any:
    """A transposed matrix goes through a tile [copy]."""
    if call.args[0].is_sparse:
        return sparse.clone(call)
    out = call.run()
    source = call.args[1] if call.name == "aten.copy_" else call.args[0]
    if not source.is_sparse:
        through_tile(call, out, source)
    return out


def through_tile(call: Call, out: torch.Tensor, source: torch.Tensor) -> None:
    """What copying one tensor into another takes [copy]."""
    is_transposed = source.dim() == 2 and source.stride() == (1, source.size(0))
    is_alike = out.dtype is source.dtype and out.size() == source.size()
    if out.is_contiguous() and is_transposed and is_alike and out.numel() >= TILE * TILE:
        call.release(call.scratch(TILE * TILE * out.itemsize, "tile of a transpose"))


RULES: Final[Mapping[str, Rule]] = {
    "aten._embedding_bag": embedding_bag,
    "aten._embedding_bag_backward": bag_backward,
    "aten._embedding_bag_dense_backward": dense_bag_backward,
    "aten._embedding_bag_forward_only": embedding_bag,
    "aten._grouped_mm": blas.grouped_mm,
    "aten._index_put_impl_": index_put,
    "aten.clone": copy,
    "aten.col2im": columns_to_image,
    "aten.copy_": copy,
    "aten.im2col": image_to_columns,
    "aten.index_put_": index_put,
}
