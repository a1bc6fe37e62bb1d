"""One rank of a distributed job, simulated without the others, without network and without NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vramcast.tracing.distributed.groups import (
    World,
    patch_checkpoints,
    patch_layouts,
    patch_objects,
    patch_randomness,
    patch_reductions,
    patch_replicas,
    process_groups,
)
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


@contextmanager
def simulate_distributed(patches: Patches, simulation: Simulation, world: World) -> Iterator[None]:
    """Within: `torch.distributed` works as on that rank of that world."""
    patch_layouts(patches)
    patch_objects(patches)
    patch_randomness(patches)
    patch_replicas(patches)
    if world.size > 1:
        patch_checkpoints(patches, simulation)
    patch_reductions(patches, simulation)
    with process_groups(patches, world):
        yield
