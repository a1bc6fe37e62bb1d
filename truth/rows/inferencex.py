"""How InferenceX started the servers that it measured, by its own scripts: what a row of its results does not say.

[inferencex] SemiAnalysisAI/InferenceX (Apache-2.0) benchmarks/ at the dates of the rows, October 2025 to April 2026:
70b_*.sh, dsr1_*.sh, gptoss_*.sh, minimaxm2.5_*.sh, qwen3.5_*.sh; .github/workflows `random-range-ratio: 0.8`
[lengths] utils/bench_serving/benchmark_serving.py `sample_uniform`: between that share of the length and the length
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

Row = dict[str, Any]

RANGE_RATIO: Final = 0.8
MEAN: Final = (1 + RANGE_RATIO) / 2
"""Of the lengths that a row names [lengths]."""

SPREAD: Final = (1 - RANGE_RATIO) / (1 + RANGE_RATIO)


class Started(NamedTuple):
    """Arguments of a server."""

    kv_dtype: str = "auto"
    batched_tokens: int | None = None
    options: dict[str, str | int | float | bool] = {}


def measured(row: Row) -> bool:
    """Whether a row is one of theirs: the others do not say how attention is spread."""
    return row["parallel" if row["mode"] == "agg" else "decode"].get("attention_dp_size") is not None


def speculates(row: Row) -> bool:
    """Whether a run of one engine drafts tokens (MTP), which rows do not say: the pull request of January 14 (#392) and
    the images 1.2.0rc6.post3 measured nothing else of DeepSeek on TensorRT-LLM, and only the list of runs with MTP has
    Qwen3.5 in 8 bits on four B200 with experts divided, and DeepSeek's attention copied on H200 behind 1,024 tokens."""
    if row["mode"] != "agg" or not measured(row):
        return False
    parallel = row["parallel"]
    if row["engine"] == "trtllm" and "DeepSeek" in row["model"]:
        copied = row["system"] == "h200_sxm" and parallel["attention_dp_size"] > 1 and row["input_len"] == 1024
        return copied or row.get("measured") == "2026-01-14" or row.get("engine_version") == "1.2.0rc6.post3"
    four = (parallel["tp_size"], parallel["moe_ep_size"]) == (4, 1)
    return row["engine"] == "sglang" and "Qwen3.5" in row["model"] and row["system"] == "b200_sxm" and four


def started(row: Row) -> Started:
    """What the script of a row's engine, model and card says."""
    model = row["model"].rpartition("/")[2]
    kind = next(kind for prefix, kind in KINDS if model.startswith(prefix))
    return SCRIPTS[row["engine"]](kind, row)


KINDS: Final = (
    ("Llama", "70b"), ("DeepSeek", "dsr1"), ("gpt-oss", "gptoss"), ("MiniMax", "minimax"), ("Qwen3.5", "qwen3.5"),
)
"""Beginning of a model's name -> their word for it."""


def _vllm(kind: str, row: Row) -> Started:
    blackwell = row["system"].startswith("b")
    fp8 = kind == "70b" or blackwell
    tokens = 8192 if kind in ("70b", "gptoss") else 2 * row["input_len"] if blackwell else None
    return Started("fp8" if fp8 else "auto", tokens)


def _sglang(kind: str, row: Row) -> Started:
    blackwell, fp4 = row["system"].startswith("b"), row.get("precision") == "fp4"
    small = kind == "dsr1" and row["parallel"]["tp_size"] == 4 and not fp4
    tokens = 8192 if small else 16384 if fp4 or not blackwell else 32768
    interval = 1 if not blackwell else 10 if small or row["concurrency"] < 16 else 30
    return Started("auto" if row.get("precision") == "bf16" else "fp8", tokens, {"scheduler-recv-interval": interval})


def _trtllm(kind: str, row: Row) -> Started:
    asked, users = (row["input_len"], row["output_len"]), row["concurrency"]
    held: dict[str, str | int | float | bool] = {}
    tokens = {"70b": 16384, "gptoss": 20000}.get(kind) or -(-(users + row["input_len"] + 64) // 64) * 64
    if kind == "dsr1" and (row.get("measured") or "") >= "2026-01-29":
        tokens = max(tokens, 8192)
        if row.get("precision") == "fp8" and row["system"] == "b200_sxm" and asked == (1024, 1024) and users >= 64:
            held = {"batch-wait-timeout-iters": 40, "batch-wait-max-tokens-ratio": 0.8}
    if kind == "70b" and asked == (1024, 1024) and row["parallel"]["tp_size"] < 8:
        held = {"batch-wait-timeout-iters": 20, "batch-wait-max-tokens-ratio": 0.9}
    return Started("auto" if kind == "gptoss" and row["system"] == "h200_sxm" else "fp8", tokens, held)


SCRIPTS: Final = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
