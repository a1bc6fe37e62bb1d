"""torchtitan: FSDP2, tensor, context, pipeline and expert parallelism for pre-training."""

from typing import TYPE_CHECKING

from vramcast.engines.torchtitan.run import deciding_ranks, ranks
from vramcast.engines.torchtitan.setting import check
from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.engines.torchtitan import automodel as automodel

__getattr__ = submodules(__name__)

__all__ = ["check", "deciding_ranks", "ranks"]
