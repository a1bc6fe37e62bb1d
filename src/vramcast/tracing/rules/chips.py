"""The chip that a call's kernels are split over, and what its tensor cores may round."""

from __future__ import annotations

from functools import cache

import torch

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


def allows_tf32(kind: str) -> bool:
    """Whether products of 32-bit numbers may be computed in tf32, "matmul" or "conv", by either way of setting it.

    `allow_tf32` raises where a script said `fp32_precision` [torch/backends/__init__.py].
    """
    return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")
