"""Operators that walk over elements: most allocate their outputs and nothing else on CUDA.

Random kernels keep their counter on the host, so outputs are all they allocate.

[loops] pytorch aten/src/ATen/native/cuda/Loops.cuh `gpu_kernel`: types are converted while elements are read and
written, so that mixed types need no copies
[factories] pytorch aten/src/ATen/native/cuda/TensorFactories.cu, RangeFactories.cu
[special] pytorch aten/src/ATen/native/cuda/airy_ai.cu, bessel_j0.cu, chebyshev_polynomial_t.cu and the like
[shape] pytorch aten/src/ATen/native/cuda/Shape.cu `cat_out_cuda`, TensorTransformations.cu, TriangularOps.cu
[dropout] pytorch aten/src/ATen/native/cuda/Dropout.cu: `dropout_cuda` makes the mask first, a byte an element
[dist] pytorch aten/src/ATen/native/cuda/DistributionTemplates.h
[randperm] pytorch aten/src/ATen/native/cuda/Randperm.cu: random keys are sorted
[multinomial] pytorch aten/src/ATen/native/Distributions.cpp `multinomial_out`, cuda/MultinomialKernel.cu
[norm] pytorch aten/src/ATen/native/cuda/ForeachReduceOp.cu `foreach_tensor_norm_cuda`: partial norms of chunks
[fused] pytorch aten/src/ATen/native/cuda/Fused{Adam,AdamW,Sgd,Adagrad}Kernel.cu: nothing is allocated
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import accumulator, like, num_bytes
from vramcast.tracing.rules.sorting import radix_sort_bytes
from vramcast.units import ceil_div

UNARY: Final = (
    "abs acos acosh angle asin asinh atan atanh bitwise_not ceil celu clamp clamp_max clamp_min conj_physical cos "
    "cosh deg2rad digamma elu erf erfc erfinv exp exp2 expm1 fill floor frac frexp gelu hardshrink hardsigmoid "
    "hardswish hardtanh i0 isfinite isinf isnan isneginf isposinf leaky_relu lgamma log log10 log1p log2 "
    "log_sigmoid logical_not logit mish nan_to_num neg polygamma positive prelu _prelu_kernel rad2deg reciprocal "
    "relu relu6 renorm round rsqrt sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink special_entr "
    "special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri sqrt square tan tanh threshold "
    "trunc view_as_complex view_as_real zero"
)
BINARY: Final = (
    "add addcdiv addcmul atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor complex "
    "copysign div eq equal floor_divide fmax fmin fmod gcd ge gt heaviside hypot igamma igammac isclose lcm le lerp "
    "logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul ne nextafter polar pow "
    "remainder rsub special_xlog1py special_zeta sub true_divide where xlogy __lshift__ __rshift__"
)
SPECIAL: Final = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u "
    "chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l legendre_polynomial_p modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
    "modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t "
    "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w "
    "spherical_bessel_j0"
)
"""[special]"""
BACKWARD: Final = (
    "elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logit mish prelu _prelu_kernel sigmoid silu "
    "softplus softshrink tanh threshold"
)
FACTORIES: Final = (
    "arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace new_empty "
    "new_empty_strided new_full new_ones new_zeros ones ones_like range scalar_tensor tril_indices triu_indices "
    "zeros zeros_like"
)
SHAPE: Final = (
    "_stack _unsafe_view alias_copy as_strided_ as_strided_copy cat channel_shuffle clone constant_pad_nd "
    "contiguous copy_ _to_copy cross diag_embed diagonal_copy expand_copy flip glu im2col col2im linalg_cross "
    "narrow_copy permute_copy pixel_shuffle pixel_unshuffle repeat repeat_interleave resize_ resize_as_ "
    "set_ squeeze_copy stack t_copy trace transpose_copy tril triu unbind_copy unfold_backward unfold_copy "
    "unsqueeze_copy view_copy unsafe_chunk pad_sequence reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d native_channel_shuffle split_with_sizes_copy"
)
OTHER: Final = (
    "__ilshift__ __irshift__ _assert_async _assert_scalar _assert_tensor_metadata _conj _conj_physical "
    "_has_compatible_shallow_copy_type _local_scalar_dense _neg_view detach_ is_pinned item lift lift_fresh "
    "record_stream requires_grad_ rrelu_with_noise"
)


def fused(call: Call) -> Any:
    """One kernel on CUDA, which meta tensors would take apart."""
    return call.run()


def dropout(call: Call) -> Any:
    x, p, train = call.arg(0, "input"), call.arg(1, "p"), call.arg(2, "train")
    if train is False or p == 1:
        return call.run()
    mask = like(call, x, dtype=torch.bool)
    return like(call, x), mask


SMALL: Final = 30_000  # numbers up to which the host permutes [randperm]
EXTRA_BITS: Final = log2(3e10)  # of keys, so that collisions are rare


def permutation(call: Call) -> Any:
    """Random keys are sorted with the numbers."""
    out = call.run()
    count, itemsize = out.numel(), out.dtype.itemsize
    if count < SMALL:
        return out
    bits = min(64, ceil(log2(count) + EXTRA_BITS) if count > 1 else 1)
    key = 4 if bits <= 32 else 8
    call.scratch(count * itemsize, "numbers")
    call.scratch(count * key, "random keys")
    call.scratch(count * key, "sorted keys")
    call.scratch(radix_sort_bytes(count, key=key, value=itemsize, bits=bits, sm=call.device.sm), "radix sort")
    return out


def multinomial(call: Call) -> Any:
    """Without replacement, and for one sample: the largest of probabilities over exponential noise."""
    out = call.run()
    x, samples = call.arg(0, "self"), call.arg(1, "num_samples")
    if samples == 1 or not call.arg(2, "replacement", False):
        call.scratch(num_bytes(x), "noise")
    else:
        rows = x.numel() // x.size(-1)
        call.scratch(num_bytes(x), "probabilities")
        call.scratch(num_bytes(x), "prefix sums")
        call.scratch(rows * samples * x.dtype.itemsize, "uniform numbers")
    return out


CHUNK: Final = 65_536  # elements: pytorch aten/src/ATen/native/cuda/MultiTensorApply.cuh
FAST_ORDERS: Final = frozenset({1, 2, float("inf")})


def partial(call: Call) -> Any:
    """Norms or maxima of chunks of every tensor; as many chunks for each as the longest has."""
    tensors = call.args[0]
    dtype = tensors[0].dtype
    order = call.arg(1, "ord", 2) if "norm" in call.name else 2
    fast = order in FAST_ORDERS and dtype.is_floating_point and all(tensor.dtype is dtype for tensor in tensors)
    if fast:
        wanted = call.arg(2, "dtype") or dtype
        chunks = max(ceil_div(tensor.numel(), CHUNK) for tensor in tensors)
        call.scratch(len(tensors) * chunks * accumulator(wanted).itemsize, "norms of chunks")
    return call.run()


def optimizer_step(call: Call) -> None:
    """An optimizer's step in place."""


FOREACH_UNARY: Final = (
    "abs acos asin atan ceil clone copy cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
)
FOREACH_BINARY: Final = "add addcdiv addcmul clamp_max clamp_min div lerp maximum minimum mul pow sub"


RULES: Final[Mapping[str, Rule]] = {
    "aten.mish_backward": fused, "aten.silu_backward": fused,
    "aten.native_dropout": dropout,
    "aten.multinomial": multinomial,
    "aten.randperm": permutation,
    "aten._foreach_max": partial,
    "aten._foreach_norm": partial,
    "aten._foreach_powsum": partial,
    "aten._fused_adagrad_": optimizer_step,
    "aten._fused_adam_": optimizer_step,
    "aten._fused_adamw_": optimizer_step,
    "aten._fused_sgd_": optimizer_step,
}


PLAIN: Final = frozenset(
    f"aten.{name}"
    for names in (
        (f"{name}{suffix}" for name in (*UNARY.split(), *BINARY.split(), *["tril", "triu"]) for suffix in ("", "_")),
        (f"{name}_backward" for name in BACKWARD.split()), (f"special_{name}" for name in SPECIAL.split()),
        FACTORIES.split(), SHAPE.split(), OTHER.split(),
    )
    for name in names
) | frozenset(
    f"aten.{name}{suffix}"
    for name in (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "normal_functional", "poisson",
        "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "uniform",
    )
    for suffix in ("", "_")
) | frozenset(
    f"aten._foreach_{name}{suffix}" for name in f"{FOREACH_UNARY} {FOREACH_BINARY}".split() for suffix in ("", "_")
) | {
    "aten._amp_foreach_non_finite_check_and_unscale_", "aten._amp_update_scale_", "aten.native_dropout_backward",
}
