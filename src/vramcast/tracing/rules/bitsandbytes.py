"""bitsandbytes: blockwise quantisation, products of 8-bit and 4-bit weights, optimizers with 8-bit states.

[cuda] bitsandbytes backends/cuda/ops.py, v0.50: the kernels registered for "cuda"
Left out: which of its own kernels takes a 4-bit product of up to 1,536 rows; those of the card's generation that fall
back to unpacked weights earlier need those weights for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.blas import take_lt_workspace, take_workspace
from vramcast.tracing.rules.layouts import num_bytes

MOST_CUSTOM_ROWS: Final = 1536  # [cuda `_gemm_4bit_custom_max_m`]
INT32: Final = 4
FP32: Final = 4


def _statistics_first(call: Call) -> Any:
    """The scales of rows or blocks are allocated before the numbers [cuda]."""
    numbers, scales, *rest = call.simulation.on_meta(call.func, call.args, call.kwargs, call.device)
    for tensor in (scales, numbers, *rest):
        call.simulation.adopt(tensor, call.device, call.name)
    return (numbers, scales, *rest)


def int8_quantise(call: Call) -> Any:
    """Outliers, where a threshold asks for them: sizes, truth values, those of columns [cuda]."""
    x = call.arg(0, "A")
    out = _statistics_first(call)
    if call.arg(1, "threshold", 0.0) > 0:
        sizes = call.scratch(num_bytes(x), "sizes of elements")
        call.scratch(x.numel(), "outliers")
        call.release(sizes)
        call.scratch(x.size(-1), "columns with outliers")
    return out


def int8_matmul(call: Call) -> Any:
    """32-bit integers by cublasLt, then fp16 numbers, then those in the type asked for [cuda]."""
    a, b = call.arg(0, "A"), call.arg(1, "B")
    wanted = call.arg(5, "dtype") or torch.float16
    elements = a.numel() // a.size(-1) * b.size(0)
    call.scratch(elements * INT32, "32-bit products")
    take_lt_workspace(call)
    if wanted is not torch.float16:
        call.scratch(elements * 2, "fp16 products")
    return call.run()


def product_4bit(call: Call) -> Any:
    """One kernel for few rows; for many the weight is unpacked first and cuBLAS multiplies [cuda]."""
    x, absmax_8bit = call.arg(0, "A"), call.arg(7, "absmax_8bit")
    if x.numel() // x.size(-1) <= MOST_CUSTOM_ROWS:
        return call.run()
    if absmax_8bit is not None:
        for name in ("scales", "scales and their offset"):
            call.scratch(absmax_8bit.numel() * FP32, name)
    rows, columns = call.arg(2, "shapeB")
    call.scratch(rows * columns * x.dtype.itemsize, "unpacked weight")
    out = call.run()
    take_workspace(call)
    return out


RULES: Final[Mapping[str, Rule]] = {
    "bitsandbytes.gemm_4bit": product_4bit,
    "bitsandbytes.int8_scaled_mm": int8_matmul,
    "bitsandbytes.int8_vectorwise_quant": int8_quantise,
    "bitsandbytes.quantize_4bit": _statistics_first,
    "bitsandbytes.quantize_blockwise": _statistics_first,
}
PLAIN: Final = frozenset({
    "bitsandbytes.dequantize_4bit", "bitsandbytes.dequantize_blockwise", "bitsandbytes.gemv_4bit",
    "bitsandbytes.int8_linear_matmul", "bitsandbytes.int8_mm_dequant", "bitsandbytes.int8_vectorwise_dequant",
    "bitsandbytes.optimizer_update_32bit", "bitsandbytes.optimizer_update_8bit_blockwise",
})
