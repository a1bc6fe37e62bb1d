"""Questions as users write them: options, keyword arguments and job files, all from one table."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.question import build as build
    from vramcast.question import diffusion as diffusion
    from vramcast.question import files as files
    from vramcast.question import option as option
    from vramcast.question import options as options
    from vramcast.question import plan_serving as plan_serving
    from vramcast.question import post_training as post_training
    from vramcast.question import serving as serving
    from vramcast.question import tables as tables
    from vramcast.question import whole_command as whole_command

__getattr__ = submodules(__name__)
