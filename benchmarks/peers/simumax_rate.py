"""SimuMax on the questions of benchmarks/train_rate.py `PEER_QUESTION`, in one process; prints CPU seconds of each."""

import contextlib
import io
import sys
import time
import warnings

root = sys.argv[1]
sys.path.insert(0, root)
warnings.simplefilter("ignore")
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig  # noqa: E402
from simumax.core.perf_llm import PerfLLM  # noqa: E402

ROUNDS = 20
started = 0.0
with contextlib.redirect_stdout(io.StringIO()):
    for place in range(ROUNDS + 1):  # the first warms the caches
        if place == 1:
            started = time.process_time()
        strategy = StrategyConfig.init_from_config_file(f"{root}/configs/strategy/tp2_pp1_dp4_mbs1.json")
        strategy.seq_len = 4096 + 64 * place
        performance = PerfLLM()
        performance.configure(
            strategy_config=strategy,
            model_config=ModelConfig.init_from_config_file(f"{root}/configs/models/llama3-70b.json"),
            system_config=SystemConfig.init_from_config_file(f"{root}/configs/system/b200_bf16_ceperm.json"),
        )
        performance.model_config.layer_num = 12
        performance.run_estimate()
        performance.analysis_mem()
        performance.analysis_cost()
seconds = time.process_time() - started
print(seconds / ROUNDS)
