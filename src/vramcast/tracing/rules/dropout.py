"""Dropout.

[dropout] pytorch aten/src/ATen/native/cuda/Dropout.cu: `dropout_cuda` makes the mask first, a byte an element
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import like


def dropout(call: Call) -> Any:
    """Result and mask."""
    x, p, train = call.arg(0, "input"), call.arg(1, "p"), call.arg(2, "train")
    if train is False or p == 1 or call.device.is_cpu:
        return call.run()
    mask = like(call, x, dtype=torch.bool)
    return like(call, x), mask


RULES: Final[Mapping[str, Rule]] = {"aten.native_dropout": dropout}
PLAIN: Final = frozenset({"aten.native_dropout_backward"})
