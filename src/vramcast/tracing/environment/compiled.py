"""`torch.compile`: what should be compiled runs eagerly.

Left out: what Inductor changes. It fuses pointwise operators, so it has fewer temporaries and saves fewer activations:
the eager figures are mostly above those of compiled code.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

EAGER: Final = (
    "torch.compile is not modelled: the step is traced as it runs eagerly; compiled, fused operators keep fewer "
    "tensors, reordered ones and autotuning may hold more"
)
GRAPHED: Final = "torch.compile runs without CUDA graphs; theirs keep a pool of their own"
GRAPH_MODES: Final = ("reduce-overhead", "max-autotune")
GRAPH_TREES: Final = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")
"""That torch's module of graphs takes from a build with CUDA when `torch._dynamo.reset` loads it."""


def patch_compile(patches: Patches, simulation: Simulation) -> None:
    """Replace `torch.compile`; `Module.compile` asks it, too."""
    from torch._dynamo.eval_frame import OptimizedModule

    class Eager(OptimizedModule):  # what scripts unwrap by `_orig_mod`
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self._orig_mod(*args, **kwargs)

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return partial(compiled, **options)
        simulation.assumptions.note(EAGER, simulation.origins.place())
        if options.get("mode") in GRAPH_MODES:
            simulation.assumptions.note(GRAPHED, simulation.origins.place())
        return Eager(model, _as_it_is) if isinstance(model, torch.nn.Module) else model

    patches.set(torch, "compile", compiled)
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    for name in GRAPH_TREES:
        patches.set(torch._C, name, _as_it_is)
    # A forward without a method of its own would lead into the compiler's inlining.
    patches.set(torch._dynamo.external_utils, "wrap_inline", _as_it_is)


def _as_it_is(function: Any) -> Any:
    return function
