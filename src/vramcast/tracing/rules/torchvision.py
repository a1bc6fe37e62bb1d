"""torchvision's CUDA operators: what they return and the scratch they take.

nms answers with what it keeps, which only values tell: it is assumed to keep every box, the most it may, in the order
in which they come.

[nms] torchvision csrc/ops/cuda/nms_kernel.cu
[deform] torchvision csrc/ops/cuda/deform_conv2d_kernel.cu
[roi] torchvision csrc/ops/cuda/roi_align_kernel.cu, roi_pool_kernel.cu, ps_roi_align_kernel.cu, ps_roi_pool_kernel.cu
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.units import ceil_div

BOXES_A_WORD: Final = 64  # bits of the mask of overlaps [nms]
WORD_BYTES: Final = 8
MOST_PARALLEL_IMAGES: Final = 32  # [deform] kMaxParallelImgs


def nms(call: Call) -> torch.Tensor:
    """Order of the scores, boxes in that order, one bit a pair of boxes; then the indices kept [nms]."""
    boxes, scores = call.args[:2]
    count = boxes.size(0)
    with call.simulation:
        order = torch.sort(scores, stable=True, dim=0, descending=True)[1]
        ordered = boxes.index_select(0, order)
    call.scratch(count * ceil_div(count, BOXES_A_WORD) * WORD_BYTES, "overlaps of boxes")
    call.scratch(count * WORD_BYTES, "boxes kept")
    del ordered
    kept = call.empty((count,), dtype=torch.int64)
    call.simulation.values.set(kept, torch.arange(count))
    return kept


def roi_forward(call: Call) -> Any:
    """Contiguous copies where needed, then the outputs [roi]."""
    for tensor in call.args[:2]:
        _copy(call, tensor)
    return call.run()


def roi_backward(call: Call) -> Any:
    """A contiguous copy of the regions where needed, then the gradient [roi]."""
    _copy(call, call.args[1])
    return call.run()


def deform_conv2d(call: Call) -> Any:
    """The output, then columns of some images at a time, then their products [deform]."""
    x, weight, offset = call.args[:3]
    for tensor in call.args[:5]:
        _copy(call, tensor)
    out = call.run()
    columns = _columns(x, weight, offset)
    call.scratch(columns * x.dtype.itemsize, "columns")
    call.scratch(out.numel() * out.dtype.itemsize, "products")
    return out


def deform_conv2d_backward(call: Call) -> Any:
    """Gradients, and columns of some images at a time [deform]."""
    x, weight, offset = call.args[1:4]
    for tensor in call.args[:6]:
        _copy(call, tensor)
    gradients = call.run()
    call.scratch(_columns(x, weight, offset) * x.dtype.itemsize, "columns")
    return gradients


def _columns(x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor) -> int:
    """Elements: inputs under the kernel at every output pixel of as many images as divide the batch [deform]."""
    batch = x.size(0)
    parallel = next(count for count in range(min(batch, MOST_PARALLEL_IMAGES), 0, -1) if batch % count == 0)
    pixels: int = offset.size(2) * offset.size(3)
    return x.size(1) * weight.size(2) * weight.size(3) * parallel * pixels


def _copy(call: Call, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        call.scratch(tensor.numel() * tensor.dtype.itemsize, "contiguous copy")


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
}
PLAIN: Final = frozenset[str]()
