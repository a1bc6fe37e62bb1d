"""Operators that torch takes apart differently by device: replaced above autograd while a simulation is active."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from vramcast.tracing.composites import attention, formulas, layers
from vramcast.tracing.simulation import Simulation

COMPOSITES: Final[Mapping[str, Callable[..., Any]]] = {
    **attention.COMPOSITES, **attention.ENCODER_COMPOSITES, **formulas.COMPOSITES, **layers.COMPOSITES,
}
"""Overload ("scaled_dot_product_attention", "softmax.int") -> its kernel, which is given the simulation first."""


class Composites:
    """The registrations of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._libraries: list[torch.library.Library] = []

    def start(self) -> None:
        """Register them."""
        self._libraries = [torch.library.Library("aten", "IMPL", key) for key in ("AutogradMeta", "Meta")]
        for name, composite in COMPOSITES.items():
            kernel = partial(composite, self._simulation)
            self._libraries[0].impl(name, kernel)
            if name not in formulas.BACKWARD_ONLY:
                self._simulation.composites[name] = kernel
        for name, shapes in layers.KERNELS.items():
            # not Library.impl, which wants meta tensors to be taken apart
            self._libraries[1].m.impl(name, "Meta", shapes, False)

    def stop(self) -> None:
        """Undo it."""
        for library in self._libraries:
            library._destroy()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within: operators are torch's own, but for attention, whose kernel is still chosen for the card."""
        self.stop()
        chosen = torch.library.Library("aten", "IMPL", "AutogradMeta")
        for name, composite in attention.COMPOSITES.items():
            chosen.impl(name, partial(composite, self._simulation))
        try:
            yield
        finally:
            chosen._destroy()
            self.start()
