"""What eigenvalues and exponentials of matrices take on the CPU: workspaces of LAPACK, powers of a matrix.

Leaves out the workspaces of complex eigenvalue problems, and those of a general eigenvalue problem.

[eigh] pytorch aten/src/ATen/native/BatchLinearAlgebraKernel.cpp `apply_lapack_eigh`
[syevd] LAPACK 3.12 ssyevd.f: LWORK, LIWORK; oneMKL answers one element more where vectors are asked for, and 22
(float) or 26 (double) elements a row where they are not, from 16 rows on
[exp] pytorch aten/src/ATen/native/LinearAlgebra.cpp `mexp_impl`, `compute_T18`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import num_bytes

INT: Final = 4
"""Bytes of LAPACK's integers."""
ROW_ELEMENTS: Final = {torch.float32: 22, torch.float64: 26}
"""Elements of the workspace a row, where eigenvalues alone are asked for [syevd]."""
NUM_POWERS: Final = 5
"""Powers of a matrix that a polynomial of degree 18 is made of, and sums of them [exp]."""


def eigenvalues(call: Call) -> Any:
    """One workspace for all matrices; eigenvalues alone are found in a copy of them [eigh]."""
    out = call.run()
    matrices, has_vectors = call.args[0], call.arg(2, "compute_v", True)
    rows = matrices.size(-1)
    if matrices.dtype not in ROW_ELEMENTS or not matrices.numel():
        return out
    if has_vectors:
        elements, integers = 2 + 6 * rows + 2 * rows**2, 3 + 5 * rows
    else:
        elements, integers = 1 + ROW_ELEMENTS[matrices.dtype] * rows, 1
        call.scratch(num_bytes(matrices), "copy of the matrices")
    call.scratch(elements * matrices.itemsize, "workspace")
    call.scratch(integers * INT, "workspace of integers")
    return out


def exponential(call: Call) -> Any:
    """Powers of the scaled matrices and sums of them; a single matrix is copied first [exp].

    Valid for: 1-norms above 1.5 (float) or 0.3 (double); of a single matrix of a smaller norm fewer powers are taken.
    """
    matrices = call.args[0]
    rows, num = matrices.size(-1), num_bytes(matrices)
    if rows <= 1 or not matrices.numel():
        return call.run()
    is_single = matrices.numel() == rows**2
    out = call.run() if is_single else None
    call.scratch(num if is_single else 0, "matrix that is large")
    call.scratch(num, "scaled matrices")
    powers = call.scratch(NUM_POWERS * num, "powers")
    call.scratch(NUM_POWERS * num, "sums of powers")
    call.release(powers)
    return call.run() if out is None else out


RULES: Final[Mapping[str, Rule]] = {
    "aten._linalg_eigh": eigenvalues,
    "aten.linalg_matrix_exp": exponential,
}
