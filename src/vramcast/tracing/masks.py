"""Truth values as indices: torch turns them into coordinates first, which live until the operator returns.

[expand] pytorch aten/src/ATen/native/IndexingUtils.h `expandTensors`
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

MASKS: Final = frozenset({torch.bool, torch.uint8})
COORDINATES: Final = "coordinates of a mask"
INT64_BYTES: Final = 8


def is_mask(index: Any) -> bool:
    """Whether an index chooses elements by truth values."""
    return isinstance(index, torch.Tensor) and index.dtype in MASKS


def masks_among(indices: Iterable[Any]) -> list[torch.Tensor]:
    """Those of the indices that are masks."""
    return [index for index in indices if is_mask(index)]


def coordinates_bytes(mask: torch.Tensor, count: int) -> int:
    """An integer a dimension for each of the elements that a mask chooses [bytes]. Source: [expand]"""
    return INT64_BYTES * mask.dim() * count
