"""Weight tensors of layers, embeddings and heads, and how many there are."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.blocks.parameters import model as model

__getattr__ = submodules(__name__)
