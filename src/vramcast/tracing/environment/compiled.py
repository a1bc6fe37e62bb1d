"""`torch.compile`: what should be compiled runs eagerly.

Left out: what Inductor changes. It fuses pointwise operators, so it has fewer temporaries and saves fewer activations:
the eager figures are mostly above those of compiled code.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

EAGER: Final = "torch.compile runs eagerly; compiled code mostly needs less for activations and temporaries"


def patch_compile(patches: Patches, simulation: Simulation) -> None:
    """Replace `torch.compile`; `Module.compile` asks it, too."""
    from torch._dynamo.eval_frame import OptimizedModule

    class Eager(OptimizedModule):  # what scripts unwrap by `_orig_mod`
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self._orig_mod(*args, **kwargs)

    def compiled(model: Any = None, **_options: Any) -> Any:
        if model is None:
            return compiled
        simulation.assumptions.note(EAGER, simulation.origins.place())
        return Eager(model, _as_it_is) if isinstance(model, torch.nn.Module) else model

    patches.set(torch, "compile", compiled)
    # It would load the compiler's own pools for graphs, which need a build with CUDA.
    patches.set(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    # A forward without a method of its own would lead into the compiler's inlining.
    patches.set(torch._dynamo.external_utils, "wrap_inline", _as_it_is)


def _as_it_is(function: Any) -> Any:
    return function
