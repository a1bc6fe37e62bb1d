"""The tables of the README: predictions beside the runs that others published, which lie in `truth/published/`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from truth.contract import VERDICT, Prediction
from truth.page import PAGE
from truth.rows.asked import VERDICTS
from truth.score import PUBLISHED, Scored, group_of, level_of, score_file, score_row, statistics_of
from vramcast.web.routes.catalogue import cases_of

TRAINING: Final = ("megatron_b200.jsonl", "training.jsonl", "recipes.jsonl", "kernels.jsonl")

SERVING: Final = "inference.jsonl"

WITH_PEERS: Final = ("megatron_b200.jsonl",)
"""Files whose rows hold the estimates of other tools."""

SERVING_LINES: Final[tuple[tuple[str, str, str], ...]] = (
    ("weights (vLLM, SGLang)", r"^(vllm|sglang)", r"^weights_g"),
    ("activation peak (vLLM)", r"^vllm", r"^activation_peak"),
    ("KV pool (vLLM)", r"^vllm", r"^kv_gib$"),
    ("KV tokens, blocks, concurrency", r"^(vllm|sglang)", r"^(kv_tokens|gpu_blocks|max_concurrency_x)$"),
    ("starts or runs out of memory (vLLM)", r"^vllm", r"^startup_fits$"),
    ("most sequences (TensorRT-LLM)", r"^trtllm_measured", r"^max_concurrent_sequences$"),
    ("KV buffers (llama.cpp, ik_llama.cpp)", r"llamacpp", r"^kv_self"),
    ("compute buffers (llama.cpp, ik_llama.cpp)", r"llamacpp", r"^compute_buffer"),
    ("model buffers by mix (llama.cpp, ik_llama.cpp)", r"llamacpp", r"^model_buffer"),
    ("peak (Transformers: Qwen, GLM, DeepSeek)", r"^(qwen|glm4|deepseek)", r""),
    ("peak (litgpt, AutoAWQ, exllama, lmdeploy)", r"^(litgpt|autoawq|exllama|lmdeploy)", r""),
    ("diffusion components and peaks", r"^(diffusion|sdcpp)", r""),
    ("what vendors and communities state", r"^(vendor|community|whisper|ctranslate2|embedding|ollama)", r""),
)
"""Label -> patterns of the group and of the quantity."""

COLUMNS: Final = "cases | predicted | median error | 95 % below | worst | under by > 5 % |"


def scored_file(name: str) -> tuple[Scored, ...]:
    """Every row of a published file but those marked as out of scope or suspect; takes minutes."""
    return tuple(item for item in score_file(PUBLISHED / name) if not item.mark)


@cache
def recorded_file(name: str) -> tuple[Scored, ...]:
    """The same as the record of `python -m truth.page` has them, which tests hold against a sample asked again. What
    the record does not say is asked anew: whether a run comes through, and what other tools said of it."""
    if name in WITH_PEERS:
        return scored_file(name)
    rows = [json.loads(line) for line in (PUBLISHED / name).read_text(encoding="utf-8").splitlines()]
    groups = {group_of(row, name) for row in rows}
    cases = (case for case in cases_of(PAGE.read_bytes())["cases"] if case["group"] in groups and "mark" not in case)
    verdicts = (
        item for number, row in enumerate(rows, 1) if level_of(row) in VERDICTS
        for item in score_row(row, file=name, number=number, folder=PUBLISHED) if item.level == VERDICT
    )
    return (*(_recorded(name, case) for case in cases), *(item for item in verdicts if not item.mark))


def _recorded(name: str, case: dict[str, Any]) -> Scored:
    predicted, level = case.get("predicted"), case["level"]
    found = None if predicted is None else Prediction(level, predicted, case["measured"])
    return Scored(name, case["group"], "", "", level, 0, case["name"], found, case.get("refused"), {})


Reads = Callable[[str], tuple[Scored, ...]]
"""What reads the rows of a published file with their predictions."""


def training_table(read: Reads = recorded_file) -> str:
    """One line per group and level; single operators together."""
    lines = [f"| measured runs | level | {COLUMNS}", "|---|---|---|---|---|---|---|---|"]
    scored = [item for file in TRAINING for item in read(file)]
    named = [("single operators" if "/" in item.group else item.group, item) for item in scored]
    for name, level in sorted({(name, item.level) for name, item in named}):
        record = statistics_of([item for other, item in named if (other, item.level) == (name, level)])
        lines += _line(f"{name} | {level}", record)
        for peer, part in record.get("peers", {}).items():
            lines.append(
                f"| &nbsp;&nbsp;{peer} on the same rows | {level} | {record['rows']} | {record['rows']} | "
                f"{part['median_abs_error']:.2%} | {part['max_abs_error']:.1%} (max) | | |"
            )
    return "\n".join(lines) + "\n"


def serving_table(read: Reads = recorded_file) -> str:
    """One line per kind of figure, over all groups that measured it."""
    lines = [f"| serving | {COLUMNS}", "|---|---|---|---|---|---|---|"]
    scored = read(SERVING)
    for label, group, level in SERVING_LINES:
        items = [item for item in scored if re.search(group, item.group) and re.search(level, item.level)]
        lines += _line(label, statistics_of(items))
    return "\n".join(lines) + "\n"


def _line(label: str, record: dict[str, Any]) -> list[str]:
    """Nothing where no row is predicted."""
    if "worst" not in record:
        return []
    if "right_share" in record:
        return [
            f"| {label} | {record['rows']} | {record['predicted']} | {record['right_share']:.0%} right | | | "
            f"{record['false_fits_share']:.0%} wrongly |"
        ]
    return [
        f"| {label} | {record['rows']} | {record['predicted']} | {record['median_abs_error']:.2%} | "
        f"{record['p95_abs_error']:.1%} | {record['worst']['error']:+.1%} | "
        f"{record['underestimated_over_5_percent_share']:.0%} |"
    ]
