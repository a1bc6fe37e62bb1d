"""aiconfigurator on rows of serving_times.jsonl: prints id, time to first token and between tokens [ms].

Asked as its own tools/accuracy_regression_testing/predict_silicon_sample.py asks it: the row's version of the engine,
or its default where it has no tables of that one; where it has no answer its reason stands. Configs that it does not
bring along it fetches from the hub; where there is a folder `CONFIGS/OWNER/NAME` its `config.json` is handed in.
"""

import contextlib
import io
import json
import logging
import sys
from pathlib import Path

logging.disable(logging.CRITICAL)
sys.path.pop(0)  # a file beside this one is named like the package
from aiconfigurator.cli.api import cli_estimate  # noqa: E402

CONFIGS = Path(sys.argv[2] if len(sys.argv) > 2 else "configs")
DEGREES = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
APART = (*DEGREES, "batch_size", "num_workers")


def asked(row):
    """Keywords of its estimate."""
    folder = CONFIGS / row["model"]
    found = {
        "model_path": str(folder) if folder.is_dir() else row["model"],
        "system_name": row["system"], "mode": row["mode"], "backend_name": row["engine"],
        "backend_version": row.get("engine_version"), "isl": row["input_len"], "osl": row["output_len"],
        "gemm_quant_mode": row.get("gemm"), "moe_quant_mode": row.get("moe"),
    }
    if row["mode"] == "agg":
        return found | {name: row["parallel"][name] for name in ("batch_size", *DEGREES) if row["parallel"].get(name)}
    return found | {
        f"{part}_{name}": row[part][name] for part in ("prefill", "decode") for name in APART if row[part].get(name)
    }


def estimate(row, known):
    """Both latencies, worked out once for rows that ask the same."""
    keywords = asked(row)
    key = json.dumps(keywords, sort_keys=True)
    if key not in known:
        for version in dict.fromkeys((keywords["backend_version"], None)):
            try:
                answer = cli_estimate(**(keywords | {"backend_version": version}))
                known[key] = {"ttft_ms": answer.ttft, "tpot_ms": answer.tpot}
                break
            except Exception as reason:  # whatever it raises is why it has no answer
                known[key] = {"reason": str(reason).splitlines()[0][:200] if str(reason) else type(reason).__name__}
    return known[key]


answers: dict = {}
silent = io.StringIO()
with Path(sys.argv[1]).open() as lines:
    for line in lines:
        row = json.loads(line)
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            answer = estimate(row, answers)
        print(json.dumps({"id": row["id"], **answer}), flush=True)
