"""Plans as files that other tools run: a folder per plan, every line with its reason."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.emit import write as write

__getattr__ = submodules(__name__)
