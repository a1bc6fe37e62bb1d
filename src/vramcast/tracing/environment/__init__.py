"""What Python sees of the simulated devices: `tensor.device`, `torch.cuda`, pinned memory, streams, loaders, files."""

from __future__ import annotations

import torch

from vramcast.tracing.environment.compiled import patch_compile
from vramcast.tracing.environment.cuda import patch_cuda
from vramcast.tracing.environment.devices import patch_devices
from vramcast.tracing.environment.flex import patch_flex
from vramcast.tracing.environment.gradients import patch_gradients
from vramcast.tracing.environment.host import patch_host
from vramcast.tracing.environment.loaders import patch_loaders
from vramcast.tracing.environment.nested import patch_nested
from vramcast.tracing.environment.overlay import Overlay, patch_files
from vramcast.tracing.environment.parallel import patch_parallel, patch_processes, patch_threads
from vramcast.tracing.environment.parameters import patch_parameters, patch_pinning
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.reading import patch_reading
from vramcast.tracing.environment.recurrent import patch_recurrent
from vramcast.tracing.environment.saving import patch_saving
from vramcast.tracing.environment.tensors import patch_tensors
from vramcast.tracing.environment.triton import patch_triton
from vramcast.tracing.extensions.xformers import patch_xformers, without_compiled_part
from vramcast.tracing.simulation import Simulation
from vramcast.tracing.vision_operators import with_stand_ins


def patch_environment(patches: Patches, simulation: Simulation, overlay: Overlay) -> None:
    """All of it."""
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
    if not simulation.memory.devices[0].is_cpu:
        patch_devices(patches)
    patch_host(patches, simulation)
    patch_recurrent(patches, simulation)
    patch_nested(patches, simulation)
    patch_triton(patches, simulation)
    patch_xformers(patches, simulation)
    load = with_stand_ins(torch.ops.load_library)
    patches.set(torch.ops, "load_library", without_compiled_part(load, simulation))
