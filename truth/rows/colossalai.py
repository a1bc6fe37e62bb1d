"""Rows measured with ColossalChat's trainers: `torch.cuda.max_memory_allocated` in MiB, printed as "MB"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from truth.contract import Prediction, Refused, traits_at
from truth.rows.huggingface import cluster, highest
from vramcast.catalogue.models import load_model
from vramcast.domain.job import Job, Peft, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import Model
from vramcast.estimate.training import answer
from vramcast.families.module_names import targets
from vramcast.units import GIB

Row = dict[str, Any]

MODELS: Final = (("llama2-7b", "llama-2-7b"), ("llama2-13b", "llama-2-13b"), ("llama2-70b", "llama-2-70b"))

TRAINERS: Final = ("simpo", "orpo", "dpo", "kto", "sft")


def predict(row: Row) -> Iterator[Prediction]:
    """Allocated peak over load and steps."""
    job = job_of(row)
    found, value = answer(job), float(row["measured_gib"]) * GIB
    yield Prediction("allocated", highest(found, "allocated"), value, traits=traits_at("allocated", job))


def job_of(row: Row) -> Job:
    """The plugin, batch and adapter of a row.

    Raises: Refused for Gemini plugins and reinforcement learning
    """
    zero, framework = str(row.get("zero", "")), str(row["framework"]).lower()
    if not zero.startswith("zero2") or not row.get("micro_batch"):
        raise Refused(f"plugin {zero or 'unknown'} of ColossalAI is not modelled")
    kind = next((name for name in TRAINERS if name in framework), None)
    if kind is None:
        raise Refused(f"trainer of {framework} is not modelled: it holds several models")
    model = load_model(_model(str(row["model"])))
    return Job(
        model=model,
        workload=Workload(seq_len=row["seq_len"], micro_batch=row["micro_batch"], objective="sft"),
        plan=Plan(
            precision=Precision.MIXED_BF16,
            shards=Shards.OPTIMIZER_AND_GRADIENTS,
            recompute=Recompute.FULL if "checkpoint" in str(row.get("recompute")) else Recompute.NONE,
            offload_optimizer="cpu" if "cpu" in zero else "none",
            optimizer="adamw",
            peft=_adapter(str(row.get("peft", "none")), model),
        ),
        cluster=cluster(row),
        engine="colossalai",
        engine_options={"trainer": kind},
    )


def _model(text: str) -> str:
    for pattern, name in MODELS:
        if pattern in text.lower():
            return name
    raise Refused(f"unknown model {text}")


def _adapter(text: str, model: Model) -> Peft | None:
    rank = re.search(r"r=(\d+)", text)
    if rank is None:
        return None
    return Peft(rank=int(rank[1]), targets=targets(model, ("all-linear",)), adapter_dtype="bf16")
