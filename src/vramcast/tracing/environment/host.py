"""What the host itself holds where it is the device that is simulated."""

from __future__ import annotations

import weakref

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


def patch_host(patches: Patches, simulation: Simulation) -> None:
    """Count states of the random generator: checkpoints keep them, and C++ makes them unseen by any dispatch mode."""
    device = simulation.memory.devices[0]
    if not device.is_cpu:
        return
    get_state = torch.get_rng_state

    def counted() -> torch.Tensor:
        state = get_state()
        block = device.take(state.nbytes, "torch.get_rng_state")
        if block is not None:
            weakref.finalize(state.untyped_storage(), device.give, block)
        return state

    patches.set(torch, "get_rng_state", counted)
