"""Linear algebra by cuBLAS, and outputs that torch's meta kernels do not know.

What cuSOLVER takes for its work only its library says on a card: operators that call it stay on the list of unknown
ones, with their outputs.
[triangular] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `linalg_solve_triangular_out`,
cuda/linalg/BatchLinearAlgebra.cpp `triangular_solve_kernel`, BatchLinearAlgebraLibBlas.cpp
`apply_triangular_solve_batched`: cuBLAS is given the address of every matrix
[lstsq] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `linalg_lstsq_out`: CUDA has the driver gels alone, which
gives neither rank nor singular values
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import num_bytes

FEW_MATRICES: Final = 8
LARGE_MATRIX: Final = 64
"""At most so many matrices of at least so many rows are solved one by one [triangular]."""
ADDRESS_BYTES: Final = 8


def solve_triangular(call: Call) -> Any:
    """The solution; a copy of matrices that lie neither by rows nor by columns, and addresses of small ones."""
    out = call.run()
    if call.device.is_cpu or not out.numel():
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


RULES: Final[Mapping[str, Rule]] = {
    "aten.linalg_lstsq": least_squares,
    "aten.linalg_solve_triangular": solve_triangular,
}
PLAIN: Final = frozenset[str]()
