"""xformers, whose attention is an operator of torch or of flash-attn.

It stays imported after a simulation, since it defines operators once; what it decides when it is imported stays, too.
[library] xformers xformers/_cpp_lib.py `_register_extensions`, v0.0.35: its own compiled part holds 2:4 sparsity only
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

LIBRARY: Final = "_C"
TAKEN: Final = "the compiled part of xformers is taken to be built"

IMPORTED_BEFORE: Final = "xformers was imported outside of the simulation: its attention is taken to be CUTLASS's"
ASKS: Final = ("xformers._cpp_lib", "xformers.ops.fmha.common")
"""Modules that remember whether the compiled part is there."""
FLASH: Final = "xformers.ops.fmha.flash"


def patch_xformers(patches: Patches, simulation: Simulation) -> None:
    """Where it is imported already, its compiled part is there for the time of the simulation."""
    for name in ASKS:
        module = sys.modules.get(name)
        if module is not None and not vars(module).get("_built_with_cuda", True):
            patches.set(module, "_built_with_cuda", True)
    flash = sys.modules.get(FLASH)
    if flash is not None and not hasattr(flash, "_flash_fwd"):
        simulation.assumptions.note(IMPORTED_BEFORE)


def without_compiled_part(load: Callable[[Any], None], simulation: Simulation) -> Callable[[Any], None]:
    """A `torch.ops.load_library` that lets xformers go on where its library does not load beside this torch."""

    def load_or_go_on(path: Any) -> None:
        try:
            load(path)
        except OSError:
            file = Path(path)
            if file.parent.name != "xformers" or file.name.partition(".")[0] != LIBRARY:
                raise
            simulation.assumptions.note(TAKEN)

    return load_or_go_on
