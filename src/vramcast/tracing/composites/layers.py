"""Layers of which CUDA runs kernels of its own where other devices take them apart.

Recurrent networks go through cuDNN, elsewhere step by step; batch norm through cuDNN where CUDA would take it. Dropout
has one kernel; softmax reads fp16 and writes fp32 without a copy; linear adds a bias in place where no fused product
takes it. `KERNELS`: what the outputs of fused operators look like, where torch has no meta kernel of them.

[choice] pytorch aten/src/ATen/native/RNN.cpp: `use_cudnn`, `lstm_cudnn_stub`
[cudnn] pytorch aten/src/ATen/native/cudnn/RNN.cpp: `_cudnn_impl`, `try_get_weight_buf`
[norm] pytorch aten/src/ATen/native/Normalization.cpp `_select_batch_norm_backend`, `_batch_norm_impl_index`
[softmax] pytorch aten/src/ATen/native/SoftMax.cpp `softmax`, `log_softmax`
[dropout] pytorch aten/src/ATen/native/Dropout.cpp `dropout`: `is_fused_kernel_acceptable`
[linear] pytorch aten/src/ATen/native/Linear.cpp `linear`: tensors like subclasses, as meta tensors are, get a new sum
[eigvalsh] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `linalg_eigvalsh`, `_may_require_fw_or_bw_grad`: vectors
are found where a gradient needs them, and always for meta tensors
[silu] pytorch aten/src/ATen/native/cuda/ActivationSiluKernel.cu, ActivationMishKernel.cu: one kernel each
[margin] pytorch aten/src/ATen/native/cuda/MultiMarginLoss.cu, MultiLabelMarginCriterion.cu
[pool] pytorch aten/src/ATen/native/cuda/FractionalMaxPool3d.cu `fractional_max_pool3d_backward_out_cuda`
[qr] pytorch aten/src/ATen/native/BatchLinearAlgebra.cpp `geqrf`
[layer] pytorch aten/src/ATen/native/cuda/layer_norm_kernel.cu `_fused_rms_norm_cuda`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from vramcast.tracing.rules.layouts import suggested
from vramcast.tracing.simulation import Simulation

IMPLICIT: Final = torch._C.DispatchKey.CompositeImplicitAutograd


def apart(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator's own composite kernel."""
    return operator._op_dk(IMPLICIT, *args, **kwargs)


RELU, TANH, LSTM, GRU = range(4)
"""cuDNN's modes."""
TYPES: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class Settings(NamedTuple):
    """What the module was made with."""

    has_biases: bool
    num_layers: int
    dropout: float
    training: bool
    bidirectional: bool


def padded(
    name: str, mode: int, simulation: Simulation, x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *rest: Any
) -> Any:
    """The operator on padded sequences."""
    if not _cudnn_takes(simulation, x):
        return apart(getattr(torch.ops.aten, name).input, x, hx, params, *rest)
    return _cudnn(mode, x, hx, params, Settings(*rest[:5]), batch_first=rest[5])


def packed(
    name: str, mode: int, simulation: Simulation, x: torch.Tensor, sizes: torch.Tensor, hx: Any,
    params: Sequence[torch.Tensor], *rest: Any,
) -> Any:
    """The operator on packed sequences."""
    if not _cudnn_takes(simulation, x):
        return apart(getattr(torch.ops.aten, name).data, x, sizes, hx, params, *rest)
    return _cudnn(mode, x, hx, params, Settings(*rest[:5]), batch_sizes=sizes.tolist())


def _cudnn_takes(simulation: Simulation, x: torch.Tensor) -> bool:
    on_card = simulation.memory.card_of(x) is not None
    return on_card and bool(torch._C._get_cudnn_enabled()) and x.dtype in TYPES and x.numel() > 0


def _cudnn(
    mode: int, x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], settings: Settings, *,
    batch_first: bool = False, batch_sizes: Sequence[int] = (),
) -> Any:
    """[cudnn `_cudnn_impl`]"""
    hidden, cell = hx if mode == LSTM else (hx, None)
    hidden_size = (cell if cell is not None else hidden).size(2)
    projection = hidden.size(2) if hidden.size(2) != hidden_size else 0
    per_layer = (4 if settings.has_biases else 2) + (1 if projection else 0)
    out, hy, cy, *_ = torch.ops.aten._cudnn_rnn(
        x, list(params), per_layer, _buffer(params), hidden.contiguous(), None if cell is None else cell.contiguous(),
        mode, hidden_size, projection, settings.num_layers, batch_first, settings.dropout, settings.training,
        settings.bidirectional, list(batch_sizes), None,
    )
    return (out, hy, cy) if mode == LSTM else (out, hy)


def _buffer(params: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The memory of all weights, where they lie in one piece: `flatten_parameters` puts them there."""
    storage = params[0].untyped_storage()
    if any(part.untyped_storage()._cdata != storage._cdata for part in params[1:]):
        return None
    count = storage.nbytes() // params[0].dtype.itemsize
    return params[0].detach().as_strided((count,), (1,), 0)


_MODES: Final = {"lstm": LSTM, "gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}


MOST_SAMPLES: Final = {True: 880_801, False: 65_535}
"""Batch that cuDNN takes, by whether it trains [norm]."""
LARGEST_INDEX: Final = 2**31 - 1
NATIVE, CUDNN = 0, 1
"""Which one ran, as torch counts them."""


def batch_norm(
    simulation: Simulation, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean:
    torch.Tensor | None, variance: torch.Tensor | None, training: bool, momentum: float, eps: float, cudnn_enabled:
    bool,
) -> tuple[Any, ...]:
    """[norm `_batch_norm_impl_index`]"""
    if not x.numel():
        return _empty(x, weight, bias)
    _check(x, running_mean=mean, running_var=variance, weight=weight, bias=bias)
    is_asked = cudnn_enabled and simulation.memory.card_of(x) is not None
    if is_asked and _cudnn_normalises(x, weight, bias, mean, variance, training):
        x = x.contiguous(memory_format=suggested(x))
        out = torch.ops.aten.cudnn_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
        return (*out, CUDNN)
    out = torch.ops.aten.native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    return (*out, x.new_empty((0,), dtype=torch.uint8), NATIVE)


def _empty(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> tuple[Any, ...]:
    """Of nothing: a copy, in the graph of the parameters [norm]."""
    count = x.size(1) if x.dim() > 1 else 0
    mean, deviation = (x.new_empty((count,), dtype=torch.float32) for _ in range(2))
    out = x.clone()
    if weight is not None:
        out = out * weight[0]
    if bias is not None:
        out = out + bias[0]
    return out, mean, deviation, x.new_empty((0,), dtype=torch.uint8), NATIVE


def _check(x: torch.Tensor, **parameters: torch.Tensor | None) -> None:
    """What torch refuses, in its words [norm `check_dims_match_num_input_features`]."""
    for name, tensor in parameters.items():
        if tensor is not None and x.dim() > 1 and tensor.numel() != x.size(1):
            raise RuntimeError(f"{name} should contain {x.size(1)} elements not {tensor.numel()}")


def _cudnn_normalises(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor | None,
    variance: torch.Tensor | None, training: bool,
) -> bool:
    """[norm]"""
    if weight is None or bias is None or torch.bfloat16 in (x.dtype, weight.dtype):
        return False
    if x.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    has_statistics = mean is not None and variance is not None
    if not has_statistics and not (training and mean is variance is None):
        return False
    return x.dim() >= 3 and x.size(0) <= MOST_SAMPLES[training] and x.numel() < LARGEST_INDEX


def softmax(
    composite: Any, kernel: Any, simulation: Simulation, x: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """[softmax]"""
    is_widened = x.dtype is torch.float16 and dtype is torch.float32
    if is_widened and simulation.memory.card_of(x) is not None:
        return kernel(x, dim, True)
    return apart(composite, x, dim, dtype)


def dropout(simulation: Simulation, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """[dropout]"""
    if not train or p == 0 or not x.numel():
        return x
    if p == 1 or simulation.memory.card_of(x) is None:
        return apart(torch.ops.aten.dropout.default, x, p, train)
    return torch.ops.aten.native_dropout(x, p, train)[0]


MATRIX: Final = 2


def linear(
    simulation: Simulation, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """[linear]"""
    is_fused = bias is None or x.dim() == MATRIX or (x.is_contiguous() and bias.dim() == 1)
    if is_fused or simulation.memory.of(x) is None:
        return apart(torch.ops.aten.linear.default, x, weight, bias)
    return torch.matmul(x, weight.t()).add_(bias)


def eigvalsh(_simulation: Simulation, matrices: torch.Tensor, UPLO: str = "L") -> torch.Tensor:
    """Eigenvalues alone, unless a gradient is asked for [eigvalsh]."""
    needs_vectors = torch.is_grad_enabled() and matrices.requires_grad
    values: torch.Tensor = torch.ops.aten._linalg_eigh(matrices, UPLO, needs_vectors)[0]
    return values


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


KERNELS: Final[Mapping[str, Callable[..., Any]]] = {
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    "fractional_max_pool3d_backward": like_input,
    "geqrf": reflectors,
    "mish_backward": gradient,
    "multi_margin_loss_backward": like_input,
    "multilabel_margin_loss_backward": like_input,
    "silu_backward": gradient,
}


COMPOSITES: Final[Mapping[str, Any]] = {
    **{f"{name}.input": partial(padded, name, mode) for name, mode in _MODES.items()},
    **{f"{name}.data": partial(packed, name, mode) for name, mode in _MODES.items()},
    "_batch_norm_impl_index": batch_norm,
    "log_softmax.int": partial(softmax, torch.ops.aten.log_softmax.int, torch.ops.aten._log_softmax),
    "softmax.int": partial(softmax, torch.ops.aten.softmax.int, torch.ops.aten._softmax),
    "dropout": dropout,
    "linear": linear,
    "linalg_eigvalsh": eigvalsh,
}
