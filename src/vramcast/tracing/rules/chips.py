"""The simulated card as kernels see it."""

from __future__ import annotations

from functools import cache
from typing import Final

from vramcast.catalogue.multiprocessors import multiprocessors, threads
from vramcast.domain.device import Gpu
from vramcast.tracing.call import Call
from vramcast.tracing.rules.reduction_kernel import Chip

UNKNOWN: Final = Chip(132, 2048)
"""A card that no row lists is taken for an H100: partial sums differ by their blocks only."""


def chip(call: Call) -> Chip:
    """Of the call's device."""
    return UNKNOWN if call.device.gpu is None else of_card(call.device.gpu)


@cache
def of_card(gpu: Gpu) -> Chip:
    """Multiprocessors and their threads."""
    count = multiprocessors(gpu.name)
    return UNKNOWN if count is None else Chip(count, threads(gpu.compute_capability))


__all__ = ["chip", "of_card"]
