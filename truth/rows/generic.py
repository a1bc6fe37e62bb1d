"""Rows of groups without an adapter of their own: free text mapped to a job, or refused with what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.huggingface import PROJECTIONS, cluster, highest
from vramcast.catalogue.models import load_model, search_models
from vramcast.domain.job import AttentionKernel, Job, Loss, Peft, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import Model
from vramcast.errors import UnknownName
from vramcast.estimate.interval import interval
from vramcast.estimate.training import answer
from vramcast.states.optimizers import optimizer
from vramcast.units import GB, GIB

Row = dict[str, Any]

FRAMEWORKS: Final[tuple[tuple[str, str], ...]] = (
    ("unsloth", "unsloth"),
    ("torchtune", "torchtune"),
    ("torchtitan", "torchtitan"),
    ("litgpt", "litgpt"),
    ("megatron", "megatron"),
    ("nemo", "megatron"),
    ("colossal", "colossalai"),
    ("deepspeed", "deepspeed"),
    ("trl", "huggingface"),
    ("transformers", "huggingface"),
    ("accelerate", "huggingface"),
    ("trainer", "huggingface"),
    ("peft", "huggingface"),
    ("axolotl", "huggingface"),
    ("llama-factory", "huggingface"),
    ("llamafactory", "huggingface"),
    ("swift", "huggingface"),
    ("hf", "huggingface"),
    ("fsdp", "torchtitan"),
    ("pytorch", "pytorch"),
    ("lightning", "pytorch"),
)
"""Word in `framework` -> engine, first match."""

OPTIMIZERS: Final[tuple[tuple[str, str], ...]] = (
    ("8bit", "adamw-8bit"),
    ("8-bit", "adamw-8bit"),
    ("adafactor", "adafactor"),
    ("lion", "lion"),
    ("muon", "muon"),
    ("sgd", "sgd"),
    ("adam", "adamw"),
)

ZERO: Final[tuple[tuple[str, Shards], ...]] = (
    ("3", Shards.EVERYTHING),
    ("2", Shards.OPTIMIZER_AND_GRADIENTS),
    ("1", Shards.OPTIMIZER),
)

BASES: Final[tuple[tuple[str, str], ...]] = (
    ("nf4-dq", "nf4-dq"),
    ("double", "nf4-dq"),
    ("nf4", "nf4"),
    ("gptq", "gptq-int4"),
    ("awq", "awq-int4"),
    ("int8", "int8"),
    ("8bit", "int8"),
    ("qlora", "nf4-dq"),
    ("q-lora", "nf4-dq"),
    ("4bit", "nf4"),
    ("4-bit", "nf4"),
)


def predict(row: Row) -> Iterator[Prediction]:
    """The row's peak at the level its metric names."""
    job = job_of(row)
    level = level_of(str(row.get("metric", "")).lower())
    gpus = int(row.get("n_gpus") or 1) if row.get("total_over_gpus") else 1
    predicted = gpus * highest(answer(job), level)
    measured = float(row["measured_gib"])
    stated = "gib" in str(row.get("measured_raw", "")).lower() or "bytes" in str(row.get("metric", ""))
    yield Prediction(
        level, predicted, measured * GIB, None if stated else measured * GB, interval(job.engine, predicted)
    )


def level_of(metric: str) -> str:
    """Allocated or reserved where the metric says so, else what nvidia-smi shows."""
    if "reserved" in metric:
        return "reserved"
    return "allocated" if "alloc" in metric else "device"


def job_of(row: Row) -> Job:
    """The question of a row, from its free text.

    Raises: Refused with the field that is missing or not understood
    """
    for field in ("seq_len", "micro_batch", "measured_gib"):
        if not isinstance(row.get(field), (int, float)):
            raise Refused(f"the row does not state {field}")
    if not row.get("gpu"):
        raise Refused("the row does not state gpu")
    parallel = row.get("parallelism") or {}
    peft = _peft(row)
    engine = _engine(row)
    shards, offload = _shards(row, engine)
    plan = Plan(
        tp=int(parallel.get("tp", 1)),
        pp=int(parallel.get("pp", 1)),
        cp=int(parallel.get("cp", 1)),
        ep=int(parallel.get("ep", 1)),
        sequence_parallel=parallel.get("sp"),
        shards=shards,
        precision=_precision(row, engine),
        optimizer=_optimizer(row),
        recompute=_recompute(row),
        attention=_attention(row),
        loss=_loss(row),
        compile="compile" in str(row.get("framework", "")).lower(),
        offload_optimizer="cpu" if offload else "none",
        peft=peft,
    )
    return Job(
        model=_model(row),
        plan=plan,
        cluster=cluster(row),
        engine=engine,
        workload=Workload(
            seq_len=int(row["seq_len"]),
            micro_batch=int(row["micro_batch"]),
            grad_accum=int(row.get("grad_accum") or 1),
            objective="sft" if peft else "pretrain",
        ),
    )


def _model(row: Row) -> Model:
    text = str(row.get("model", "")).strip()
    tail = text.split("/")[-1].lower().split(" (")[0]
    for name in (text, tail, tail.replace(" ", "-"), tail.replace("_", "-")):
        try:
            return load_model(name)
        except UnknownName:
            continue
    near = search_models(tail.replace(" ", "-"))
    if len(near) == 1:
        return load_model(near[0])
    raise Refused(f"model {text[:60]!r} is not in the catalogue, or its name means several")


def _engine(row: Row) -> str:
    text = f"{row.get('framework', '')} {row.get('zero', '')}".lower()
    if "zero" in text and "megatron" not in text and "colossal" not in text:
        return "deepspeed"
    if row.get("fsdp") and "litgpt" not in text and "torchtune" not in text:
        return "torchtitan"
    for word, engine in FRAMEWORKS:
        if word in text:
            return engine
    raise Refused(f"framework {str(row.get('framework'))[:60]!r} is not modelled")


def _shards(row: Row, engine: str) -> tuple[Shards, bool]:
    text = f"{row.get('zero', '')} {row.get('fsdp', '')}".lower()
    offload = "cpu" in text or "offload" in text
    stage = re.search(r"zero[-_ ]?(?:stage[-_ ]?)?([123])", text)
    if stage:
        return next(shards for digit, shards in ZERO if digit == stage[1]), offload
    if "distributed optimizer" in text:
        return Shards.OPTIMIZER, offload
    if row.get("fsdp"):
        return Shards.EVERYTHING, offload
    return Shards.NOTHING, offload


def _precision(row: Row, engine: str) -> Precision:
    text = str(row.get("precision", "")).lower()
    half = Precision.AMP_FP16 if "fp16" in text else Precision.AMP_BF16
    if "fp8" in text or "float8" in text:
        return Precision.FP8
    if engine in ("megatron", "deepspeed", "colossalai"):
        return Precision.MIXED_FP16 if "fp16" in text else Precision.MIXED_BF16
    if "mixed" in text or "amp" in text or "autocast" in text or engine == "torchtitan":
        return half
    if "16" in text:
        return Precision.FP16 if "fp16" in text else Precision.BF16
    if "32" in text:
        return Precision.FP32
    raise Refused(f"precision {text[:60]!r} is not understood")


def _optimizer(row: Row) -> str:
    text = str(row.get("optimizer") or "adamw").lower()
    for word, name in OPTIMIZERS:
        if word in text:
            return f"paged-{name}" if "paged" in text else name
    try:
        optimizer(text)
    except UnknownName:
        raise Refused(f"optimizer {text[:60]!r} is not modelled") from None
    return text


def _recompute(row: Row) -> Recompute:
    text = str(row.get("recompute") or "none").lower()
    if text in ("none", "false", "no", "off"):
        return Recompute.NONE
    return Recompute.SELECTIVE if "selective" in text else Recompute.FULL


def _attention(row: Row) -> AttentionKernel:
    text = str(row.get("attention_impl") or "").lower()
    return AttentionKernel.EAGER if "eager" in text or "unfused" in text else AttentionKernel.FLASH


def _loss(row: Row) -> Loss | None:
    text = f"{row.get('framework', '')} {row.get('notes', '')}".lower()
    return Loss.FUSED_LINEAR if "liger" in text or "cut cross" in text else None


def _peft(row: Row) -> Peft | None:
    text = str(row.get("peft") or "none").lower()
    if text in ("none", "false", "full"):
        return None
    if "lora" not in text:
        raise Refused(f"adapter {text[:60]!r} is not understood")
    rank = re.search(r"r(?:ank)?[\"']?\s*[=:]\s*(\d+)", text)
    targets = tuple(path for word, path in PROJECTIONS.items() if word in text)
    if "all" in text and not targets:
        targets = tuple(PROJECTIONS.values())
    described = f"{text} {row.get('precision', '')}".lower()
    base = next((name for word, name in BASES if word in described), "full")
    return Peft(
        method="dora" if "dora" in text else "lora",
        rank=int(rank[1]) if rank else 8,
        targets=targets or ("attention.q", "attention.v"),
        base=base,  # type: ignore[arg-type]
    )
