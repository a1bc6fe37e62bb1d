"""Linear algebra by cuBLAS, transforms by cuFFT, distances of all pairs of rows.

What cuSOLVER takes for its work only its library says on a card: operators that call it stay on the list of unknown
ones, with their outputs. Left out: what cuFFT wants above one copy of the data; for sizes with large prime factors its
workspace is larger.

[triangular] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `linalg_solve_triangular_out`,
cuda/linalg/BatchLinearAlgebra.cpp `triangular_solve_kernel`, BatchLinearAlgebraLibBlas.cpp
`apply_triangular_solve_batched`: cuBLAS is given the address of every matrix
[lstsq] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `linalg_lstsq_out`: CUDA has the driver gels alone, which
gives neither rank nor singular values
[fft] pytorch aten/src/ATen/native/cuda/SpectralOps.cpp: `_exec_fft` clones the input where its layout does not fit,
`_fft_c2r_cufft` clones it as cuFFT writes over it; a workspace a plan
[cdist] pytorch aten/src/ATen/native/Distance.cpp `cdist_impl`, `_cdist_backward`, `_pdist_backward`
[cuda] pytorch aten/src/ATen/native/cuda/DistanceKernel.cu: backward writes a gradient of every pair, then sums them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes
from vramcast.tracing.rules.reductions import reduce, sum_kernel

FEW_MATRICES: Final = 8
LARGE_MATRIX: Final = 64  # at most so many matrices of at least so many rows are solved one by one [triangular]
ADDRESS_BYTES: Final = 8


def solve_triangular(call: Call) -> Any:
    """The solution; a copy of matrices that lie neither by rows nor by columns, and addresses of small ones."""
    out = call.run()
    if not out.numel():
        return out
    matrix, size = call.args[0], call.args[0].size(-1)
    batch = out.size()[:-2]
    whole = matrix.expand(*batch, *matrix.size()[-2:])
    if not whole.is_contiguous() and not whole.mT.is_contiguous():
        call.scratch(num_bytes(whole), "matrix column by column")
    if batch.numel() > FEW_MATRICES or size < LARGE_MATRIX:
        for what in ("addresses of matrices", "addresses of right sides"):
            call.scratch(batch.numel() * ADDRESS_BYTES, what)
    return out


def least_squares(call: Call) -> Any:
    """Solution, residuals, rank, singular values; the solution lies at the head of right sides column by column."""
    x, right = call.args[:2]
    if call.device.is_cpu:
        return call.run()
    if call.kwargs.get("driver") not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
    call.is_read = False
    rows, columns = x.size()[-2:]
    is_vector = x.dim() - 1 == right.dim() and right.size() == x.size()[:-1]
    sides = 1 if is_vector else right.size(-1)
    batch = torch.broadcast_shapes(x.size()[:-2], right.size()[: -1 if is_vector else -2])
    turned = call.empty((*batch, sides, max(rows, columns)), dtype=x.dtype)
    solution = turned.mT[..., :columns, :]
    has_residuals = rows > columns
    real = torch.empty((), dtype=x.dtype, device="meta").real.dtype
    residuals = call.empty((*batch, sides) if has_residuals else (0,), dtype=real)
    call.scratch(num_bytes(x), "matrix that is factored")
    return (
        solution.squeeze(-1) if is_vector else solution, residuals, call.empty((0,), dtype=torch.int64),
        call.empty((0,), dtype=real),
    )


SMOOTH: Final = (2, 3, 5, 7)
"""Transforms of products of these primes up to 2^12 run in shared memory."""
IN_SHARED: Final = 4096


def transform(call: Call) -> Any:
    """c2c and r2c: a dense input is read where it lies."""
    out = call.run()
    contiguous_copy(call, call.arg(0, "self"))
    call.scratch(_workspace_bytes(call, num_bytes(out)), "cuFFT workspace")
    return out


def to_real(call: Call) -> Any:
    """c2r: the input is copied first."""
    out = call.run()
    x = call.arg(0, "self")
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


def between_two(call: Call) -> Any:
    """cdist: batches are expanded into copies, then the result; what is a product comes apart before [cdist]."""
    x, y = call.args[:2]
    batch = torch.broadcast_shapes(x.size()[:-2], y.size()[:-2])
    for tensor in (x, y):
        contiguous_copy(call, tensor.expand(*batch, *tensor.size()[-2:]))
    return call.run()


def between_two_backward(call: Call) -> Any:
    """The gradient of the first rows, summed over a gradient of every pair [cuda]."""
    _, x, y, p, _ = call.args
    out = call.run()
    if not out.numel() or not y.numel() or p == 0:
        return out
    batch = torch.broadcast_shapes(x.size()[:-2], y.size()[:-2])
    for tensor in (x, y):
        if tensor.size()[:-2] != batch:
            contiguous_copy(call, tensor.expand(*batch, *tensor.size()[-2:]))
    pairs = (batch.numel(), y.size(-2), x.size(-2), x.size(-1))
    _sum_of_pairs(call, pairs, 1, x.dtype)
    return out


def within_one_backward(call: Call) -> Any:
    """pdist: a gradient of every row with every other one [cuda]."""
    _, x, p, _ = call.args
    out = call.run()
    if x.numel() and p != 0:
        _sum_of_pairs(call, (x.size(0) - 1, *x.size()), 0, x.dtype)
    return out


def _sum_of_pairs(call: Call, size: Sequence[int], dim: int, dtype: torch.dtype) -> None:
    pairs = torch.empty(size, dtype=dtype, device="meta")
    call.scratch(num_bytes(pairs), "gradient of every pair")
    reduce(call, pairs, (dim,), torch.empty((), dtype=dtype, device="meta"), sum_kernel(dtype, dtype))


RULES: Final[Mapping[str, Rule]] = {
    "aten.linalg_lstsq": least_squares,
    "aten.linalg_solve_triangular": solve_triangular,
    "aten._fft_c2c": transform,
    "aten._fft_c2r": to_real,
    "aten._fft_r2c": transform,
    "aten._cdist_backward": between_two_backward,
    "aten._cdist_forward": between_two,
    "aten._pdist_backward": within_one_backward,
}


PLAIN: Final = frozenset({"aten._pdist_forward"})
