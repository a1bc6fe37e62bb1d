"""Seconds of the pieces of a training step: rates, links, one layer, the ends of the network, states."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.timing.training import tape as tape

__getattr__ = submodules(__name__)
