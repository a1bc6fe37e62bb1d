"""FFT: cuFFT's workspace and copies of inputs it would overwrite.

[fft] pytorch aten/src/ATen/native/cuda/SpectralOps.cpp: `_exec_fft` clones the input where its layout does not fit,
`_fft_c2r_cufft` clones it as cuFFT writes over it; a workspace a plan
Leaves out what cuFFT wants above one copy of the data: for sizes with large prime factors its workspace is larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes

SMOOTH: Final = (2, 3, 5, 7)
"""Transforms of products of these primes up to 2^12 run in shared memory."""
IN_SHARED: Final = 4096


def transform(call: Call) -> Any:
    """c2c and r2c: a dense input is read where it lies."""
    out = call.run()
    x = call.arg(0, "self")
    if not call.device.is_cpu:
        contiguous_copy(call, x)
        call.scratch(_workspace_bytes(call, num_bytes(out)), "cuFFT workspace")
    return out


def to_real(call: Call) -> Any:
    """c2r: the input is copied first."""
    out = call.run()
    x = call.arg(0, "self")
    if not call.device.is_cpu:
        call.scratch(num_bytes(x), "input that cuFFT writes over")
        call.scratch(_workspace_bytes(call, num_bytes(x)), "cuFFT workspace")
    return out


def _workspace_bytes(call: Call, data_bytes: int) -> int:
    """None for short smooth lengths, else one copy of the data."""
    x, dims = call.arg(0, "self"), call.arg(1, "dim")
    lengths = [x.size(dim) for dim in dims]
    return 0 if all(length <= IN_SHARED and _is_smooth(length) for length in lengths) else data_bytes


def _is_smooth(length: int) -> bool:
    for prime in SMOOTH:
        while length > 1 and length % prime == 0:
            length //= prime
    return length <= 1


RULES: Final[Mapping[str, Rule]] = {
    "aten._fft_c2c": transform,
    "aten._fft_c2r": to_real,
    "aten._fft_r2c": transform,
}
PLAIN: Final = frozenset[str]()
