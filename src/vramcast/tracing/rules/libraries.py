"""torchvision's and bitsandbytes' CUDA operators: what they return and the scratch they take.

torchvision's nms answers with what it keeps, which only values tell: it is assumed to keep every box, the most it may,
in the order in which they come. Left out: which of its own kernels bitsandbytes takes for a 4-bit product of up to
1,536 rows; those of the card's generation that fall back to unpacked weights earlier need those weights for a moment.

[nms] torchvision csrc/ops/cuda/nms_kernel.cu
[deform] torchvision csrc/ops/cuda/deform_conv2d_kernel.cu
[roi] torchvision csrc/ops/cuda/roi_align_kernel.cu, roi_pool_kernel.cu, ps_roi_align_kernel.cu, ps_roi_pool_kernel.cu
[cuda] bitsandbytes backends/cuda/ops.py, v0.50: the kernels registered for "cuda"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.blas import take_lt_workspace, take_workspace
from vramcast.tracing.rules.layouts import FP32, INT32, INT64, contiguous_copy, num_bytes
from vramcast.units import ceil_div

BOXES_A_WORD: Final = 64  # bits of the mask of overlaps [nms]
MOST_PARALLEL_IMAGES: Final = 32  # [deform] kMaxParallelImgs


def nms(call: Call) -> torch.Tensor:
    """Order of the scores, boxes in that order, one bit a pair of boxes; then the indices kept [nms]."""
    boxes, scores = call.args[:2]
    count = boxes.size(0)
    with call.simulation:
        order = torch.sort(scores, stable=True, dim=0, descending=True)[1]
        ordered = boxes.index_select(0, order)
    call.scratch(count * ceil_div(count, BOXES_A_WORD) * INT64, "overlaps of boxes")
    call.scratch(count * INT64, "boxes kept")
    del ordered
    kept = call.empty((count,), dtype=torch.int64)
    call.simulation.values.set(kept, torch.arange(count))
    return kept


def roi_forward(call: Call) -> Any:
    """Contiguous copies where needed, then the outputs [roi]."""
    for tensor in call.args[:2]:
        contiguous_copy(call, tensor)
    return call.run()


def roi_backward(call: Call) -> Any:
    """A contiguous copy of the regions where needed, then the gradient [roi]."""
    contiguous_copy(call, call.args[1])
    return call.run()


def deform_conv2d(call: Call) -> Any:
    """The output, then columns of some images at a time, then their products [deform]."""
    x, weight, offset = call.args[:3]
    for tensor in call.args[:5]:
        contiguous_copy(call, tensor)
    out = call.run()
    columns = _columns(x, weight, offset)
    call.scratch(columns * x.dtype.itemsize, "columns")
    call.scratch(num_bytes(out), "products")
    return out


def deform_conv2d_backward(call: Call) -> Any:
    """Gradients, and columns of some images at a time [deform]."""
    x, weight, offset = call.args[1:4]
    for tensor in call.args[:6]:
        contiguous_copy(call, tensor)
    gradients = call.run()
    call.scratch(_columns(x, weight, offset) * x.dtype.itemsize, "columns")
    return gradients


def _columns(x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor) -> int:
    """Elements: inputs under the kernel at every output pixel of as many images as divide the batch [deform]."""
    batch = x.size(0)
    parallel = next(count for count in range(min(batch, MOST_PARALLEL_IMAGES), 0, -1) if batch % count == 0)
    pixels: int = offset.size(2) * offset.size(3)
    return x.size(1) * weight.size(2) * weight.size(3) * parallel * pixels


MOST_CUSTOM_ROWS: Final = 1536  # [cuda `_gemm_4bit_custom_max_m`]


def _statistics_first(call: Call) -> Any:
    """The scales of rows or blocks are allocated before the numbers [cuda]."""
    numbers, scales, *rest = call.simulation.on_meta(call.func, call.args, call.kwargs, call.device)
    for tensor in (scales, numbers, *rest):
        call.simulation.adopt(tensor, call.device, call.name)
    return (numbers, scales, *rest)


NO_OUTLIERS: Final = "bitsandbytes int8: no column of activations is taken to pass the threshold, so all stay in int8"


def int8_quantise(call: Call) -> Any:
    """Scales, numbers; outliers, where a threshold asks for them: sizes, truth values, those of columns [cuda]."""
    x, threshold = call.arg(0, "A"), call.arg(1, "threshold", 0.0)
    scales = call.empty((x.numel() // x.size(-1),), dtype=torch.float32)
    numbers = call.empty(x.size(), dtype=torch.int8)
    if threshold <= 0:
        return numbers, scales, None
    sizes = call.scratch(num_bytes(x), "sizes of elements")
    call.scratch(x.numel(), "outliers")
    call.release(sizes)
    call.scratch(x.size(-1), "columns with outliers")
    call.simulation.assumptions.note(NO_OUTLIERS)
    return numbers, scales, call.empty((0,), dtype=torch.int64)


def int8_matmul(call: Call) -> Any:
    a, b = call.arg(0, "A"), call.arg(1, "B")
    return _int8_product(call, a, b, call.arg(5, "dtype") or torch.float16)


def int8_mixed_matmul(call: Call) -> Any:
    """The product, and columns of outliers, of which there are none [backends/default/ops.py]."""
    x, a, b = call.arg(0, "A"), call.arg(1, "CA"), call.arg(2, "CB")
    columns = call.empty((0,), dtype=x.dtype)
    return _int8_product(call, a, b, x.dtype), columns


def _int8_product(call: Call, a: torch.Tensor, b: torch.Tensor, wanted: torch.dtype) -> torch.Tensor:
    """32-bit integers by cublasLt, then fp16 numbers, then those in the type asked for [cuda]."""
    elements = a.numel() // a.size(-1) * b.size(0)
    call.scratch(elements * INT32, "32-bit products")
    take_lt_workspace(call)
    if wanted is not torch.float16:
        call.scratch(elements * 2, "fp16 products")
    return call.empty((*a.size()[:-1], b.size(0)), dtype=wanted)


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
    "torchvision.nms": nms,
    "torchvision.qnms": nms,
    **{f"torchvision.{name}": roi_forward for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")},
    **{
        f"torchvision._{name}_backward": roi_backward
        for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")
    },
    "torchvision.deform_conv2d": deform_conv2d,
    "torchvision._deform_conv2d_backward": deform_conv2d_backward,
    "bitsandbytes.gemm_4bit": product_4bit,
    "bitsandbytes.int8_mixed_scaled_mm": int8_mixed_matmul,
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
