"""What operators read, write, keep and need while they run."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.operators import attention as attention
    from vramcast.operators import linear as linear

__getattr__ = submodules(__name__)
