"""Operators that torch takes apart differently by device: replaced above autograd while a simulation is active."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites import (
    attention,
    batch_norm,
    dropout,
    eigenvalues,
    encoder_layers,
    formulas,
    fused,
    host,
    linear,
    losses,
    recurrent,
    softmax,
)

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

Composite = Callable[["Simulation"], Callable[..., Any]]
"""Given the simulation, the kernel."""

COMPOSITES: Final[Mapping[str, Composite]] = {
    **attention.COMPOSITES, **batch_norm.COMPOSITES, **dropout.COMPOSITES, **eigenvalues.COMPOSITES,
    **encoder_layers.COMPOSITES, **formulas.COMPOSITES, **linear.COMPOSITES, **losses.COMPOSITES,
    **recurrent.COMPOSITES, **softmax.COMPOSITES,
}
"""Overload ("scaled_dot_product_attention", "softmax.int") -> what makes its kernel."""
BACKWARD_ONLY: Final = frozenset((*losses.BACKWARD_ONLY, *formulas.COMPOSITES, *formulas.HOST_COMPOSITES))
"""Those that differ in backward only, and call the operator itself."""
KERNELS: Final[Mapping[str, Callable[..., Any]]] = fused.KERNELS
"""Operators that CUDA has a kernel of while meta tensors take them apart: what their outputs look like."""


def start_composites(simulation: Simulation) -> Callable[[], None]:
    """Register them; returns what undoes it."""
    libraries = [torch.library.Library("aten", "IMPL", key) for key in ("AutogradMeta", "Meta")]
    is_host = simulation.memory.devices[0].is_cpu
    for name, make in (host.COMPOSITES if is_host else COMPOSITES).items():
        kernel = make(simulation)
        libraries[0].impl(name, kernel)
        if name not in BACKWARD_ONLY:
            simulation.composites[name] = kernel
    for name, shapes in (fused.HOST_KERNELS if is_host else KERNELS).items():
        # not Library.impl, which wants meta tensors to be taken apart
        libraries[1].m.impl(name, "Meta", shapes, False)

    def stop() -> None:
        for library in libraries:
            library._destroy()

    return stop
