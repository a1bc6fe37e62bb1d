"""A job with something changed, and the options that say so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from msgspec.structs import asdict, replace

from vramcast.blocks.parameters.targets import usual_targets
from vramcast.domain.device import Gpu
from vramcast.domain.job import WITHOUT_TARGETS, Job, Peft, Plan, Precision, Recompute, Shards, Workload
from vramcast.engines.eager.releases import precision_word
from vramcast.engines.eager.trl import narrows_adapters, recomputing
from vramcast.engines.training import TRAINING

FULL_PRECISION: Final = (Precision.FP64, Precision.FP32, Precision.TF32)

BF16_RECIPES: Final = (Precision.AMP_BF16, Precision.MIXED_BF16, Precision.BF16)

FP16_RECIPES: Final = (Precision.AMP_FP16, Precision.MIXED_FP16, Precision.FP16)

PEFT_OPTIONS: Final = {
    "method": "peft", "rank": "lora-rank", "targets": "lora-targets", "dropout": "lora-dropout", "base": "base-weights",
}
"""Field of `Peft` -> option, where the names differ."""


def with_plan(job: Job, **changes: Any) -> Job:
    """The job with fields of its plan changed."""
    return replace(job, plan=replace(job.plan, **changes))


def of_plain_layers(job: Job) -> Job:
    """The job whose adapters have as many weights in all: Megatron's ranks share them, PyTorch's layers hold them."""
    if job.engine != "megatron":
        return job
    return replace(job, engine="pytorch", engine_options={}, plan=Plan(peft=job.plan.peft))


def with_new_adapters(job: Job, base: Literal["full", "nf4-dq"]) -> Job:
    """The job with LoRA of rank 16 on what is adapted where nobody says, in the dtype that its tool makes unasked."""
    peft = Peft(rank=16, base=base, targets=usual_targets(job.model))
    return with_plan(job, peft=replace(peft, adapter_dtype=_unasked_dtype(with_plan(job, peft=peft))))


def _unasked_dtype(job: Job) -> str:
    return "bf16" if narrows_adapters(job) else Peft().adapter_dtype


def with_workload(job: Job, **changes: Any) -> Job:
    """The job with fields of its workload changed."""
    return replace(job, workload=replace(job.workload, **changes))


def sixteen_bits(engine: str, gpu: Gpu) -> Precision:
    """What an engine computes in 16 bits with: bf16, or fp16 with a loss scale on cards without it."""
    known = TRAINING[engine]
    return known.sixteen_bits if gpu.has_bf16 else known.in_fp16 or known.sixteen_bits


def recipes(asked: Iterable[Precision | None], engine: str, gpu: Gpu) -> tuple[Precision, ...]:
    """The precisions of an axis on one card; those in bf16 are left out where it has none and there are others.

    Args:
        asked: None stands for the engine's own 16 bits
        engine: the framework
        gpu: the card
    """
    found = dict.fromkeys(precision or sixteen_bits(engine, gpu) for precision in asked)
    native = tuple(precision for precision in found if gpu.has_bf16 or precision not in BF16_RECIPES)
    return native or tuple(found)


def rebatched(job: Job) -> Job | None:
    """The job with as many micro-batches as its question's global batch takes; None where that does not divide."""
    if job.global_batch is None:
        return job
    grad_accum, rest = divmod(job.global_batch, job.data_parallel * job.workload.micro_batch)
    return None if rest else with_workload(job, grad_accum=grad_accum)


def on_engine(job: Job, engine: str) -> Job:
    """The same question to another engine, in that engine's own 16-bit recipe; several cards share what they must."""
    if engine == job.engine:
        return job
    full = job.plan.precision in FULL_PRECISION
    precision = job.plan.precision if full else sixteen_bits(engine, job.cluster.gpu)
    copied = job.plan.shards is Shards.NOTHING and job.data_parallel > 1
    least = Shards.OPTIMIZER if engine == "deepspeed" else Shards.NOTHING  # `estimate.checks`: no copies of everything
    shards = least if copied else job.plan.shards
    there = with_plan(job, precision=precision, shards=shards, sharded_by=None)
    return replace(there, engine=engine, engine_version=None, engine_options={})


def options_between(before: Job, after: Job) -> str:
    """The options that turn one job into another, as the command line writes them.

    Another engine's own 16-bit recipe is its default, and not written where the first engine's own was asked for; nor
    are micro-batches that follow from the global batch of the question. What an engine does unasked and the job does
    not is written, whatever the first job does.
    """
    words, derived = [], ("peft",) if after.global_batch is None else ("peft", "grad_accum")
    unasked = bool(recomputing(after))
    differs = (unasked or recomputing(before)) and unasked is (after.plan.recompute is Recompute.NONE)
    otherwise = ("recompute",) if differs else ()
    if after.cluster.name != before.cluster.name:
        words.append(f"--gpus {after.cluster.name}")
    if after.engine != before.engine:
        words.append(f"--engine {after.engine}")
        if not all(job.plan.precision is sixteen_bits(job.engine, job.cluster.gpu) for job in (before, after)):
            words.append(_option("precision", precision_word(after)))
        before = with_plan(before, precision=after.plan.precision)
    for old, new, usual in ((before.plan, after.plan, Plan()), (before.workload, after.workload, Workload())):
        was, default = asdict(old), asdict(usual)
        said = {field: default[field] if value is None else value for field, value in asdict(new).items()}
        said |= {"precision": precision_word(after)}
        words += [
            _option(field, said[field]) for field, value in asdict(new).items()
            if field not in derived and (value != was[field] or field in otherwise)
        ]
    if after.plan.peft != before.plan.peft:
        words += _peft_options(after)
    if after.alloc_conf != before.alloc_conf:
        words.append(_option("alloc_conf", after.alloc_conf))
    return " ".join(filter(None, words))


def _peft_options(job: Job) -> list[str]:
    """The method, what is adapted, which depends on the model where nobody says, and what differs from the usual."""
    peft = job.plan.peft
    if peft is None:
        return []
    usual = asdict(Peft()) | {"adapter_dtype": _unasked_dtype(job)}
    return [
        _option(PEFT_OPTIONS.get(field, field), value)
        for field, value in asdict(peft).items()
        if field == "method" or value != usual[field] or (field == "targets" and peft.method not in WITHOUT_TARGETS)
    ]


def _option(field: str, value: object) -> str:
    """One option; nothing for a value that is said by leaving it out."""
    name = field.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "" if value in (None, "") else f"--{name} {value}"
