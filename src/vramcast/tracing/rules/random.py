"""Random numbers: kernels keep their counter on the host, so outputs are all they allocate.

[dist] pytorch aten/src/ATen/native/cuda/DistributionTemplates.h
[randperm] pytorch aten/src/ATen/native/cuda/Randperm.cu: random keys are sorted
[multinomial] pytorch aten/src/ATen/native/Distributions.cpp `multinomial_out`, cuda/MultinomialKernel.cu
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import Any, Final

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.cub import radix_sort_bytes
from vramcast.tracing.rules.layouts import num_bytes

SMALL: Final = 30_000
"""Numbers up to which the host permutes [randperm]."""
EXTRA_BITS: Final = log2(3e10)  # of keys, so that collisions are rare
INT64: Final = 8


def permutation(call: Call) -> Any:
    """Random keys are sorted with the numbers."""
    out = call.run()
    count, itemsize = out.numel(), out.dtype.itemsize
    if call.device.is_cpu or count < SMALL:
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
    if call.device.is_cpu:
        return out
    if samples == 1 or not call.arg(2, "replacement", False):
        call.scratch(num_bytes(x), "noise")
    else:
        rows = x.numel() // x.size(-1)
        call.scratch(num_bytes(x), "probabilities")
        call.scratch(num_bytes(x), "prefix sums")
        call.scratch(rows * samples * x.dtype.itemsize, "uniform numbers")
    return out


RULES: Final[Mapping[str, Rule]] = {
    "aten.multinomial": multinomial,
    "aten.randperm": permutation,
}
PLAIN: Final = frozenset(
    f"aten.{name}{suffix}"
    for name in (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "normal_functional", "poisson",
        "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "uniform",
    )
    for suffix in ("", "_")
)
