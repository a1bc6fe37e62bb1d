"""torchvision's own operators, where its compiled part is missing or does not fit this torch.

torchvision asks for them when it is imported; on tensors without data none of them is ever run.
"""

from __future__ import annotations

from typing import Any, Final

import torch

MISSING_OPERATORS: Final = "operator torchvision::"
"""What torch says of an import without them."""
SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_kept: Final[list[Any]] = []  # a library that is collected takes its operators along


def define_vision_operators() -> None:
    """Define those that are not there."""
    known = torch._C._dispatch_get_all_op_names()
    for schema in SCHEMAS:
        if f"torchvision::{schema.partition('(')[0]}" not in known:
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(schema)
            _kept.append(library)
