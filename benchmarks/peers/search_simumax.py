"""SimuMax's grid search on the case of benchmarks/search.py, for so many seconds; prints JSON."""

import contextlib
import io
import json
import sys
import time

root, budget_s = sys.argv[1], float(sys.argv[2])
sys.path.insert(0, f"{root}/SimuMax")
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig  # noqa: E402
from simumax.core.perf_llm import PerfLLM  # noqa: E402
from simumax.tuning.strategy_searcher import CANDIDATE_STRATEGY, StrategySearcher  # noqa: E402

configs = f"{root}/SimuMax/configs"
model = ModelConfig.init_from_config_file(f"{configs}/models/gpt3-175b.json")
system = SystemConfig.init_from_config_file(f"{configs}/system/b200_bf16_ceperm.json")
searcher = StrategySearcher(model, system)
grid = CANDIDATE_STRATEGY | {"world_size": [64], "seq_len": [2048], "enable_recompute": [False, True]}
start, done, refused, best = time.perf_counter(), 0, 0, None
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    plans = searcher.generate_grid(grid)
    for plan in plans:
        if time.perf_counter() - start > budget_s:
            break
        try:
            strategy = StrategyConfig(**(plan | {"micro_batch_num": 512 // (64 // plan["tp_size"] // plan["pp_size"])}))
            searcher._select_net(strategy)
            found = PerfLLM()
            found.configure(strategy_config=strategy, model_config=model, system_config=system)
            found.run_estimate()
            cost, _ = found.analysis_cost(), found.analysis_mem()
        except Exception:
            refused += 1
            continue
        done += 1
        mfu = cost.get("mfu")
        if mfu is not None and (best is None or mfu > best[0]):
            best = (mfu, {name: plan[name] for name in ("tp_size", "pp_size", "enable_recompute")})
seconds = time.perf_counter() - start
share = (done + refused) / len(plans)
print(json.dumps({"plans": done, "refused": refused, "seconds": seconds, "share": share, "best": best}))
