"""Which adapter turns a truth row into a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.serving import engine_module

Adapter = Callable[[dict[str, Any]], Iterable[Prediction]]

BY_GROUP: Final[dict[str, str]] = {
    "megatron_lm_functional_tests": "megatron",
    "simumax_b200_megatron": "megatron",
    "megatron_bridge_docs": "megatron_bridge",
    "qwen_readme": "huggingface",
    "peft_method_comparison": "huggingface",
    "colossalai_docs": "colossalai",
    "torchtitan_commit_logs": "torchtitan",
    "torchtitan_docs": "torchtitan",
    "litgpt_tables": "litgpt",
}
"""Groups with fields or conventions of their own; what other groups measured is what their rows say."""

MEGATRON_FIELDS: Final[tuple[frozenset[str], ...]] = (
    frozenset(("raw_config", "measured_bytes")), frozenset(("measured_peak_gib", "model")),
)
"""Fields of rows that name Megatron's arguments or SimuMax's run, whatever their group."""

ENGINES: Final[dict[str, str]] = {
    "megatron_bridge": "megatron", "tensorrt_llm": "tensorrt-llm", "llamacpp": "llama.cpp", "diffusion": "diffusers",
}
"""Engine of an adapter, where it is not called like it."""

GROUPS_WITHOUT_NAME: Final[dict[str, str]] = {"megatron_b200": "megatron"}
"""Files whose rows carry no group, by file name."""


SAME_RUNS: Final[dict[str, str]] = {"megatron_b200": "simumax_b200_megatron"}
"""Leaving out one of them leaves out both, or the intervals would be judged on the cases they were made from."""


HARNESSES: Final = {
    **SAME_RUNS, "fms_accel_liger": "fms_accel", "fms_accel_moe": "fms_accel",
    "torchtitan_commits2": "torchtitan_commit_logs",
}
"""Group -> the group with which it shares who measured, and how."""


def harness_of(group: str) -> str:
    """The group under which a group's cases are calibrated: one for the two files that hold the same runs."""
    return HARNESSES.get(group, group)


def engine_of(row: dict[str, Any], group: str) -> str | None:
    """The engine that predicts the rows of a known group; None for others and for single operators."""
    if "ask" in row:
        return str(row["ask"]["options"].get("engine", "")) or None
    name = engine_module(row) if "quantity" in row else BY_GROUP.get(group) or GROUPS_WITHOUT_NAME.get(group)
    return None if name is None else ENGINES.get(name, name)


def adapter(row: dict[str, Any], folder: Path) -> Adapter:
    """The adapter of one row.

    Args:
        row: the row
        folder: where its file lies: rows may name files beside it

    Raises: Refused when no adapter knows rows of that kind.
    """
    if "ask" in row:
        return partial(import_module("truth.rows.asked").predict, folder=folder)
    name = _module_name(row)
    predict: Adapter = import_module(f"truth.rows.{name}").predict
    return predict


def _module_name(row: dict[str, Any]) -> str:
    if "settings" in row and "algorithm" in row:
        return "post_training"
    if "tpot_ms" in row:
        return "serving_times"
    if "kernel" in row:
        return "kernels"
    if "quantity" in row:
        return "serving"
    if row.get("domain") == "diffusion":
        raise Refused("diffusion models are predicted by tracing: python -m truth.traced_diffusion")
    if row.get("group") in BY_GROUP:
        return BY_GROUP[row["group"]]
    if any(fields <= row.keys() for fields in MEGATRON_FIELDS):
        return "megatron"
    if row.get("framework"):
        return "generic"
    raise Refused("no adapter reads rows with these fields")
