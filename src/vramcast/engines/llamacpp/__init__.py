"""llama.cpp and ik_llama.cpp: layers over cards and host, a cache allocated at start, buffers as ggml packs them.

[llama.cpp] ggml-org/llama.cpp; [ik] ikawrakow/ik_llama.cpp
"""

from vramcast.engines.llamacpp.deploy import deploy, fitted
from vramcast.engines.llamacpp.settings import settings_of

__all__ = ["deploy", "fitted", "settings_of"]
