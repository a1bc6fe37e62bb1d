"""Rows measured with litgpt: torch.cuda.max_memory_allocated at the end of fine-tuning."""

from __future__ import annotations

import re
from typing import Any, Final

from truth.contract import Prediction, Refused, traits_at
from truth.rows.huggingface import highest
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Peft, Plan, Precision, Shards, Workload
from vramcast.domain.model import Model
from vramcast.estimate.training import answer
from vramcast.families.module_names import targets
from vramcast.units import GIB

MODELS: Final = {
    "phi-1.5 1.3 b": "phi-1.5",
    "stablelm alpha 3 b": "stablelm-base-alpha-3b",
    "llama 2 7 b": "llama-2-7b",
    "llama 2 13 b": "llama-2-13b",
    "mistral-7b": "mistral-7b-v0.1",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "tiny-llama": "tinyllama-1.1b",
    "gemma2-2b": "gemma-2-2b",
    "gemma2-9b": "gemma-2-9b",
}
"""Catalogue names of models that rows call otherwise."""

GPUS: Final = {"A100-SXM4-40GB": "a100-sxm4-40gb", "A10G-24GB": "a10g"}


def predict(row: dict[str, Any]) -> list[Prediction]:
    """Peak allocated bytes of one row."""
    job = job_of(row)
    _check_states(job, row)
    found = answer(job, with_changes=False)
    value = row["measured_gib"] * GIB
    return [Prediction("allocated", highest(found, "allocated"), value, traits=traits_at("allocated", job))]


def _check_states(job: Job, row: dict[str, Any]) -> None:
    """Refuse rows that contradict themselves: what must live on the card at once is more than it has."""
    if job.plan.peft is not None or job.cluster.count > 1:
        return
    needed = count_parameters(job.model).total * 8  # bf16 weight, gradient and two AdamW states
    if needed > job.cluster.gpu.visible_bytes:
        raise Refused(
            f"weights, gradients and AdamW states alone are {needed / GIB:.1f} GiB, more than one {row['gpu']} has: "
            "the row cannot have run on one GPU"
        )


def job_of(row: dict[str, Any]) -> Job:
    """The question of a row."""
    name = row["model"].lower()
    model = load_model(MODELS.get(name, name))
    peft = _peft(row, model)
    count = row["n_gpus"]
    if peft is not None and count > 1 and "repeat 1-GPU value" in row.get("notes", ""):
        count = 1
    card = GPUS.get(row["gpu"])
    if card is None:
        raise Refused(f"unknown card {row['gpu']!r}")
    batch = row.get("micro_batch")
    if not batch or not row.get("seq_len"):
        raise Refused("the row does not say batch size and sequence length")
    return Job(
        model=model,
        workload=Workload(seq_len=row["seq_len"], micro_batch=batch, grad_accum=_accumulation(row, count)),
        plan=Plan(
            precision=Precision.BF16, peft=peft, shards=Shards.EVERYTHING if count > 1 else Shards.NOTHING,
        ),
        cluster=Cluster(gpu=load_gpu(card), gpus_per_node=count),
        engine="litgpt",
        engine_options={
            "adapter_version": 2 if _is_second_adapter(row) else 1,
            "version": _date(row["framework"]),
        },
    )


def _accumulation(row: dict[str, Any], count: int) -> int:
    """Micro-batches per step, from the global batch where the row does not say."""
    return int(row.get("grad_accum") or max(1, (row.get("global_batch") or 1) // (row["micro_batch"] * count)))


def _date(framework: str) -> str:
    found = re.search(r"\d{4}-\d{2}", framework)
    return found[0] if found else ""


def _is_second_adapter(row: dict[str, Any]) -> bool:
    """Scales and biases of every linear layer make version 2 several times larger than the prompts alone."""
    found = re.search(r"Adapter.*?\(([\d,]+) trainable", str(row.get("peft", "")))
    if not found:
        return False
    model = load_model(MODELS.get(row["model"].lower(), row["model"].lower()))
    prompts = 10 * model.hidden * model.num_layers
    return int(found[1].replace(",", "")) > 1.5 * prompts


def _peft(row: dict[str, Any], model: Model) -> Peft | None:
    text = str(row.get("peft") or "none")
    if text == "none":
        return None
    stored = re.search(r"bnb\.(nf4(?:-dq)?|int8)", row.get("precision", ""))
    base: Any = stored[1] if stored else "full"
    if "Adapter" in text:
        return Peft(method="adapter", base=base, adapter_dtype="bf16")
    named = re.findall(r"'(\w+)'", text) or ["query", "value"]
    rank = re.search(r"r=(\d+)", text)
    return Peft(
        method="lora", rank=int(rank[1]) if rank else 8, dropout=0.05, base=base, adapter_dtype="bf16",
        targets=targets(model, named, engine="litgpt"),
    )
