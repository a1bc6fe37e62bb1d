"""What the outputs of CUDA's fused operators look like, where torch has no meta kernel of them.

[silu] pytorch aten/src/ATen/native/cuda/ActivationSiluKernel.cu, ActivationMishKernel.cu: one kernel each
[margin] pytorch aten/src/ATen/native/cuda/MultiMarginLoss.cu, MultiLabelMarginCriterion.cu
[pool] pytorch aten/src/ATen/native/cuda/FractionalMaxPool3d.cu `fractional_max_pool3d_backward_out_cuda`
[qr] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `geqrf`
[layer] pytorch aten/src/ATen/native/cuda/layer_norm_kernel.cu `_fused_rms_norm_cuda`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch


def rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and reciprocal root of the mean square, fp32 for 16-bit inputs."""
    del weight, eps
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    sizes = [1 if dim >= x.dim() - len(shape) else size for dim, size in enumerate(x.size())]
    return torch.empty(x.size(), dtype=x.dtype, device="meta"), torch.empty(sizes, dtype=wide, device="meta")


def rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, shape: Sequence[int], rstd: torch.Tensor, weight: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of input and weight."""
    del grad, shape, rstd
    return (
        torch.empty(x.size(), dtype=x.dtype, device="meta") if mask[0] else None,
        torch.empty(weight.size(), dtype=weight.dtype, device="meta") if mask[1] and weight is not None else None,
    )


def gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A pointwise gradient of two tensors, laid out as such operators do."""
    return torch.ops.aten.sigmoid_backward(grad, x)


def like_input(grad: torch.Tensor, x: torch.Tensor, *_: Any, **_named: Any) -> torch.Tensor:
    """The gradient of an input, contiguous [margin] [pool]."""
    del grad
    return torch.empty(x.size(), dtype=x.dtype, device="meta")


def reflectors(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """geqrf: a copy column by column, and a scalar a reflector [qr]."""
    *batch, rows, columns = x.size()
    turned = torch.empty((*batch, columns, rows), dtype=x.dtype, device="meta")
    return turned.mT, torch.empty((*batch, min(rows, columns)), dtype=x.dtype, device="meta")


HOST_KERNELS: Final[Mapping[str, Callable[..., Any]]] = {
    "fractional_max_pool3d_backward": like_input,
    "geqrf": reflectors,
    "mish_backward": gradient,
    "multi_margin_loss_backward": like_input,
    "multilabel_margin_loss_backward": like_input,
    "silu_backward": gradient,
}
"""Those that the CPU has, too [silu]; some of them have no meta kernel for either."""
KERNELS: Final[Mapping[str, Callable[..., Any]]] = {
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    **HOST_KERNELS,
}

__all__ = ["HOST_KERNELS", "KERNELS"]
