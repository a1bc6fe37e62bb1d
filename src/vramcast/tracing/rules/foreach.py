"""Lists of tensors at once, and fused optimizers.

[norm] pytorch aten/src/ATen/native/cuda/ForeachReduceOp.cu `foreach_tensor_norm_cuda`: partial norms of chunks
[fused] pytorch aten/src/ATen/native/cuda/Fused{Adam,AdamW,Sgd,Adagrad}Kernel.cu: nothing is allocated
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import accumulator
from vramcast.units import ceil_div

CHUNK: Final = 65_536  # elements: pytorch aten/src/ATen/native/cuda/MultiTensorApply.cuh
FAST_ORDERS: Final = frozenset({1, 2, float("inf")})


def partial(call: Call) -> Any:
    """Norms or maxima of chunks of every tensor; as many chunks for each as the longest has."""
    tensors = call.args[0]
    dtype = tensors[0].dtype
    order = call.arg(1, "ord", 2) if "norm" in call.name else 2
    fast = order in FAST_ORDERS and dtype.is_floating_point and all(tensor.dtype is dtype for tensor in tensors)
    if fast and not call.device.is_cpu:
        wanted = call.arg(2, "dtype") or dtype
        chunks = max(ceil_div(tensor.numel(), CHUNK) for tensor in tensors)
        call.scratch(len(tensors) * chunks * accumulator(wanted).itemsize, "norms of chunks")
    return call.run()


def fused(call: Call) -> None:
    """An optimizer's step in place."""


RULES: Final[Mapping[str, Rule]] = {
    "aten._foreach_max": partial,
    "aten._foreach_norm": partial,
    "aten._foreach_powsum": partial,
    "aten._fused_adagrad_": fused,
    "aten._fused_adam_": fused,
    "aten._fused_adamw_": fused,
    "aten._fused_sgd_": fused,
}
UNARY: Final = (
    "abs acos asin atan ceil clone copy cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
)
BINARY: Final = "add addcdiv addcmul clamp_max clamp_min div lerp maximum minimum mul pow sub"
PLAIN: Final = frozenset(
    f"aten._foreach_{name}{suffix}" for name in (*UNARY.split(), *BINARY.split()) for suffix in ("", "_")
) | {"aten._amp_foreach_non_finite_check_and_unscale_", "aten._amp_update_scale_"}
