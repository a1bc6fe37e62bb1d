"""torchvision's CUDA operators, and its import where its own library does not load.

torchvision's Python code registers what its operators' outputs look like, which fails where its C++ library was built
for another torch (`--no-deps` beside a CPU build). Operators with any schema let it import; the rules answer them.

[nms] torchvision csrc/ops/cuda/nms_kernel.cu
[align] torchvision csrc/ops/cuda/roi_align_kernel.cu; roi_pool, ps_roi_align and ps_roi_pool likewise
[deform] torchvision csrc/ops/cuda/deform_conv2d_kernel.cu
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BOXES_A_BLOCK: Final = 64  # bits of one word of the overlap mask [nms]
PARALLEL_IMAGES: Final = 32  # kMaxParallelImgs [deform]

SCHEMAS: Final[Mapping[str, str]] = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": "(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, "
    "bool aligned) -> Tensor",
}
