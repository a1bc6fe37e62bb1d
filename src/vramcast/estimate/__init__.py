"""Questions answered: memory, time and price of a plan."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.estimate import changes as changes
    from vramcast.estimate import checks as checks
    from vramcast.estimate import diffusion as diffusion
    from vramcast.estimate import layers as layers
    from vramcast.estimate import post_training as post_training
    from vramcast.estimate import recorded as recorded
    from vramcast.estimate import serving as serving
    from vramcast.estimate import serving_changes as serving_changes
    from vramcast.estimate import step_time as step_time
    from vramcast.estimate import timeline as timeline
    from vramcast.estimate import traffic as traffic
    from vramcast.estimate import training as training

__getattr__ = submodules(__name__)
