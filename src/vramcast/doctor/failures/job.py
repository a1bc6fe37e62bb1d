"""A failure beside the job that failed: what is predicted of it, what techniques would save, and what else to check.

[amp] pytorch torch/amp/grad_scaler.py: starts at 2^16, halves at an overflow, doubles after 2,000 steps without one
[checkpoint] pytorch torch/utils/checkpoint.py: `preserve_rng_state`, `use_reentrant`
[ZeRO] deepspeed runtime/zero/config.py: buckets of 5e8 elements; runtime/zero/stage_1_and_2.py: `overlap_comm` has two
[FSDP] pytorch torch/distributed/fsdp: what is wrapped as one unit is gathered as one
[offload] deepspeed ops/adam/cpu_adam.py; runtime/zero/offload_config.py `pin_memory`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from vramcast import engines, estimate, search
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import count_parameters, elements
from vramcast.doctor.failures.case import Case, Facts, Predicted, size
from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.failure import Fix, Remark
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.errors import VramcastError
from vramcast.units import GIB, format_seconds

FP16: Final = (Precision.AMP_FP16, Precision.MIXED_FP16, Precision.FP16)
FSDP_ENGINES: Final = ("torchtitan", "torchtune", "litgpt")

Fires: TypeAlias = Callable[[Facts, Job | None], bool]
Computes: TypeAlias = Callable[[Job], dict[str, str] | None]


class Check(Struct, frozen=True):
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

    width = 4 if job.plan.precision in (Precision.FP32, Precision.TF32) else 2
    zero = engines.deepspeed.settings(job, width)
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

    learning = count_parameters(job.model).trainable if job.plan.peft is None else job.plan.peft.trainable_parameters
    clock = estimate.step_time.timed(job).time
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


OTHER_CARD: Final = 0.05
"""Two statements of the memory of one card differ by less than this share: drivers keep some."""

AS_PREDICTED: Final = 0.15
"""Within this share of the prediction live memory is what the job needs: intervals of 90 % are about as wide."""


class Computed(Struct, frozen=True):
    """What the job comes to."""

    predicted: Predicted
    by: str  # "train" or "serve"
    fixes: tuple[Fix, ...]  # those that fit first, then in order of what a user gives up
    gpu_bytes: int
    cache: Remark | None = None  # where the cards hold the job, but not as many sequences as were asked for


def computed(job: Job | ServeJob | PipelineJob) -> Computed:
    """The prediction of a job and what techniques would save of it.

    Raises: VramcastError of one sentence when the question cannot be answered
    """
    cache = None
    found: Answer
    if isinstance(job, Job):
        found = estimate.training.answer(job, with_changes=False)
        fixes = tuple(_training_fixes(job, found.fullest.needed_bytes))
    else:
        found = served = estimate.serving.answer(job, with_changes=False)
        fixes = tuple(_serving_fixes(job, served)) if isinstance(job, ServeJob) else ()
        cache = _cache_short(job, served) if isinstance(job, ServeJob) else None
    rank = found.fullest
    highest = rank.phases[rank.highest_phase]
    predicted = Predicted(
        verdict=found.verdict, device=rank.needed_bytes, allocated=highest.allocated_bytes,
        reserved=highest.reserved_bytes, capacity=found.capacity_bytes,
    )
    by = "train" if isinstance(job, Job) else "serve"
    ordered = tuple(sorted(fixes, key=lambda fix: not fix.enough))
    return Computed(predicted, by, ordered, job.cluster.gpu.visible_bytes, cache)


def _cache_short(job: ServeJob, found: ServeAnswer) -> Remark | None:
    """That the cards hold the weights, but their cache fewer sequences than were asked for."""
    capacity, concurrency = found.capacity, job.requests.concurrency
    if found.fits or capacity is None or found.fullest.needed_bytes > found.capacity_bytes:
        return None
    if capacity.concurrency >= concurrency:
        return None
    return Remark(key="job.cache_short", values={
        "sequences": f"{capacity.concurrency:.1f}", "asked": f"{concurrency:,}", "context": f"{job.context:,}",
        "cache": size(capacity.kv_bytes), "needed": size(concurrency * capacity.sequence_bytes),
    })


def _training_fixes(job: Job, needed_bytes: int) -> Iterator[Fix]:
    for row in search.techniques.techniques(job).techniques:
        saved = needed_bytes - row.device_bytes  # less than the table says where the job has the technique already
        if saved > 0 and row.against == job.engine and row.change:
            action = Remark(key="fix.technique", values={"technique": row.name, "device": size(row.device_bytes)})
            yield Fix(action=action, setting=row.change, saves_bytes=saved, shown_by="train", enough=row.fits)


def _serving_fixes(job: ServeJob, found: ServeAnswer) -> Iterator[Fix]:
    needed, cache_short = found.fullest.needed_bytes, _cache_short(job, found) is not None
    held = found.capacity.concurrency if found.capacity else None
    verdict = estimate.serving.verdict
    for change in estimate.serving_changes.serving_changes(job, verdict(job), verdict=verdict):
        saved = needed - change.device_bytes
        more = held is not None and change.concurrency is not None and change.concurrency > held
        if not (saved > 0 or more or (change.fits and not found.fits)):
            continue
        values = {"device": size(change.device_bytes)}
        if change.concurrency is not None:
            values["sequences"] = f"{change.concurrency:,.1f}"
        key = "fix.change_holds" if "sequences" in values else "fix.change"
        yield Fix(
            action=Remark(key=key, values=values), setting=change.change, shown_by="serve", enough=change.fits,
            saves_bytes=saved if saved > 0 and not cache_short else None,  # a pool takes what is saved elsewhere
        )


def beside(case: Case, job: Computed) -> tuple[Remark, ...]:
    """The figures of the message beside the prediction."""
    predicted, figures = job.predicted, case.figures
    values = {"by": job.by, "device": size(predicted.device), "capacity": size(predicted.capacity)}
    remarks = [Remark(key=f"job.{predicted.verdict}", values=values)]
    if job.cache is not None:
        remarks = [job.cache]
    if figures.total and abs(figures.total - job.gpu_bytes) > OTHER_CARD * job.gpu_bytes:
        remarks.append(
            Remark(key="job.other_card", values={"total": size(figures.total), "capacity": size(job.gpu_bytes)})
        )
    if figures.allocated is not None and predicted.allocated >= GIB // 64:
        values = {"allocated": size(figures.allocated), "predicted": size(predicted.allocated)}
        ratio = (figures.allocated + (figures.tried or 0)) / predicted.allocated
        key = "job.less" if ratio < 1 - AS_PREDICTED else "job.more" if ratio > 1 + AS_PREDICTED else "job.agrees"
        remarks.append(Remark(key=key, values=values | {"tried": size(figures.tried or 0)}))
    return tuple(remarks)
