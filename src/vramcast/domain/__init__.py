"""The nouns of questions and answers."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.domain import serving as serving

__getattr__ = submodules(__name__)
