"""The best of many plans."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.search import post_training as post_training
    from vramcast.search import serving as serving
    from vramcast.search import techniques as techniques

__getattr__ = submodules(__name__)
