"""Bytes of weights, caches and optimizer states."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.states import optimizers as optimizers

__getattr__ = submodules(__name__)
