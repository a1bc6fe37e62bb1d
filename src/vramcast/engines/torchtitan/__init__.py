"""torchtitan: FSDP2, tensor, context, pipeline and expert parallelism for pre-training."""

from vramcast.engines.torchtitan.run import ranks

__all__ = ["ranks"]
