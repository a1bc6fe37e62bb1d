"""Models, logs and prices as they come from outside."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.sources import arrivals as arrivals
    from vramcast.sources import by_name as by_name
    from vramcast.sources import failures as failures
    from vramcast.sources import files as files
    from vramcast.sources import gguf as gguf
    from vramcast.sources import hub as hub
    from vramcast.sources import numbers as numbers
    from vramcast.sources import resolve as resolve
    from vramcast.sources import snapshots as snapshots
    from vramcast.sources import weights as weights

__getattr__ = submodules(__name__)
