"""Operators that torch takes apart differently by device: replaced above autograd while a simulation is active."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites import host

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

Composite = Callable[["Simulation"], Callable[..., Any]]
"""Given the simulation, the kernel."""

COMPOSITES: Final[Mapping[str, Composite]] = {}
"""Overload ("scaled_dot_product_attention", "softmax.int") -> what makes its kernel."""


def start_composites(simulation: Simulation) -> Any:
    """Register them; they are gone when the library returned is destroyed."""
    library = torch.library.Library("aten", "IMPL", "AutogradMeta")
    is_host = simulation.memory.devices[0].is_cpu
    for name, make in (host.COMPOSITES if is_host else COMPOSITES).items():
        library.impl(name, make(simulation))
    return library
