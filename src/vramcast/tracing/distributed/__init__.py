"""One rank of a distributed job, simulated without the others, without network and without NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vramcast.tracing.distributed.checkpoints import patch_checkpoints
from vramcast.tracing.distributed.groups import patch_reductions, process_groups
from vramcast.tracing.distributed.layouts import patch_layouts
from vramcast.tracing.distributed.objects import patch_objects
from vramcast.tracing.distributed.randomness import patch_randomness
from vramcast.tracing.distributed.replicas import patch_replicas
from vramcast.tracing.distributed.world import World
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
