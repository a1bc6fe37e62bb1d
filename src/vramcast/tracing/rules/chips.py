"""The chip that a call's kernels are split over."""

from __future__ import annotations

from functools import cache

from vramcast.catalogue.gpus import multiprocessors, threads
from vramcast.domain.device import Gpu
from vramcast.operators.reduction import H100, Chip
from vramcast.tracing.call import Call


def chip(call: Call) -> Chip:
    """A card that no row lists is taken for an H100: partial sums differ by their blocks only."""
    return H100 if call.device.gpu is None else of_card(call.device.gpu)


@cache
def of_card(gpu: Gpu) -> Chip:
    count = multiprocessors(gpu.name)
    return H100 if count is None else Chip(count, threads(gpu.compute_capability))
