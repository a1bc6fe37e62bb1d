"""What Python sees of the simulated devices: `tensor.device`, `torch.cuda`, pinned memory, streams, loaders, files."""

from __future__ import annotations

from vramcast.tracing.environment.cuda import patch_cuda
from vramcast.tracing.environment.datasets import patch_tokens
from vramcast.tracing.environment.hub import patch_addresses
from vramcast.tracing.environment.modules import (
    patch_compile,
    patch_flex,
    patch_nested,
    patch_recurrent,
    patch_sources,
    patch_triton,
)
from vramcast.tracing.environment.older import patch_older
from vramcast.tracing.environment.overlay import Overlay, patch_files
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.processes import patch_loaders, patch_parallel, patch_processes, patch_threads
from vramcast.tracing.environment.saving import patch_saving
from vramcast.tracing.environment.tensor_data import patch_parameters, patch_pinning, patch_reading
from vramcast.tracing.environment.tensors import patch_devices, patch_gradients, patch_tensors
from vramcast.tracing.simulation import Simulation


def patch_environment(patches: Patches, simulation: Simulation, overlay: Overlay) -> None:
    patch_tensors(patches, simulation)
    patch_gradients(patches, simulation)
    patch_reading(patches, simulation)
    patch_parameters(patches, simulation)
    patch_pinning(patches, simulation)
    patch_loaders(patches, simulation)
    patch_files(patches, overlay)
    patch_saving(patches, simulation, overlay)
    patch_compile(patches, simulation)
    patch_flex(patches, simulation)
    patch_parallel(patches, simulation)
    patch_processes(patches, simulation)
    patch_threads(patches, simulation)
    patch_cuda(patches, simulation)
    patch_devices(patches)
    patch_recurrent(patches, simulation)
    patch_nested(patches, simulation)
    patch_triton(patches, simulation)
    patch_sources(patches, simulation)
    patch_addresses(patches, simulation)
    patch_tokens(patches, simulation)
    patch_older(patches, simulation)
