"""Layers as operators on a graph."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.blocks import parameters as parameters
    from vramcast.blocks import parts as parts
    from vramcast.blocks import transformer as transformer

__getattr__ = submodules(__name__)
