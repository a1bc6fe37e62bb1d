"""What serving engines share: weights on a rank, layers of a pipeline stage, caches."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.engines.serving import table as table

__getattr__ = submodules(__name__)
