"""What Python sees of the simulated devices: `tensor.device`, `torch.cuda`, pinned memory, streams."""

from __future__ import annotations

from vramcast.tracing.environment.cuda import patch_cuda
from vramcast.tracing.environment.host import patch_host
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.tensors import patch_tensors
from vramcast.tracing.simulation import Simulation


def patch_environment(patches: Patches, simulation: Simulation) -> None:
    """All of it."""
    patch_tensors(patches, simulation)
    patch_cuda(patches, simulation)
    patch_host(patches, simulation)
