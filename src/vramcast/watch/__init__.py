"""Running GPUs: read, shown, recorded, and held beside what was predicted for them."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.watch import calibrate as calibrate
    from vramcast.watch import following as following
    from vramcast.watch import guard as guard
    from vramcast.watch import here as here
    from vramcast.watch import outputs as outputs
    from vramcast.watch import readers as readers
    from vramcast.watch import session as session
    from vramcast.watch import view as view

__getattr__ = submodules(__name__)
