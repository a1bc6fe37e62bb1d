"""What ships as data: cards, machines, prices, models."""

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.catalogue import card_names as card_names
    from vramcast.catalogue import clusters as clusters
    from vramcast.catalogue import given as given
    from vramcast.catalogue import gpu_texts as gpu_texts
    from vramcast.catalogue import gpus as gpus
    from vramcast.catalogue import index as index
    from vramcast.catalogue import instances as instances
    from vramcast.catalogue import machines as machines
    from vramcast.catalogue import pipelines as pipelines
    from vramcast.catalogue import prices as prices
    from vramcast.catalogue import tables as tables

__getattr__ = submodules(__name__)
