"""SimuMax on the question of benchmarks/train.py; prints GiB."""

import contextlib
import io
import re
import sys

root = sys.argv[1]
sys.path.insert(0, root)
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig  # noqa: E402
from simumax.core.perf_llm import PerfLLM  # noqa: E402

with contextlib.redirect_stdout(io.StringIO()):
    performance = PerfLLM()
    performance.configure(
        strategy_config=StrategyConfig.init_from_config_file(f"{root}/configs/strategy/tp2_pp1_dp4_mbs1.json"),
        model_config=ModelConfig.init_from_config_file(f"{root}/configs/models/llama3-70b.json"),
        system_config=SystemConfig.init_from_config_file(f"{root}/configs/system/b200_bf16_ceperm.json"),
    )
    performance.model_config.layer_num = 12
    performance.model_config.padded_vocab_size = True
    performance.model_config.make_vocab_size_divisible_by = 128
    performance.run_estimate()
    report = str(performance.analysis_mem())
found = re.search(r'"peak_mem": "([\d.]+) GB"', report)
assert found, report
print(found[1])
