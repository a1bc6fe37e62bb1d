"""Operators that are a chain of others: their own kernel runs, and each operator within is seen alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule

COMPOSITE: Final = torch._C.DispatchKey.CompositeExplicitAutograd


def inside(call: Call) -> Any:
    """The operator's device-independent kernel, which CUDA runs too, seen from within."""
    return call.apart(COMPOSITE)


OPERATORS: Final = (
    "_euclidean_dist", "_safe_softmax", "_unsafe_index.Tensor", "_unsafe_index_put", "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate", "affine_grid_generator", "binary_cross_entropy_with_logits",
    "block_diag", "dist", "embedding", "linalg_lstsq", "masked_scatter_backward",
    "mvlgamma", "norm.Scalar", "norm.ScalarOpt_dtype", "put", "rot90", "soft_margin_loss",
)
"""Registered for every device at once in native_functions.yaml (CompositeExplicitAutograd)."""

RULES: Final[Mapping[str, Rule]] = {f"aten.{name}": inside for name in OPERATORS}
PLAIN: Final = frozenset[str]()
