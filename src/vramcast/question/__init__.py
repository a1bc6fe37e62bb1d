"""Questions as users write them: options, keyword arguments and job files, all from one table."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.question import calibration as calibration
    from vramcast.question import commands as commands
    from vramcast.question import files as files
    from vramcast.question import options as options
    from vramcast.question import plan_options as plan_options
    from vramcast.question import plan_serving as plan_serving
    from vramcast.question import post_training_options as post_training_options
    from vramcast.question import serving_options as serving_options
    from vramcast.question import whole_command as whole_command

__getattr__ = submodules(__name__)
