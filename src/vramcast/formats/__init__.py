"""Files of other tools, both ways: read into the options of a question, and written for a plan."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.formats import field_names as field_names
    from vramcast.formats import fix as fix
    from vramcast.formats import lexer as lexer
    from vramcast.formats import merged as merged
    from vramcast.formats import paths as paths
    from vramcast.formats import post_training_write as post_training_write
    from vramcast.formats import read as read
    from vramcast.formats import reading as reading
    from vramcast.formats import registry as registry
    from vramcast.formats import write as write

__getattr__ = submodules(__name__)
