"""litgpt: fine-tuning with Lightning Fabric."""

from vramcast.engines.litgpt.run import ranks

__all__ = ["ranks"]
