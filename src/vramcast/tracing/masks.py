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


def check_masks(tensor: torch.Tensor, indices: Iterable[Any]) -> None:
    """Raises: IndexError, in torch's words, for a mask that is not as large as what it chooses from"""
    dim = 0
    for index in indices:
        if not is_mask(index):
            dim += 1
            continue
        for each in range(index.dim()):
            if dim + each >= tensor.dim() or index.size(each) != tensor.size(dim + each):
                raise IndexError(
                    f"The shape of the mask {list(index.size())} at index {each} does not match the shape of the "
                    f"indexed tensor {list(tensor.size())} at index {dim + each}"
                )
        dim += index.dim()
