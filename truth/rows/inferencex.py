"""How InferenceX started the servers that it measured, by its own scripts: what a row of its results does not say.

[inferencex] SemiAnalysisAI/InferenceX (Apache-2.0) benchmarks/ at the dates of the rows, October 2025 to April 2026:
70b_*.sh, dsr1_*.sh, gptoss_*.sh, minimaxm2.5_*.sh, qwen3.5_*.sh; .github/workflows `random-range-ratio: 0.8`
[lengths] utils/bench_serving/benchmark_serving.py `sample_uniform`: between that share of the length and the length
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from truth.contract import Refused
from vramcast.domain.serving import Draft

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
    apart: bool | None = None  # ranks attend to requests of their own; None: as the row says
    experts: bool | None = None  # are divided whole over ranks; None: as the row says
    memory_fraction: float | None = None
    max_sequences: int | None = None
    prefix_caching: bool | None = None


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


def draft_of(*, attends_apart: bool) -> Draft:
    """What proposes tokens where a run drafts: three at once, on ranks that attend apart one [inferencex
    dsr1_*_trt_mtp.sh `MTP`; qwen3.5_fp8_b200_mtp.sh `--speculative-num-steps`]."""
    return Draft(kind="mtp", tokens=1 if attends_apart else 3)


def started(row: Row) -> Started:
    """What the script of a row's engine, model and card says."""
    model = row["model"].rpartition("/")[2]
    kind = next(kind for prefix, kind in KINDS if model.startswith(prefix))
    return SCRIPTS[row["engine"]](kind, row)


DRAFTS: Final = " with drafts"
"""What the level of such runs says beside."""


class Apart(NamedTuple):
    """Instances of one kind where prompts and answers are apart."""

    instances: int
    degrees: tuple[int, int, int, bool]  # tp, pp, dp, experts divided


APART: Final = Path(__file__).with_name("inferencex_apart.csv")
"""Instances of every recipe: number, cards, cards that experts are divided over, whether its cards attend apart
[inferencex .github/configs/nvidia-master.yaml, November 2025 to March 2026, by the day that a line is there since]."""


@cache
def _recipes() -> tuple[dict[str, str], ...]:
    with APART.open(newline="") as file:
        return tuple(csv.DictReader(file))


def apart(row: Row) -> tuple[tuple[Apart, Apart] | None, str]:
    """The instances of a run, None where the row says them, and what its level says beside.

    Rows of before March do not say how many instances there were, nor how they attended; recipes of the day do.

    Raises: Refused where no recipe or several are like the row
    """
    if row["decode"].get("num_workers"):
        return None, ""
    found: dict[tuple[Apart, Apart], set[str]] = {}
    for one in _like(row):
        found.setdefault((_instances(one["prefill"]), _instances(one["decode"])), set()).add(one["drafts"])
    if len(found) != 1:
        raise Refused("how many instances share the requests is not said, and {} recipes are like the row".format(
            len(found) or "no"))
    (instances, drafts), = found.items()
    return instances, "" if drafts == {""} else DRAFTS if "" not in drafts else ", drafts unsaid"


def _instances(said: str) -> Apart:
    count, cards, experts, attends = map(int, said.split("x"))
    return Apart(count, (1 if attends else cards, 1, cards if attends else 1, experts > 1))


def _like(row: Row) -> list[dict[str, str]]:
    """Recipes that a row may be of."""
    asked = (row["engine"], row["precision"], row["system"].partition("_")[0], str(row["input_len"]),
             str(row["output_len"]))
    cards = [row[part]["tp_size"] * (row[part].get("attention_dp_size") or 1) for part in ("prefill", "decode")]
    return [
        one for one in _recipes()
        if (one["engine"], one["precision"], one["card"], one["input_len"], one["output_len"]) == asked
        and one["model"] in row["model"] and one["since"] <= (row.get("measured") or "")
        and str(row.get("concurrency")) in one["concurrency"].split()
        and [int(one[part].split("x")[1]) for part in ("prefill", "decode")] == cards
        and int(one["prefill"].split("x")[2]) == row["prefill"]["moe_ep_size"]
    ]


KINDS: Final = (
    ("Llama", "70b"), ("DeepSeek", "dsr1"), ("gpt-oss", "gptoss"), ("MiniMax", "minimax"), ("Qwen3.5", "qwen3.5"),
)
"""Beginning of a model's name -> their word for it."""


def _vllm(kind: str, row: Row) -> Started:
    blackwell = row["system"].startswith("b")
    fp8 = kind == "70b" or blackwell
    tokens = 8192 if kind in ("70b", "gptoss") else 2 * row["input_len"] if blackwell else None
    return Started("fp8" if fp8 else "auto", tokens, memory_fraction=0.9)


def _drafting_sglang(row: Row) -> Started:
    """[inferencex qwen3.5_fp8_b200_mtp.sh]"""
    options: dict[str, str | int | float | bool] = {
        "scheduler-recv-interval": 30 if row["concurrency"] > 4 else 10, "mamba-ssm-dtype": "bfloat16",
        "cuda-graph-max-bs": row["concurrency"],
    }
    return Started("fp8", 16384, options, memory_fraction=0.8, max_sequences=row["concurrency"], prefix_caching=False)


def _sglang(kind: str, row: Row) -> Started:
    if speculates(row):
        return _drafting_sglang(row)
    blackwell, fp4 = row["system"].startswith("b"), row.get("precision") == "fp4"
    small = kind == "dsr1" and row["parallel"]["tp_size"] == 4 and not fp4
    tokens = 8192 if small else 16384 if fp4 or not blackwell else 32768
    interval = 1 if not blackwell else 10 if small or row["concurrency"] < 16 else 30
    fraction = 0.95 if small else 0.85 if kind == "dsr1" and fp4 else 0.82 if blackwell or kind == "dsr1" else 0.8
    return Started(
        "auto" if row.get("precision") == "bf16" else "fp8", tokens, {"scheduler-recv-interval": interval},
        memory_fraction=fraction,
    )


def _trtllm(kind: str, row: Row) -> Started:
    asked, users = (row["input_len"], row["output_len"]), row["concurrency"]
    apart, experts = (None, None) if (row.get("measured") or "") > BY_SCRIPT_UNTIL else _by_script(kind, row)
    held: dict[str, str | int | float | bool] = {}
    tokens = {"70b": 16384, "gptoss": 20000}.get(kind) or -(-(users + row["input_len"] + 64) // 64) * 64
    if kind == "dsr1" and (row.get("measured") or "") >= "2026-01-29":
        tokens = max(tokens, 8192)
        if row.get("precision") == "fp8" and row["system"] == "b200_sxm" and asked == (1024, 1024) and users >= 64:
            held = {"batch-wait-timeout-iters": 40, "batch-wait-max-tokens-ratio": 0.8}
    if kind == "70b" and asked == (1024, 1024) and row["parallel"]["tp_size"] < 8:
        held = {"batch-wait-timeout-iters": 20, "batch-wait-max-tokens-ratio": 0.9}
    attends_apart = row["parallel"]["attention_dp_size"] > 1 if apart is None else apart
    if kind == "dsr1" and attends_apart:
        held = {"attention-dp-timeout-iters": 60}
    if kind == "dsr1" and row.get("precision") == "fp4":
        held["moe-backend"] = "CUTLASS" if attends_apart else "TRTLLM"
    kv_dtype = "auto" if kind == "gptoss" and row["system"] == "h200_sxm" else "fp8"
    fraction = {"dsr1": 0.75 if row["system"] == "h200_sxm" else 0.8, "gptoss": 0.85}.get(kind)
    return Started(kv_dtype, tokens, held, apart, experts, fraction)


def experts_by(row: Row) -> dict[str, str | int | float | bool]:
    """What an instance that takes prompts, or generates, is told of its experts: the engine's own kernels, not CUTLASS;
    with that, decoding on B200 would be 43 % slower than the runs, and is within 10 %."""
    own = row["engine"] == "trtllm" and row.get("precision") == "fp4" and "DeepSeek" in row["model"]
    return {"moe-backend": "TRTLLM"} if own else {}


BY_SCRIPT_UNTIL: Final = "2025-11-03"
"""Scripts of TensorRT-LLM chose themselves whether ranks attend apart and divide experts, by lengths and concurrency,
until pull request #145: rows of before say neither."""

APART_ABOVE: Final = {
    ("fp4", "b200_sxm"): {(1024, 1024): 255, (1024, 8192): 255, (8192, 1024): 32},
    ("fp8", "b200_sxm"): {(1024, 1024): 32, (1024, 8192): 64, (8192, 1024): 64},
    ("fp8", "h200_sxm"): {(1024, 1024): 64, (1024, 8192): 64, (8192, 1024): 32},
}
"""Precision and card -> lengths -> requests above which ranks attend apart [dsr1_*_trt_slurm.sh]."""

DIVIDED_ABOVE: Final = {
    4: {(1024, 1024): 32, (1024, 8192): 32, (8192, 1024): 32}, 8: {(1024, 1024): 8, (1024, 8192): 16, (8192, 1024): 32},
}
"""Cards -> lengths -> requests above which experts are divided [dsr1_fp4_b200_trt_slurm.sh]."""


def _by_script(kind: str, row: Row) -> tuple[bool | None, bool | None]:
    asked, users = (row["input_len"], row["output_len"]), row["concurrency"]
    where = row["precision"], row["system"]
    if kind == "gptoss":
        return users >= 256, where[1] == "h200_sxm" or users >= 256
    if kind != "dsr1":
        return None, None
    above = DIVIDED_ABOVE[row["parallel"]["tp_size"]][asked] if row["precision"] == "fp4" else 0
    return users > APART_ABOVE[where][asked], users > above


SCRIPTS: Final = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
