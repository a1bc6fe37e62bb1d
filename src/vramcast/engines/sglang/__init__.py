"""SGLang: a static fraction of the memory that was free at the start holds weights and cache.

[SGLang] sgl-project/sglang python/sglang/srt/model_executor/model_runner.py `profile_max_num_token`
"""

from vramcast.engines.sglang.deploy import deploy
from vramcast.engines.sglang.settings import settings_of

__all__ = ["deploy", "settings_of"]
