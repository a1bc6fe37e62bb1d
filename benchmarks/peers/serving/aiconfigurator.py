"""aiconfigurator on a question of benchmarks/serve.py: prints weights and cache of one card [GiB].

It fetches the config from the hub; here it is handed in as a local folder. Its newest vLLM data for H100 is 0.24.0.
"""

import contextlib
import io
import json
import logging
import sys
import tempfile
from pathlib import Path

logging.disable(logging.CRITICAL)
sys.path.pop(0)  # this file is named like the package it measures
from aiconfigurator_core.sdk.memory import estimate_kv_cache  # noqa: E402

question = json.loads(sys.argv[1])
moe = {"moe_tp_size": question["tp"], "moe_ep_size": 1} if question["moe"] else {}
silent = io.StringIO()
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
    (Path(folder) / "config.json").write_text(json.dumps(question["config"]))
    answer = estimate_kv_cache(
        folder, "h100_sxm", "vllm", "0.24.0", max_num_tokens=8192, max_batch_size=1024,
        memory_fraction_kind="of_total", memory_fraction_value=question["fraction"], tp_size=question["tp"],
        gpu_memory_capacity_bytes_override=round(question["visible_gib"] * 2**30), **moe,
    )
print(answer["memory_breakdown"]["weights_bytes"] / 2**30, answer["total_kv_size_bytes"] / 2**30)
