"""Operators that torch takes apart differently by device: replaced above autograd while a simulation is active."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from vramcast.tracing.composites import attention, encoder_layers, formulas, layers
from vramcast.tracing.simulation import Simulation

COMPOSITES: Final[Mapping[str, Callable[..., Any]]] = {
    **attention.COMPOSITES, **encoder_layers.COMPOSITES, **formulas.COMPOSITES, **layers.COMPOSITES,
}
"""Overload ("scaled_dot_product_attention", "softmax.int") -> its kernel, which is given the simulation first."""


def start_composites(simulation: Simulation) -> Callable[[], None]:
    """Register them; returns what undoes it."""
    libraries = [torch.library.Library("aten", "IMPL", key) for key in ("AutogradMeta", "Meta")]
    for name, composite in COMPOSITES.items():
        kernel = partial(composite, simulation)
        libraries[0].impl(name, kernel)
        if name not in formulas.BACKWARD_ONLY:
            simulation.composites[name] = kernel
    for name, shapes in layers.KERNELS.items():
        # not Library.impl, which wants meta tensors to be taken apart
        libraries[1].m.impl(name, "Meta", shapes, False)

    def stop() -> None:
        for library in libraries:
            library._destroy()

    return stop
