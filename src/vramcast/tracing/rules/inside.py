"""Operators that are a chain of others: their own kernel runs, and each operator within is seen alone.

[xformers] xformers xformers/ops/fmha/flash.py `_flash_fwd`, `_flash_bwd`, v0.0.35
[chunked] torch/nn/modules/linear_cross_entropy.py
[count] pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp `count_nonzero_cuda`
[apex] apex apex/normalization/fused_layer_norm.py, commit 6424da3b
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule

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


def on_cuda(call: Call) -> Any:
    """Python that a library registers for CUDA alone [xformers]."""
    return call.apart(torch._C.DispatchKey.CUDA)


OPERATORS: Final = (
    "_euclidean_dist", "_is_all_true", "_is_any_true", "_safe_softmax", "_trilinear", "_unsafe_index.Tensor",
    "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "affine_grid_generator",
    "binary_cross_entropy_with_logits", "block_diag", "count_nonzero.default", "dist", "embedding", "ldexp.Tensor",
    "masked_scatter_backward", "mvlgamma", "norm.Scalar", "norm.ScalarOpt_dtype", "put", "rot90",
    "rrelu_with_noise_backward", "soft_margin_loss",
)
"""Registered for every device at once in native_functions.yaml (CompositeExplicitAutograd)."""

WITH_VIEWS: Final = ("_trilinear", "linalg_pinv.atol_rtol_tensor")
"""The same, of operators whose kernel takes views (CompositeExplicitAutogradNonFunctional)."""
TORCH_NN: Final = ("_linear_cross_entropy_batch_chunked", "_linear_cross_entropy_batch_chunked_no_reduction")
"""Python that torch registers for every device [chunked]."""

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
    "aten.count_nonzero.dim_IntList": counted,
    "xformers_flash.flash_bwd": on_cuda,
    "xformers_flash.flash_fwd": on_cuda,
}
PLAIN: Final = frozenset[str]()
