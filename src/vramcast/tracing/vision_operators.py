"""torchvision's own operators, where its compiled part is missing or does not fit this torch.

torchvision asks for them when it is imported; on tensors without data none of them is ever run.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

MISSING: Final = "operator torchvision::"
"""What torch says of an import without them."""
SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_kept: Final[list[Any]] = []  # a library that is collected takes its operators along


def prepare_torchvision() -> None:
    """Import torchvision, where it is installed: timm, transformers and diffusers import it on the way."""
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if MISSING not in str(error):
            raise
        _define()
        importlib.import_module("torchvision")


def _define() -> None:
    known = torch._C._dispatch_get_all_op_names()
    for schema in SCHEMAS:
        if f"torchvision::{schema.partition('(')[0]}" not in known:
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(schema)
            _kept.append(library)


def ensure_vision_operators() -> None:
    """Load torchvision's own operators; where they cannot be, define them, so that an import finds them."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return
    for library in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            continue  # built for another torch
    _define()
