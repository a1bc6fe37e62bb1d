"""linalg_eigvalsh as torch runs it for tensors with data.

[eigvalsh] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `linalg_eigvalsh`, `_may_require_fw_or_bw_grad`: vectors
are found where a gradient needs them, and always for meta tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation


def eigvalsh(_simulation: Simulation) -> Callable[..., torch.Tensor]:
    """Eigenvalues alone, unless a gradient is asked for [eigvalsh]."""

    def run(matrices: torch.Tensor, UPLO: str = "L") -> torch.Tensor:
        needs_vectors = torch.is_grad_enabled() and matrices.requires_grad
        values: torch.Tensor = torch.ops.aten._linalg_eigh(matrices, UPLO, needs_vectors)[0]
        return values

    return run


COMPOSITES: Final[Mapping[str, Any]] = {"linalg_eigvalsh": eigvalsh}
