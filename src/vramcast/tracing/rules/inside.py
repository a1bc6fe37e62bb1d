"""Operators that are a chain of others: their own kernel runs, and each operator within is seen alone.

[xformers] xformers xformers/ops/fmha/flash.py `_flash_fwd`, `_flash_bwd`, v0.0.35
[chunked] torch/nn/modules/linear_cross_entropy.py
[count] pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp `count_nonzero_cuda`
[roll] pytorch aten/src/ATen/native/TensorTransformations.h `roll_common`, cuda/TensorTransformations.cu `roll_cuda`
[mean] pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp `scatter_reduce_two`, `index_reduce_func_impl`,
cuda/Indexing.cu `index_reduce_cuda_out`
[isin] pytorch aten/src/ATen/native/TensorCompare.cpp `isin_Tensor_Tensor_out`, cuda/TensorCompare.cpp
[apex] apex apex/normalization/fused_layer_norm.py, commit 6424da3b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes

COMPOSITE: Final = torch._C.DispatchKey.CompositeExplicitAutograd


def inside(call: Call) -> Any:
    """The operator's device-independent kernel, which CUDA runs too, seen from within."""
    return call.apart(COMPOSITE)


def with_views(call: Call) -> Any:
    """The same of operators whose kernel takes views."""
    return call.apart(torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional)


def counted(call: Call) -> Any:
    """A truth value of every element, then their sum [count]."""
    if call.device.is_cpu:
        return call.run()
    with call.simulation:
        return (call.args[0] != 0).sum(call.args[1])


def rolled(call: Call) -> Any:
    """Dimension by dimension, the results before the last beside it; CUDA reads a contiguous tensor [roll]."""
    x, shifts, dims = call.args[0], call.args[1], call.arg(2, "dims", ())
    if len(dims) == 1:
        if not call.device.is_cpu:
            contiguous_copy(call, x)
        return call.empty(x.size(), dtype=x.dtype)
    with call.simulation:
        if not dims:
            return torch.roll(x.contiguous().view(-1), shifts, (0,)).view(x.size())
        return torch.roll(torch.roll(x, shifts[:1], dims[:1]), shifts[1:], dims[1:])


def averaged(call: Call) -> Any:
    """A mean counts what comes to each place: ones of the source's size, their sums, which of these are zero [mean]."""
    out = call.run()
    source, reduction = call.args[3:5]
    if reduction == "mean":
        parts = [(num_bytes(source), "ones"), (num_bytes(out), "counts")]
        is_indexed = "index_reduce" in call.name
        blocks = [call.scratch(*part) for part in (reversed(parts) if is_indexed else parts)]
        if is_indexed:
            call.release(blocks.pop())
        call.scratch(out.numel(), "counts of zero")
    return out


def is_among(call: Call) -> Any:
    """Every element beside each of a few that are looked for; of many, sorted, nobody has read what it takes [isin]."""
    out = call.run()
    elements, wanted = call.args[:2]
    if not call.device.is_cpu and isinstance(elements, torch.Tensor) and isinstance(wanted, torch.Tensor):
        if wanted.numel() < int(10 * elements.numel() ** 0.145):
            call.scratch(elements.numel() * wanted.numel(), "comparisons")
            call.scratch(elements.numel(), "any of them")
        else:
            call.is_read = False
    return out


def on_cuda(call: Call) -> Any:
    """Python that a library registers for CUDA alone [xformers]."""
    return call.apart(torch._C.DispatchKey.CUDA)


OPERATORS: Final = (
    "_euclidean_dist", "_is_all_true", "_is_any_true", "_safe_softmax", "_trilinear", "_unsafe_index.Tensor",
    "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "affine_grid_generator",
    "bartlett_window", "binary_cross_entropy_with_logits", "blackman_window", "block_diag", "count_nonzero.default",
    "dist", "embedding", "hamming_window", "hann_window", "ldexp.Tensor", "masked_scatter_backward", "mvlgamma",
    "norm.Scalar", "norm.ScalarOpt_dtype", "put", "rot90", "rrelu_with_noise_backward", "soft_margin_loss",
)
"""Registered for every device at once in native_functions.yaml (CompositeExplicitAutograd)."""

WITH_VIEWS: Final = ("_trilinear", "linalg_pinv.atol_rtol_tensor")
"""The same, of operators whose kernel takes views (CompositeExplicitAutogradNonFunctional)."""
TORCH_NN: Final = ("_linear_cross_entropy_batch_chunked", "_linear_cross_entropy_batch_chunked_no_reduction")
"""Python that torch registers for every device [chunked]."""

AVERAGES: Final = tuple(f"aten.{kind}_reduce{way}" for kind in ("index", "scatter") for way in ("", "_"))

APEX: Final = tuple(
    f"fused_{kind}_norm{affine}_{way}"
    for kind in ("layer", "rms") for affine in ("", "_affine") for way in ("bwd", "fwd")
)
"""Their Python calls compiled functions: see `extensions.apex` [apex]."""

RULES: Final[Mapping[str, Rule]] = {
    **{f"aten.{name}": inside for name in OPERATORS},
    **{f"aten.{name}": with_views for name in WITH_VIEWS},
    **{f"torch_nn.{name}": inside for name in TORCH_NN},
    **{f"apex.{name}": inside for name in APEX},
    **dict.fromkeys(AVERAGES, averaged),
    "aten.isin": is_among,
    "aten.roll": rolled,
    "aten.count_nonzero.dim_IntList": counted,
    "xformers_flash.flash_bwd": on_cuda,
    "xformers_flash.flash_fwd": on_cuda,
}
PLAIN: Final = frozenset[str]()
