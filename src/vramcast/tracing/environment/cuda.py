"""`torch.cuda` answers for the simulated cards."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


def patch_cuda(patches: Patches, simulation: Simulation) -> None:
    """Replace what asks the CUDA library."""
    devices = simulation.memory.devices
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_args, **_kwargs: True,
        "_lazy_init": lambda: None,
        "current_device": lambda: 0,
        "device_count": lambda: len(devices),
        "synchronize": lambda _device=None: None,
        "memory_allocated": lambda _device=None: devices[0].allocator.allocated_bytes,
        "memory_reserved": lambda _device=None: devices[0].allocator.reserved_bytes,
        "max_memory_allocated": lambda _device=None: devices[0].allocator.peak_allocated_bytes,
        "max_memory_reserved": lambda _device=None: devices[0].allocator.peak_reserved_bytes,
        "reset_peak_memory_stats": lambda _device=None: devices[0].allocator.reset_peaks(),
        "empty_cache": lambda: devices[0].allocator.empty_cache(),
    }
    if devices[0].is_cpu:
        return
    for name, answer in answers.items():
        patches.set(torch.cuda, name, answer)
