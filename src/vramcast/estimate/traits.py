"""What decides how far a prediction misses: the traits of a job that measured cases are compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vramcast.domain.job import Job, Shards
from vramcast.domain.model import Model, MoE
from vramcast.engines import eager
from vramcast.engines.training import engine_of

if TYPE_CHECKING:
    from vramcast.domain.serving import PipelineJob, ServeJob

SLACKS: Final = ((0.05, "little"), (0.15, "some"), (1.0, "much"))
"""Share of a number that is reserved and not allocated, by its upper end: what the allocator keeps is partly chance."""

HARD: Final = ("dpo", "kto", "ppo", "grpo", "rloo", "reward")
"""Objectives with more than one model or more than one pass."""


class Traits(NamedTuple):
    """One word for each; a serving job leaves most of them empty."""

    engine: str
    kin: str
    adapters: str = ""
    packed: str = ""
    experts: str = ""
    objective: str = ""
    slack: str = ""
    sharded: str = ""
    ranks: str = ""
    degrees: str = ""
    compiled: str = ""
    recompute: str = ""
    loss: str = ""
    precision: str = ""
    optimizer: str = ""
    arch: str = ""
    gpu: str = ""
    lengths: str = ""


def slack_of(share: float) -> str:
    """How much of a number the allocator keeps without using it, in a word.

    Args:
        share: of reserved and not allocated bytes in the number; 0 for a number of allocated bytes
    """
    return next(word for most, word in SLACKS if share < most or most == 1.0)


def training_traits(job: Job, share: float = 0.0) -> Traits:
    """Of a training job; `share` as in `slack_of`. What DeepSpeed runs is its, whoever starts it."""
    plan, peft = job.plan, job.plan.peft
    zero = eager.releases.runs_deepspeed(job)
    engine, sharder = ("deepspeed", "deepspeed") if zero else (job.engine, plan.sharded_by)
    sharded = plan.shards is not Shards.NOTHING and job.data_parallel > 1
    degrees = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1]
    return Traits(
        engine=engine, kin=engine_of(job).kin,
        adapters="" if peft is None else "adapters",
        packed="packed" if peft is not None and peft.base != "full" else "",
        experts=_experts(job.model),
        objective="several" if job.workload.objective in HARD else "",
        slack=slack_of(share),
        sharded=(sharder or "sharded") if sharded else "",
        ranks="several" if job.cluster.count > 1 else "one",
        degrees="+".join(degrees),
        compiled="compiled" if plan.compile else "",
        recompute=plan.recompute.value, loss=plan.loss.value if plan.loss else "",
        precision=plan.precision.value.replace("amp-", "mixed-"),  # some engines take one for the other
        optimizer=plan.optimizer.partition(":")[0], arch=job.cluster.gpu.arch, gpu=job.cluster.gpu.name,
        lengths="varying" if (job.workload.min_seq_len or job.workload.seq_len) < job.workload.seq_len else "",
    )


def serving_traits(job: ServeJob | PipelineJob) -> Traits:
    """Of a serving job."""
    model = getattr(job, "model", None)
    return Traits(
        engine=job.engine, kin=job.engine, packed=job.plan.weights or "",
        experts=_experts(model) if isinstance(model, Model) else "",
        ranks="several" if job.plan.num_ranks > 1 else "one",
        arch=job.cluster.gpu.arch, gpu=job.cluster.gpu.name,
    )


def _experts(model: Model) -> str:
    return "experts" if any(isinstance(run.layer.channel, MoE) for run in model.main.runs) else ""
