"""LBFGS: what it keeps depends on values, so the most that it may keep is assumed.

Each iteration adds a direction and a step, as long as the curvature is positive, up to `history_size` of each.
[lbfgs] pytorch torch/optim/lbfgs.py `LBFGS.step`
"""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any, Final

import torch
from torch.optim import lbfgs

FULL: Final = "LBFGS: curvatures are positive, the history is full (2 x history_size gradients) from the second step on"
_FILE: Final = lbfgs.__file__
_CONDITION: Final = "if ys > "


def is_curvature() -> bool:
    """Whether what is read now is LBFGS' question whether the curvature is positive."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return frame is not None and linecache.getline(_FILE, frame.f_lineno).strip().startswith(_CONDITION)


def fill_history(optimizer: torch.optim.LBFGS) -> bool:
    """Add what later iterations would; whether there was room."""
    parameters = optimizer.param_groups[0]["params"]
    state: dict[str, Any] = optimizer.state.get(parameters[0], {})
    gradient, directions = state.get("prev_flat_grad"), state.get("old_dirs")
    if gradient is None or directions is None:
        return False
    missing = optimizer.param_groups[0]["history_size"] - len(directions)
    for _ in range(missing):
        directions.insert(0, torch.empty_like(gradient))
        state["old_stps"].insert(0, torch.empty_like(gradient))
        state["ro"].insert(0, gradient.new_empty(()))
    return missing > 0
