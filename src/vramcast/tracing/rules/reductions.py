"""Sums, means, norms, extrema: casts of their input and the buffers of `operators.reduction`.

[utils] pytorch aten/src/ATen/native/ReduceOpsUtils.h `make_reduction`: an input of another type than the result is cast
first, except fp16 and bf16 to fp32, which the kernel reads as they are
[kernels] pytorch aten/src/ATen/native/cuda/Reduce{SumProd,Moment,Norm,MaxValues,Logic,ArgMax,AMinMax}Kernel.cu
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from msgspec.structs import replace

from vramcast.operators.reduction import Kernel, Strided, accumulator_bytes, buffers, reduction
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import NARROW, accumulator, at_least, chip, num_bytes

WIDE_VECTORS_SINCE: Final = (2, 8)
"""Since then sums and means of 16-bit numbers load eight at once [kernels]."""
COMPLEX_DOUBLE_THREADS: Final = 256
PAIR_BYTES: Final = 16  # value and int64 index
WELFORD_BYTES: Final = {4: 16, 8: 32}  # mean, M2, count as int32 and as a number; by the accumulator's width


def reduce(
    call: Call, source: torch.Tensor, dims: Sequence[int], out: torch.Tensor, kernel: Kernel,
) -> None:
    """Take and give back what one reduction kernel needs."""
    if not source.numel():
        return
    walk = reduction(strided(source), dims, out.dtype.itemsize)
    accumulator = call.scratch(accumulator_bytes(walk, kernel, out.dtype.itemsize), "accumulator")
    for needs in buffers(walk, kernel, chip(call)):
        buffer = call.scratch(needs.buffer_bytes, "partial results of blocks")
        semaphores = call.scratch(needs.semaphore_bytes, "semaphores of blocks")
        call.release(semaphores)
        call.release(buffer)
    call.release(accumulator)


def strided(tensor: torch.Tensor) -> Strided:
    return Strided(tuple(tensor.size()), tensor.stride(), tensor.dtype.itemsize, tensor.storage_offset())


def sum_kernel(dtype: torch.dtype, out: torch.dtype) -> Kernel:
    """sum, mean, prod."""
    vector = 8 if dtype.itemsize == 2 and at_least(WIDE_VECTORS_SINCE) else 4
    threads = COMPLEX_DOUBLE_THREADS if dtype is torch.complex128 else 512
    narrow = dtype in NARROW and out is dtype
    return Kernel(accumulator(dtype).itemsize, vector, threads, accumulates_in_output=not narrow)


def plain_kernel(dtype: torch.dtype, out: torch.dtype) -> Kernel:
    """Norms, products, nansum."""
    return replace(sum_kernel(dtype, out), vector=4)


def extremum_kernel(dtype: torch.dtype, out: torch.dtype) -> Kernel:
    """amax, amin, all, any: compared in their own type."""
    narrow = dtype in NARROW and out is dtype
    return Kernel(dtype.itemsize, accumulates_in_output=not narrow)


def pair_kernel(dtype: torch.dtype, out: torch.dtype) -> Kernel:
    """Value with index, or two values."""
    del dtype, out
    return Kernel(PAIR_BYTES, accumulates_in_output=False)


def two_kernel(dtype: torch.dtype, out: torch.dtype) -> Kernel:
    """aminmax: two values of the input's type."""
    del out
    return Kernel(2 * dtype.itemsize, accumulates_in_output=False)


def welford_kernel(dtype: torch.dtype, out: torch.dtype) -> Kernel:
    """var, std: two values loaded at once, for registers' sake."""
    del out
    return Kernel(WELFORD_BYTES[max(4, accumulator(dtype).itemsize)], vector=2, accumulates_in_output=False)


def all_dims(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(tensor.dim()))


def dims_of(call: Call, source: torch.Tensor) -> Sequence[int]:
    """The dimensions a call reduces: its list or number, all where it names none."""
    dim = call.named("dim")
    if not source.dim():
        return ()  # -1 and 0 name the only value there is
    if isinstance(dim, int):
        return (dim,)
    return tuple(dim) if dim else all_dims(source)


def _rule(kernel: Any, *, casts: bool = True) -> Rule:
    def reduced(call: Call) -> Any:
        out = call.run()
        source = call.args[0]
        result = out[0] if isinstance(out, (tuple, list)) else out
        if not source.numel():
            return out
        dtype = source.dtype
        reads_as_is = dtype is result.dtype or (dtype in NARROW and result.dtype is torch.float32) or dtype.is_complex
        if casts and not reads_as_is:
            call.scratch(source.numel() * result.dtype.itemsize, "input cast")
            source, dtype = torch.empty(source.size(), dtype=result.dtype, device="meta"), result.dtype
        reduce(call, source, dims_of(call, call.args[0]), result, kernel(dtype, result.dtype))
        return out

    return reduced


def log_sum_exp(call: Call) -> Any:
    """Maxima, then the exponentials of what is below them, summed [ReduceOps.cpp `logsumexp_out_impl`]."""
    x = call.arg(0, "self")
    dims = dims_of(call, x)
    if not x.numel():
        return call.run()
    rows = x.numel()
    for dim in dims:
        rows //= x.size(dim)
    maxima = torch.empty((rows,), dtype=x.dtype, device="meta")
    call.scratch(rows * x.dtype.itemsize, "maxima")
    reduce(call, x, dims, maxima, extremum_kernel(x.dtype, x.dtype))
    sizes = call.scratch(rows * x.dtype.itemsize, "absolute maxima")
    infinite = call.scratch(rows, "infinite maxima")
    call.release(infinite)
    call.release(sizes)
    call.scratch(num_bytes(x), "exponentials")
    out = call.run()
    exponentials = torch.empty(x.size(), dtype=x.dtype, device="meta")
    reduce(call, exponentials, dims, out, sum_kernel(x.dtype, x.dtype))
    return out


def histogram(call: Call) -> Any:
    """Counts; without bounds the smallest and largest value are looked for [SummaryOps.cu `_histc_cuda_template`]."""
    out = call.run()
    x = call.args[0]
    if call.arg(2, "min", 0) == call.arg(3, "max", 0) and x.numel():
        with call.simulation:
            torch.ops.aten.aminmax(x)
    return out


def on_host_alone(call: Call) -> Any:
    """histogram: CUDA has histc only, and refuses [pytorch aten/src/ATen/native/native_functions.yaml]."""
    if call.device.is_cpu:
        return call.run()
    raise NotImplementedError(f"Could not run '{call.func.name()}' with arguments from the 'CUDA' backend.")


def _of(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names.split()}


RULES: Final[Mapping[str, Rule]] = {
    "aten.aminmax": _rule(two_kernel, casts=False), "aten.histc": histogram, "aten.logsumexp": log_sum_exp,
    **_of(_rule(sum_kernel), "mean sum"),
    **_of(_rule(plain_kernel), "nansum prod"),
    **_of(_rule(plain_kernel, casts=False), "linalg_vector_norm norm"),
    **_of(_rule(extremum_kernel, casts=False), "all amax amin any max.default min.default"),
    **_of(_rule(pair_kernel, casts=False), "argmax argmin max.dim min.dim"),
    **_of(_rule(welford_kernel, casts=False), "std std_mean var var_mean"),
    **_of(on_host_alone, "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors histogram"),
}
