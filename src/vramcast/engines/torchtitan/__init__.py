"""torchtitan: FSDP2, tensor, context, pipeline and expert parallelism for pre-training."""

from vramcast.engines.torchtitan.run import deciding_ranks, ranks
from vramcast.engines.torchtitan.setting import check

__all__ = ["check", "deciding_ranks", "ranks"]
