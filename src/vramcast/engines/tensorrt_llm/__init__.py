"""TensorRT-LLM: a fraction of what is free after weights, activations and communication holds the cache.

[TRT-LLM] NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/_util.py `KvCacheCreator`
"""

from vramcast.engines.tensorrt_llm.deploy import deploy

__all__ = ["deploy"]
