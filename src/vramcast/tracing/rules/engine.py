"""What autograd's engine and formulas do otherwise for tensors without data, put back to what they do on CUDA.

C++ calls a meta tensor "subclass-like" and then keeps away from writing in place. On CUDA the engine adds a second
gradient into the first one's memory where nobody else holds it, and formulas scatter into the zeros they just made.
[steal] torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace; [like] aten/src/ATen/TensorSubclassLikeUtils.h
[formulas] torch/csrc/autograd/FunctionsManual.cpp: value_selecting_reduction_backward, index_backward, take_backward,
scatter_reduce_backward, index_reduce_backward, cholesky_backward, linalg_lu_backward, pinv_backward,
svd_backward;
aten/src/ATen/native/TensorAdvancedIndexing.cpp: gather_backward, index_select_backward, masked_select_backward
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
    """Of the node that autograd evaluates now."""
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


RULES: Final[Mapping[str, Rule]] = {
    "aten.add.Tensor": accumulate,
    "aten.scatter.src": into_new_zeros,
    "aten.scatter_add.default": into_new_zeros,
    "aten.index_add.default": into_new_zeros,
    "aten.masked_scatter.default": into_new_zeros,
    "aten.index_put.default": accumulate_into_new_zeros,
    "aten.put.default": accumulate_into_new_zeros,
}
PLAIN: Final[frozenset[str]] = frozenset()
