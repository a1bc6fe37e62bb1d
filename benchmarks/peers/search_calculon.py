"""calculon's search on the case of benchmarks/search.py, one process, for so many seconds; prints JSON."""

import json
import sys
import time

root, budget_s = sys.argv[1], float(sys.argv[2])
sys.path.insert(0, f"{root}/calculon")
import calculon  # noqa: E402
from calculon.llm import Llm, System  # noqa: E402
from calculon.llm.optimal_execution import OptimalExecution  # noqa: E402
from calculon.util import pick  # noqa: E402

GPUS, BATCH, DTYPE = 64, 512, "float16"
application = Llm.Application(calculon.io.read_json_file(f"{root}/calculon/models/gpt3-175B.json"))
system = System(calculon.io.read_json_file(f"{root}/calculon/systems/a100_80g.json"))


def questions():
    """The arguments of every search, as `OptimalExecution.run_command` makes them."""
    for tp in Llm.get_all_tensor_parallelisms(GPUS, application.hidden, application.attn_heads):
        for pp in Llm.get_all_pipeline_parallelisms(GPUS, tp, application.num_blocks):
            dp = Llm.get_data_parallelism(GPUS, tp, pp)
            batch = OptimalExecution.get_batch_size(dp, BATCH)
            for interleaved in Llm.get_valid_pipeline_interleavings(application.num_blocks, pp):
                for recompute in ("full", "attn_only", "none"):
                    for sharded in pick(dp > 1, [True, False], [False]):
                        for communication in ("ar", "p2p_rs_ag", "rs_ag"):
                            yield (
                                False, 1, False, GPUS, BATCH, DTYPE, application, system, tp, pp, dp, interleaved,
                                batch, recompute, sharded, communication, "true", False, True, True,
                            )


todo = list(questions())
# a search that is cut off has then seen every degree alike
todo = [todo[index] for step in range(61) for index in range(step, len(todo), 61)]
start, done, good, best, finished = time.perf_counter(), 0, 0, [], 0
for arguments in todo:
    found, count, fitting, _, _, _ = OptimalExecution.search(*arguments)
    best = OptimalExecution.update_list(best, found, 1)
    done, good, finished = done + count, good + fitting, finished + 1
    if time.perf_counter() - start > budget_s:
        break
seconds = time.perf_counter() - start
answer = {"plans": done, "fitting": good, "seconds": seconds, "share": finished / len(todo)}
if best:
    rate, execution, stats = best[0]
    answer |= {"samples_per_s": rate, "execution": execution, "bytes": stats.get("proc_mem_tier1_cap_req")}
print(json.dumps(answer, default=str))
