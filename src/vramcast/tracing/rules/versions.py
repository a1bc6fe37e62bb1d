"""The version of torch whose CUDA kernels are simulated: the one installed."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch

Version = tuple[int, int]
PARTS: Final = 2


@cache
def installed() -> Version:
    """Major and minor number."""
    major, minor = torch.__version__.split("+")[0].split(".")[:PARTS]
    return int(major), int(minor)


def at_least(version: tuple[int, ...]) -> bool:
    """Whether the simulated torch is of that version or a later one."""
    return installed() >= version


__all__ = ["Version", "at_least", "installed"]
