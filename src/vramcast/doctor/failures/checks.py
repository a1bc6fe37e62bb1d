"""Stability and compatibility beside memory: what to check, the setting, and what it comes to for a job.

[amp] pytorch torch/amp/grad_scaler.py: starts at 2^16, halves at an overflow, doubles after 2,000 steps without one
[checkpoint] pytorch torch/utils/checkpoint.py: `preserve_rng_state`, `use_reentrant`
[ZeRO] deepspeed runtime/zero/config.py: buckets of 5e8 elements; runtime/zero/stage_1_and_2.py: `overlap_comm` has two
[FSDP] pytorch torch/distributed/fsdp: what is wrapped as one unit is gathered as one
[offload] deepspeed ops/adam/cpu_adam.py; runtime/zero/offload_config.py `pin_memory`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from vramcast.blocks.parameters import count_parameters
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import elements
from vramcast.doctor.failures.case import Facts, size
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.reconciliation import Remark
from vramcast.errors import VramcastError
from vramcast.units import format_seconds

FP16: Final = (Precision.AMP_FP16, Precision.MIXED_FP16, Precision.FP16)
FSDP_ENGINES: Final = ("torchtitan", "torchtune", "litgpt")

Fires: TypeAlias = Callable[[Facts, Job | None], bool]
Computes: TypeAlias = Callable[[Job], dict[str, str] | None]


class Check(NamedTuple):
    """Something to look at: when the text or the job gives reason to, and its figures for a job."""

    key: str
    fires: Fires
    computes: Computes = lambda job: None  # None: no figures for this job


def _loss_scale(job: Job) -> dict[str, str] | None:
    """What the card has instead of fp16."""
    if job.plan.precision not in FP16:
        return None
    return {"card": job.cluster.gpu.name, "precision": str(job.plan.precision)} if job.cluster.gpu.has_bf16 else None


def _buckets(job: Job) -> dict[str, str] | None:
    if job.engine != "deepspeed":
        return None
    from vramcast.engines.deepspeed import settings

    width = 4 if job.plan.precision in (Precision.FP32, Precision.TF32) else 2
    zero = settings(job, width)
    copies = 2 if zero.overlap else 1
    return {
        "elements": f"{zero.reduce_bucket:,}", "bucket": size(zero.reduce_bucket * width), "copies": str(copies),
        "buffers": size(copies * zero.reduce_bucket * width),
    }


def _units(job: Job) -> dict[str, str] | None:
    """What is gathered where the whole model is one unit, and where every layer is."""
    if job.plan.shards is not Shards.EVERYTHING:
        return None
    width = 4 if job.plan.precision in (Precision.FP32, Precision.TF32) else 2
    hidden, stacks = job.model.hidden, job.model.stacks
    layers = [elements(layer_parameters(layer, hidden=hidden)) for stack in stacks for layer in stack.layers]
    whole = count_parameters(job.model).total
    if not layers:
        return None
    return {"whole": size(width * whole), "layer": size(width * max(layers))}


def _transfers(job: Job) -> dict[str, str] | None:
    """What offloaded states move over PCIe in a step, and how long that shows."""
    if job.plan.offload_optimizer == "none":
        return None
    from vramcast.estimate.step_time import timed

    learning = count_parameters(job.model).trainable if job.plan.peft is None else job.plan.peft.trainable_parameters
    clock = timed(job).time
    if not learning or clock is None:
        return None
    # 16-bit gradients go down, 16-bit weights come back, of this rank's part
    moved = 2 * 2 * learning // max(1, job.data_parallel)
    waits = clock.seconds.get("offload", 0.0) + clock.seconds.get("optimizer", 0.0)
    return {"moved": size(moved), "waits": format_seconds(waits), "step": format_seconds(clock.step_s)}


def _recomputes(facts: Facts, job: Job | None) -> bool:
    asked = job is not None and job.plan.recompute is not Recompute.NONE
    return asked or "gradient_checkpointing" in facts.words or "checkpoint" in facts.phases


def _zero(facts: Facts, job: Job | None) -> bool:
    return (job is not None and job.engine == "deepspeed") or "deepspeed" in facts.words


def _fsdp(facts: Facts, job: Job | None) -> bool:
    asked = job is not None and job.engine in FSDP_ENGINES and job.plan.shards is Shards.EVERYTHING
    return asked or "fsdp" in facts.words


def _offloads(facts: Facts, job: Job | None) -> bool:
    asked = job is not None and job.plan.offload_optimizer != "none"
    return asked or "offload_optimizer" in facts.words


def _unstable(facts: Facts, job: Job | None) -> bool:
    return facts.nan or facts.overflow or (job is not None and job.plan.precision in FP16)


CHECKS: Final[tuple[Check, ...]] = (
    Check("check.loss_scale", _unstable, _loss_scale),
    Check("check.fp32_parts", _unstable),
    Check("check.rng", _recomputes),
    Check("check.batch_norm", _recomputes),
    Check("check.reentrant", _recomputes),
    Check("check.buckets", _zero, _buckets),
    Check("check.wrapping", _fsdp, _units),
    Check("check.offload", _offloads, _transfers),
)
"""In the order they are shown. A check with figures has a second sentence under its key with ".job"."""


def checks_of(facts: Facts, job: Job | None = None, *, every: bool = False) -> tuple[Remark, ...]:
    """The checks that a text or a job gives reason for, with figures where the job gives them.

    Args:
        facts: of the text
        job: the training job, where it was given
        every: all checks, whether there is reason or not
    """
    found: list[Remark] = []
    for check in CHECKS:
        if every or check.fires(facts, job):
            found.append(Remark(key=check.key))
            values = _computed(check, job)
            if values is not None:
                found.append(Remark(key=f"{check.key}.job", values=values))
    return tuple(found)


def _computed(check: Check, job: Job | None) -> dict[str, str] | None:
    """The figures of a check; none where the job has none, or cannot be answered."""
    if job is None:
        return None
    try:
        return check.computes(job)
    except VramcastError:
        return None
