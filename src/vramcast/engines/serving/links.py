"""How the cards of a machine reach each other, as far as engines set aside memory for it."""

from __future__ import annotations

from vramcast.domain.device import Gpu


def has_fabric(gpu: Gpu) -> bool:
    """Whether all cards of a machine reach each other directly; bridges join few."""
    return gpu.link is not None and gpu.link_topology != "bridge"
