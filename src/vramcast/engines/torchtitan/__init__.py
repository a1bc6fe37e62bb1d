"""torchtitan: FSDP2, tensor, context, pipeline and expert parallelism for pre-training."""

from vramcast.engines.torchtitan.run import deciding_ranks, ranks

__all__ = ["deciding_ranks", "ranks"]
