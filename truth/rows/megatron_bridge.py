"""Rows of Megatron-Bridge: a model by name, degrees and recomputation; the rest is what its recipes set.

[recipes] NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes: TransformerEngine, fused cross entropy, distributed
optimizer; the Moonlight recipe keeps bf16 gradients and moments (precision-aware optimizer).
"""

from __future__ import annotations

import re
from typing import Any, Final

from truth.contract import Prediction, Refused, traits_at
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Loss, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import Model
from vramcast.estimate.training import answer
from vramcast.units import GB, GIB

ENGINE: Final = "megatron"

MODELS: Final[tuple[tuple[str, str], ...]] = (
    ("moonlight", "moonlight-16b-a3b"),
    ("nemotron-3-nano", "nemotron-3-nano-30b-a3b"),
    ("llama-3-70b", "llama-3-70b"),
    ("llama3 70b", "llama-3-70b"),
    ("llama-3-8b", "llama-3-8b"),
    ("llama3 8b", "llama-3-8b"),
    ("llama-3.1-405b", "llama-3.1-405b"),
    ("qwen3-30b-a3b", "qwen3-30b-a3b"),
    ("deepseek-v3", "deepseek-v3"),
)
GPUS: Final = {"H100": "h100-sxm-80gb", "GB200": "gb200-186gb", "B200": "b200-180gb", "A100": "a100-sxm4-80gb"}

PRECISION_AWARE: Final = {"precision_aware": True, "moments": "bf16", "accumulate_in_fp32": False}
BF16_GRADIENTS: Final = {"accumulate_in_fp32": False}
RECIPES: Final[dict[str, dict[str, Any]]] = {
    "moonlight-16b-a3b": PRECISION_AWARE | {"cross_entropy": "te", "shared_expert_overlap": True},
    "nemotron-3-nano-30b-a3b": BF16_GRADIENTS | {"cross_entropy": "native", "dispatcher": "flex"},
    "llama-3-70b": BF16_GRADIENTS,
}
"""Engine options of the recipes, where they differ from `COMMON`."""

COMMON: Final[dict[str, Any]] = {
    "cross_entropy": "te", "attention_mask": False, "overlap_grad_reduce": True, "overlap_param_gather": True,
    "permute_fusion": True, "grouped_gemm": True,
}


def predict(row: dict[str, Any]) -> list[Prediction]:
    """The row's peak beside the fullest rank's highest allocated bytes."""
    job = bridge_job(row)
    ranks = answer(job).ranks
    rank = ranks[0]
    allocated = max(peak.allocated_bytes for peak in rank.phases.values())
    gib = float(row["measured_gib"])
    return [Prediction("allocated", allocated, gib * GIB, gib * GB, traits_at("allocated", job))]


def bridge_job(row: dict[str, Any]) -> Job:
    """The question of one row."""
    parallel = row["parallelism"]
    name, model = _model(str(row["model"]))
    count = int(row["n_gpus"])
    plan = Plan(
        tp=int(parallel["tp"]), pp=int(parallel["pp"]), cp=int(parallel.get("cp", 1)), ep=int(parallel.get("ep", 1)),
        etp=1 if int(parallel.get("ep", 1)) > 1 else None,
        virtual_stages=int(parallel.get("vpp", 1)), sequence_parallel=int(parallel["tp"]) > 1,
        shards=Shards.OPTIMIZER, loss=Loss.FUSED, **_recompute(str(row["recompute"])), precision=_precision(row),
    )
    options = COMMON | RECIPES.get(name, {})
    if plan.precision is Precision.FP8:  # performance recipes: fp8_param_gather, disable_parameter_transpose_cache
        options |= {"fp8_param_gather": True, "fp8_transpose_cache": False}
    gpu = next((known for key, known in GPUS.items() if str(row["gpu"]).upper().startswith(key)), None)
    if gpu is None:
        raise Refused(f"unknown card {row['gpu']!r}")
    return Job(
        model=model, plan=plan, engine=ENGINE, engine_options=options,
        workload=Workload(seq_len=int(row["seq_len"]), micro_batch=int(row["micro_batch"]),
                          grad_accum=int(row.get("grad_accum") or 1)),
        cluster=Cluster(gpu=load_gpu(gpu), gpus_per_node=8 if count % 8 == 0 else count,
                        num_nodes=count // 8 if count % 8 == 0 else 1),
    )


def _model(text: str) -> tuple[str, Model]:
    for words, name in MODELS:
        if words in text.lower():
            return name, load_model(name)
    raise Refused(f"unknown model {text!r}")


def _precision(row: dict[str, Any]) -> Precision:
    text = str(row["precision"]).lower()
    if "fp8" in text:
        return Precision.FP8
    if "bf16" in text:
        return Precision.MIXED_BF16
    raise Refused(f"precision {text!r} is not modelled for megatron")


def _recompute(text: str) -> dict[str, Any]:
    """The plan's recomputation; 'baseline' is what the table's first row recomputes: core attention."""
    if "full" in text:
        return {"recompute": Recompute.FULL}
    known = ("core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "shared_experts", "moe")
    named = tuple(module for module in known if re.search(rf"\b{module}\b", text))
    if not named and "selective" in text:
        named = ("core_attn",)
    return {"recompute": Recompute.SELECTIVE, "recompute_modules": named} if named else {}
