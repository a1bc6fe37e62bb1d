"""8-bit tensors of TransformerEngine as its C++ makes them.

[quantizer] TransformerEngine transformer_engine/pytorch/csrc/quantizer.cpp: `create_tensor`,
`convert_and_update_tensor`, `create_unquantized_tensor_with_amax`, commit d0067d0d
Left out: scales by block (MXFP8, NVFP4, 128 x 128), which raise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import torch

from vramcast.errors import Unsupported
from vramcast.tracing.call import Call
from vramcast.tracing.extensions.te_names import DTYPES

Shape = Sequence[int]
PACKAGE: Final = "transformer_engine.pytorch.tensor"
STATISTIC: Final = 4  # a scale or a largest value in fp32
TN_ONLY_BELOW: Final = 100
"""Compute capability x 10 from which products of 8-bit numbers need no transposed copies [quantizer
`nvte_is_non_tn_fp8_gemm_supported`]: data center cards of Blackwell, not those for desktops (12.x)."""
DESKTOP: Final = range(120, 130)
TORCH: Final = {
    "kByte": torch.uint8, "kInt32": torch.int32, "kFloat32": torch.float32, "kFloat16": torch.float16,
    "kBFloat16": torch.bfloat16, "kFloat8E4M3": torch.float8_e4m3fn, "kFloat8E5M2": torch.float8_e5m2,
}


class Scaling(Enum):
    """How a quantizer finds its scale."""

    NONE = ""
    DELAYED = "Float8Quantizer"  # from the largest values of steps before
    CURRENT = "Float8CurrentScalingQuantizer"  # from this tensor's largest value


def scaling_of(quantizer: Any) -> Scaling:
    """Raises: Unsupported for quantizers whose tensors nobody has described here."""
    if quantizer is None:
        return Scaling.NONE
    name = type(quantizer).__name__
    try:
        return Scaling(name)
    except ValueError:
        raise Unsupported(
            f"{name} of TransformerEngine is not known; trace with DelayedScaling() or Float8CurrentScaling()"
        ) from None


def torch_dtype(dtype: Any) -> torch.dtype:
    """Of one of its own types, or of torch's."""
    return dtype if isinstance(dtype, torch.dtype) else TORCH[DTYPES(int(dtype)).name]


def needs_transposes(call: Call) -> bool:
    """Whether products of 8-bit numbers want both operands along their sums."""
    return call.device.sm < TN_ONLY_BELOW or call.device.sm in DESKTOP


def create(call: Call, quantizer: Any, shape: Shape, dtype: Any) -> Any:
    """A tensor that nothing is written to yet, plain or quantised [quantizer `create_tensor`]."""
    scaling, dtype = scaling_of(quantizer), torch_dtype(dtype)
    if scaling is Scaling.NONE:
        return call.empty(shape, dtype=dtype)
    scale = call.empty((1,), dtype=torch.float32) if scaling is Scaling.DELAYED else None
    transposes = needs_transposes(call)
    data = call.empty(shape, dtype=torch.uint8) if quantizer.rowwise_usage or not transposes else None
    transpose = None
    if quantizer.columnwise_usage and transposes:
        transpose = call.empty(transposed(shape), dtype=torch.uint8)
    if scale is None:
        scale = call.empty((1,), dtype=torch.float32)
    parts = {
        "data": data, "fp8_scale_inv": scale, "fp8_dtype": quantizer.dtype, "data_transpose": transpose,
        "quantizer": quantizer,
    }
    if quantizer.internal:
        return _class("storage.float8_tensor_storage", "Float8TensorStorage")(**parts, fake_dtype=dtype)
    strides = torch.empty(shape, device="meta").stride()
    return _class("float8_tensor", "Float8Tensor")(
        **parts, shape=list(shape), stride=list(strides), dtype=dtype, device=call.device.torch_device
    )


def update(call: Call, quantizer: Any, tensor: Any) -> Any:
    """A tensor that is there, with the parts that the quantizer wants now [quantizer `convert_and_update_tensor`]."""
    if scaling_of(quantizer) is Scaling.NONE:
        return tensor
    transposes = needs_transposes(call)
    wants_data = quantizer.rowwise_usage or not transposes
    wants_transpose = quantizer.columnwise_usage and transposes
    shape = tuple(tensor._data.size()) if tensor._data is not None else untransposed(tensor._transpose.size())
    if not wants_data:
        tensor._data = None
    elif tensor._data is None:
        tensor._data = call.empty(shape, dtype=torch.uint8)
    if not wants_transpose:
        tensor._transpose = None
    elif tensor._transpose is None:
        tensor._transpose = call.empty(transposed(shape), dtype=torch.uint8)
    tensor._transpose_invalid = not wants_transpose
    tensor._fp8_dtype = quantizer.dtype
    return tensor


def fill(call: Call, quantizer: Any) -> None:
    """Quantisation itself: today's scale needs the largest value first [quantizer `quantize`]."""
    if scaling_of(quantizer) is Scaling.CURRENT:
        for what in ("largest value", "scale"):
            call.scratch(STATISTIC, what)


def before_quantising(call: Call, quantizer: Any, shape: Shape, dtype: torch.dtype) -> None:
    """What a kernel writes where it cannot write 8-bit numbers itself [quantizer]."""
    if scaling_of(quantizer) is Scaling.CURRENT:
        call.scratch(STATISTIC, "largest value")
        call.scratch(torch.Size(shape).numel() * dtype.itemsize, "values before they are quantised")
        call.scratch(STATISTIC, "scale")


def transposed(shape: Shape) -> tuple[int, ...]:
    """The last dimension first."""
    return (*shape[-1:], *shape[:-1])


def untransposed(shape: Shape) -> tuple[int, ...]:
    """The first dimension last."""
    return (*shape[1:], *shape[:1])


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules[f"{PACKAGE}.{module}"], name)
