"""What the engines that run eager PyTorch share: recipes, passes, states, phases."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.engines.eager import checks as checks
    from vramcast.engines.eager import passes as passes
    from vramcast.engines.eager import question as question
    from vramcast.engines.eager import recipe as recipe
    from vramcast.engines.eager import releases as releases
    from vramcast.engines.eager import trl as trl

__getattr__ = submodules(__name__)
