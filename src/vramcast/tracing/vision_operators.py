"""torchvision's own operators, where its compiled part is missing or does not fit this torch.

torchvision registers what its operators return when it is imported, which fails where they are not defined (its wheel
beside a CPU build of torch). They are defined then, by their schemas alone: on tensors without data none is ever run.
Where the compiled part loads nothing changes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

_SCALE: Final = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE: Final = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM: Final = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_SCALE}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_SCALE}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
    "int rois_zero_point, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_SCALE}) -> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
    f"SymInt pooled_width, {_SHAPE}) -> Tensor",
    f"ps_roi_align(Tensor input, {_SCALE}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, {_SCALE}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, {_SHAPE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    "_cuda_version() -> int",
)
LIBRARY: Final = "_C"
NO_CUDA: Final = -1  # what a torchvision without CUDA answers when asked for its version

_kept: Final[list[Any]] = []  # a library that is collected takes its operators along


def prepare_torchvision() -> None:
    """Import torchvision, where it is installed: timm, transformers and diffusers import it on the way."""
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    replaced = vars(torch.ops).get("load_library")
    torch.ops.load_library = with_stand_ins(torch.ops.load_library)
    try:
        importlib.import_module("torchvision")
    finally:
        if replaced is None:
            del torch.ops.load_library
        else:
            torch.ops.load_library = replaced


def unless_loads(load: Callable[[Any], None], package: str, instead: Callable[[], None]) -> Callable[[Any], None]:
    """A `torch.ops.load_library` that does something else where the compiled part of a package does not load."""

    def load_or_go_on(path: Any) -> None:
        try:
            load(path)
        except OSError:
            file = Path(path)
            if file.parent.name != package or file.name.partition(".")[0] != LIBRARY:
                raise
            instead()

    return load_or_go_on


def with_stand_ins(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """A `torch.ops.load_library` that defines torchvision's operators where their library does not load."""
    return unless_loads(load, "torchvision", _define)


def _define() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    known = torch._C._dispatch_get_all_op_names()
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        if f"torchvision::{name}" not in known:
            library.define(schema)
    library.impl("_cuda_version", lambda: NO_CUDA, "CompositeExplicitAutograd")
    _kept.append(library)
