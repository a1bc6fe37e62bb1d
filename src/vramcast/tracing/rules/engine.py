"""What autograd's engine and formulas do otherwise for tensors without data, put back to what they do on CUDA.

C++ calls a meta tensor "subclass-like" and then keeps away from writing in place. On CUDA the engine adds a second
gradient into the first one's memory where nobody else holds it, and formulas scatter into the zeros they just made.
Operators that are a chain of others run their own kernel, and each operator within is seen alone.

[steal] torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace; [like] aten/src/ATen/TensorSubclassLikeUtils.h
[formulas] torch/csrc/autograd/FunctionsManual.cpp: value_selecting_reduction_backward, index_backward, take_backward,
scatter_reduce_backward, index_reduce_backward, cholesky_backward, linalg_lu_backward, pinv_backward,
svd_backward;
aten/src/ATen/native/TensorAdvancedIndexing.cpp: gather_backward, index_select_backward, masked_select_backward
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

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes

_ENGINE: Final = _engine_run_backward.__code__
_TRACING: Final = str(Path(__file__).parents[1])
_WRAPPERS: Final = frozenset({torch._ops.__file__, torch._compile.__file__})
"""Files whose functions stand between the engine and a dispatch mode: calls of operators from Python, autocast's."""

ADDING_FORMULAS: Final = frozenset({
    "VarMeanBackward0", "StdMeanBackward0", "Atan2Backward0", "CumprodBackward0", "ProdBackward1",
    "LinalgCholeskyExBackward0", "LinalgLstsqBackward0", "LinalgLuBackward0", "LinalgLuFactorExBackward0",
    "LinalgPinvBackward0", "LinalgSvdBackward0",
})
"""Formulas that add two tensors of their own: those are new, whoever holds them."""
COUNTING_FORMULAS: Final = frozenset({"IndexReduceBackward0", "ScatterReduceBackward0"})
"""Formulas that add counts to a tensor of their own out of place."""


class _Counts(NamedTuple):
    """How many C++ references a tensor and its storage have."""

    tensor: int
    storage: int


def called_by_engine() -> bool:
    """Whether the operator was called by autograd's C++: the engine or a formula, not by a backward in Python."""
    if torch._C._current_graph_task_id() == -1:
        return False
    frame = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code is _ENGINE


@cache
def _is_between(file: str) -> bool:
    return file.startswith(_TRACING) or file in _WRAPPERS


def _counts(tensor: torch.Tensor) -> _Counts:
    return _Counts(tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


@cache
def _counts_of_unshared() -> _Counts:
    """The counts, seen from a dispatch mode, of a gradient that nobody but the engine's buffer holds."""
    with ThreadPoolExecutor(1) as elsewhere:  # below autograd, where rules run, this thread records no graph
        return elsewhere.submit(_watch_one_accumulation).result()


def _watch_one_accumulation() -> _Counts:
    seen: list[_Counts] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor:
                seen.append(_counts(args[0]))
            return func(*args, **(kwargs or {}))

    doubled = torch.empty((), device="meta", requires_grad=True) * 2
    branches = doubled.exp() + doubled.sin()  # whose gradients are two new tensors
    with Watch():
        branches.backward()
    return seen[0]


def accumulate(call: Call) -> Any:
    """Gradients that meet in front of a node: added in place if the engine alone holds the first [steal]."""
    if not called_by_engine():
        return call.run()
    first = call.args[0]
    is_held_once = all(
        count <= unshared for count, unshared in zip(_counts(first), _counts_of_unshared(), strict=True)
    )
    is_stealable = (
        is_held_once and not torch.is_grad_enabled() and first.dtype == torch.result_type(*call.args[:2])
        and (first.is_contiguous() or is_non_overlapping_and_dense_or_false(first))
    )
    if not is_stealable or _node_name() in ADDING_FORMULAS:
        return call.run()
    return first


def _node_name() -> str:
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


def into_new_zeros(call: Call) -> Any:
    """A formula fills zeros that it just made: on CUDA in place [formulas]."""
    if not called_by_engine() or _node_name() in COUNTING_FORMULAS:
        return call.run()
    packet = getattr(torch.ops.aten, call.func.overloadpacket.__name__ + "_")
    with call.simulation:
        return getattr(packet, call.func._overloadname)(*call.args, **call.kwargs)


def accumulate_into_new_zeros(call: Call) -> Any:
    """Indexed sums into new zeros. Without accumulation the tensor is the gradient itself, which is kept."""
    zeros, indices, values = call.args[:3]
    if not (called_by_engine() and call.arg(3, "accumulate", False)):
        return call.run()
    with call.simulation:
        if call.func is torch.ops.aten.put.default:
            return torch.ops.aten.put_(zeros, indices, values, True)
        return torch.ops.aten._index_put_impl_(zeros, indices, values, True, True)


COMPOSITE: Final = torch._C.DispatchKey.CompositeExplicitAutograd


def inside(call: Call) -> Any:
    """The operator's device-independent kernel, which CUDA runs too, seen from within."""
    return call.apart(COMPOSITE)


def with_views(call: Call) -> Any:
    """The same of operators whose kernel takes views."""
    return call.apart(torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional)


def counted(call: Call) -> Any:
    """A truth value of every element, then their sum [count]."""
    with call.simulation:
        return (call.args[0] != 0).sum(call.args[1])


def rolled(call: Call) -> Any:
    """Dimension by dimension, the results before the last beside it; CUDA reads a contiguous tensor [roll]."""
    x, shifts, dims = call.args[0], call.args[1], call.arg(2, "dims", ())
    if len(dims) == 1:
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


CHAINS: Final = (
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
    "aten.add.Tensor": accumulate,
    "aten.scatter.src": into_new_zeros,
    "aten.scatter_add.default": into_new_zeros,
    "aten.index_add.default": into_new_zeros,
    "aten.masked_scatter.default": into_new_zeros,
    "aten.index_put.default": accumulate_into_new_zeros,
    "aten.put.default": accumulate_into_new_zeros,
    **{f"aten.{name}": inside for name in CHAINS},
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
