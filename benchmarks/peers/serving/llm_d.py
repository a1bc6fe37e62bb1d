"""llm-d's capacity planner on a question of benchmarks/serve.py: prints weights and cache of one card [GiB].

It fetches config and parameter counts from the hub; here both are handed in, so that it answers without a network.
"""

import json
import sys
from types import SimpleNamespace

from planner import capacity_planner

question = json.loads(sys.argv[1])


class Config(SimpleNamespace):
    """A config.json with attributes."""


config = Config(**question["config"])
capacity_planner.model_params_by_dtype = lambda *_: question["parameters_by_dtype"]
arguments = {"tp": question["tp"], "pp": 1}
weights = capacity_planner.per_gpu_model_memory_required(question["hub"], config, **arguments)
pool = capacity_planner.allocatable_kv_cache_memory(
    question["hub"], config, question["visible_gib"], question["fraction"], max_model_len=question["context"],
    **arguments,
)
print(weights, pool / question["tp"])
