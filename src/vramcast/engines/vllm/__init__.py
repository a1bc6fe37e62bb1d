"""vLLM: everything the fraction leaves after weights, one profiled step and what is not torch's goes to the KV pool.

[vLLM] vllm-project/vllm v1/worker/gpu_worker.py `determine_available_memory`, v1/core/kv_cache_utils.py
"""

from vramcast.engines.vllm.deploy import deploy
from vramcast.engines.vllm.settings import settings_of

__all__ = ["deploy", "settings_of"]
