"""Rows measured with torchtitan: the highest reserved bytes of its log line."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec.structs import replace

from truth.contract import Prediction, Refused, traits_at
from truth.rows.huggingface import highest
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.job import Job, Loss, Plan, Precision, Recompute, Shards, Workload
from vramcast.estimate.training import answer
from vramcast.units import GB, GIB

MODELS: Final = {
    "llama-7b (torchtrain llama 7b)": "llama-7b",
    "llama-3-8b": "llama-3-8b",
    "deepseek-v3-671b": "deepseek-v3",
    "deepseek-v3-16b (torchtitan 16b)": "deepseek-v2-lite",  # its sizes [torchtitan models/deepseek_v3/__init__.py]
}
"""Catalogue names of models that rows call otherwise."""

GPUS: Final = (
    ("GB200", "gb200-186gb"), ("B200", "b200-180gb"), ("H200", "h200-sxm-141gb"), ("H100", "h100-sxm-80gb"),
    ("A100", "a100-sxm4-80gb"),
)

STATED_MEMORY: Final = re.compile(r"([\d.]+) ?(GiB|GB)")
UNITS: Final = {"GiB": GIB, "GB": GB}
"""What a card says of itself: "H100 95GiB", "H100-SXM 96GB HBM2e (500W)"."""

DEFAULT_TOKENS: Final = {"llama-3-8b": (1, 8192), "llama-3.1-8b": (1, 8192),
                          "deepseek-v3-16b (torchtitan 16b)": (4, 4096)}
"""Local batch and sequence length of the flavour's own config (train_configs/llama3_8b.toml)."""


def predict(row: dict[str, Any]) -> list[Prediction]:
    """Peak reserved bytes of one row, on its fullest rank."""
    job = job_of(row)
    found = answer(job, with_changes=False)
    traits = traits_at("reserved", job, found.fullest.peak)
    return [Prediction("reserved", highest(found, "reserved"), row["measured_gib"] * GIB, traits=traits)]


def job_of(row: dict[str, Any]) -> Job:
    """The question of a row.

    Raises: Refused when the row leaves out what cannot be assumed.
    """
    name = row["model"].lower()
    model = load_model(MODELS.get(name, name))
    batch, length = DEFAULT_TOKENS.get(name, (None, None))
    batch, length = row.get("micro_batch") or batch, row.get("seq_len") or length
    if batch is None or length is None:
        raise Refused("the row does not say batch size and sequence length")
    parallel = row["parallelism"]
    precision = str(row.get("precision", ""))
    if "nvfp4" in precision.lower():
        raise Refused("training in NVFP4 is not modelled")
    low = re.search(r"float8|fp8", precision, re.IGNORECASE) is not None
    return Job(
        model=model,
        workload=Workload(seq_len=length, micro_batch=batch),
        plan=_plan(row, parallel),
        cluster=Cluster(gpu=_card(row["gpu"]), gpus_per_node=row["n_gpus"]),
        engine="torchtitan",
        engine_options={
            "version": _date(row["framework"]),
            "reshard": row.get("reshard_after_forward", "default"),
            "trainer": "graph" if re.search("graph", f"{row.get('notes')} {row.get('recompute')}") else "eager",
            "float8": low,
            "float8_all_gather": "fp8 all-gather" in precision and "no fp8" not in precision,
        },
    )


def _card(text: str) -> Gpu:
    """The card that a row names, with the memory it states: H100s of 96 GB are in no catalogue."""
    card = next((load_gpu(name) for word, name in GPUS if text.startswith(word)), None)
    if card is None:
        raise Refused(f"unknown card {text!r}")
    stated = STATED_MEMORY.search(text)
    return card if stated is None else replace(card, visible_bytes=int(float(stated[1]) * UNITS[stated[2]]))


def _plan(row: dict[str, Any], parallel: dict[str, Any]) -> Plan:
    recompute = str(row.get("recompute") or "selective").lower().split()[0]
    mode = {"full": Recompute.FULL, "none": Recompute.NONE}.get(recompute, Recompute.SELECTIVE)
    compiled = "torch.compile" in row["framework"]
    notes = str(row.get("notes", "")).lower().replace(" ", "")
    chunks = 2 if "interleaved1f1b" in notes else 1
    return Plan(
        tp=parallel.get("tp", 1), pp=parallel.get("pp", 1), cp=parallel.get("cp", 1), ep=parallel.get("ep", 1),
        shards=Shards.EVERYTHING, precision=Precision.MIXED_BF16, recompute=mode, compile=compiled,
        loss=Loss.COMPILED if "compiled CE" in row["framework"] else None, virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
    )


def _date(framework: str) -> str:
    found = re.search(r"\d{4}-\d{2}(-\d{2})?", framework)
    if not found:
        raise Refused("the row does not say which torchtitan ran")
    return found[0]
