"""A job in torchtitan's terms: versions, groups, implementations; what is refused.

[titan] torchtitan config/job_config.py, distributed/parallel_dims.py
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.blocks.sizes import Dispatch, Sizes
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards, share
from vramcast.domain.model import Attention, MultiLatentAttention
from vramcast.domain.version import date_text
from vramcast.engines.torchtitan.facts import Facts, facts
from vramcast.engines.torchtitan.model import Choices
from vramcast.engines.torchtitan.pieces import Sharing
from vramcast.errors import Unsupported
from vramcast.operators.linear import Numerics
from vramcast.parallel.fsdp import (
    Fsdp,
)
from vramcast.parallel.layout import Layout, uneven
from vramcast.states.optimizers import OptimizerRule, optimizer

BF16: Final = Numerics(2, 2, 2, 2)


class Setting(NamedTuple):
    """A job as this engine reads it."""

    job: Job
    known: Facts
    sizes: Sizes
    choices: Choices
    sharing: Sharing
    reshard: str
    micro_batches: int  # of a pipeline step; 1 without pipeline
    rule: OptimizerRule
    kernel: str


def check(job: Job) -> None:
    """Raise Unsupported for what torchtitan, or this model of it, does not have."""
    plan = job.plan
    if plan.peft is not None:
        raise Unsupported("torchtitan trains all weights; use --engine litgpt or huggingface for adapters")
    if len(job.model.stacks) > 1:
        raise Unsupported("torchtitan's encoders are not modelled; use --engine pytorch for models of several stacks")
    for count, layer in ((run.count, run.layer) for run in job.model.main.runs):
        if count and layer.mixer is not None and not isinstance(layer.mixer, (Attention, MultiLatentAttention)):
            raise Unsupported(
                f"{type(layer.mixer).__name__} layers are not modelled for torchtitan; use --engine megatron"
            )
    if job.data_parallel * plan.cp == 1:
        raise Unsupported(
            "torchtitan is modelled with FSDP, which divides weights over two ranks or more; "
            f"tp={plan.tp} x pp={plan.pp} leave one: use more GPUs, lower degrees, or --engine pytorch"
        )
    if plan.shards is Shards.NOTHING:
        raise Unsupported("torchtitan is modelled with FSDP; use --shards everything, or --engine pytorch")
    if plan.shards is not Shards.EVERYTHING:
        raise Unsupported(f"torchtitan does not shard {plan.shards} only; use --shards everything")
    if plan.precision not in (Precision.MIXED_BF16, Precision.AMP_BF16, Precision.FP8):
        raise Unsupported(f"torchtitan trains fp32 weights in bf16, not in {plan.precision}; use mixed-bf16 or fp8")
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("torchtitan offloads to the host only; use --offload-optimizer cpu")
    if plan.pp > 1 and offloaded(job):
        raise Unsupported("torchtitan's offload with pipeline parallelism is not modelled; use --pp 1")


def read(job: Job) -> Setting:
    """The job in this engine's terms.

    Raises: Unsupported for combinations torchtitan or this model of it does not have.
    """
    check(job)
    plan, options = job.plan, job.engine_options
    known = facts(date_text(job.engine_version or ()) or str(options.get("version", "")))
    micro_batches, samples = _micro_batches(job, known)
    data = job.data_parallel
    divided = data * plan.cp if plan.shards is not Shards.NOTHING else 1
    group = min(plan.shard_group or divided, divided)
    float8 = bool(options.get("float8", plan.precision is Precision.FP8))
    gathered = 1.0 if float8 and options.get("float8_all_gather", False) else 2.0
    expert_ranks = max(1, group * plan.tp // plan.ep)
    layout = Layout(tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep, etp=plan.etp or 1, dp=data, sequence_parallel=True)
    fsdp = Fsdp(group, side_streams=not _graph_trainer(job))
    return Setting(
        job, known, _sizes(job, known, samples), _choices(job, known, float8=float8),
        Sharing(layout, fsdp, fsdp._replace(ranks=expert_ranks), gathered), _reshard(job, known), micro_batches,
        optimizer(plan.optimizer), plan.optimizer_kernel or ("fused" if known.fused_optimizer else "foreach"),
    )


def assumptions(job: Job) -> tuple[str, ...]:
    """Whose loss is counted where nobody names a version."""
    if job.engine_version is not None or "version" in job.engine_options or job.plan.loss is not None:
        return ()
    return (
        "torchtitan of today: head and loss run chunk by chunk, since 2026-05; before, all logits were made, in fp32: "
        "--engine torchtitan@2026-04 counts them",
    )


def _micro_batches(job: Job, known: Facts) -> tuple[int, int]:
    """Pipeline micro-batches and samples of each."""
    batch, plan = job.workload.micro_batch, job.plan
    if plan.pp == 1:
        return 1, batch
    given = int(job.engine_options.get("pipeline_microbatch_size", 0))
    if given or known.one_sample_microbatches:
        size = given or 1
        return share("pipeline_microbatch_size", batch, size, what="local batch"), size
    return plan.pp, share("pp", batch, plan.pp, what="local batch")


def _sizes(job: Job, known: Facts, samples: int) -> Sizes:
    plan = job.plan
    length = share("cp", job.workload.seq_len, plan.cp, what="seq_len")
    _refuse_uneven(job, known, samples)
    return Sizes(
        batch=samples, seq_len=length, hidden=job.model.hidden, numerics=BF16, attention=AttentionKernel.FLASH,
        norm="compiled" if plan.compile else ("torch" if known.fused_norm else "huggingface"),
        activation="compiled" if plan.compile else "eager",
        rope="compiled" if plan.compile else "complex",
        grouped=known.grouped_attention, tp=plan.tp,
        sequence_parallel=plan.tp > 1,
        dispatch=Dispatch(
            ranks=plan.ep, row_ranks=plan.tp if plan.ep > 1 and (plan.etp or 1) == 1 else 1,
            in_order=known.experts_in_order, fp32_gate=known.fp32_gate,
        ),
    )


def _refuse_uneven(job: Job, known: Facts, samples: int) -> None:
    """Raise InvalidSpec where sequence and context parallelism would not divide the positions evenly.

    [titan] trainer.py "must be divisible by ..."; before 2025-06-23 such a run failed in its rotary embedding (#1306)
    """
    plan, length = job.plan, job.workload.seq_len
    halves = 2 if plan.cp > 1 or known.pairs_positions else 1
    divisor = plan.tp * plan.cp * halves
    tokens = length * samples if known.folds_batch else length
    if tokens % divisor:
        raise uneven("torchtitan", plan, f"seq-len={length}", length, divisor)


def _graph_trainer(job: Job) -> bool:
    """SimpleFSDP or the graph trainer: collectives are nodes of one traced graph [titan experiments/simple_fsdp]."""
    trainer = str(job.engine_options.get("trainer", "eager"))
    if trainer not in ("eager", "graph"):
        raise Unsupported(f"torchtitan has no trainer {trainer[:40]!r}; use eager or graph")
    return trainer == "graph"


def _choices(job: Job, known: Facts, *, float8: bool) -> Choices:
    plan = job.plan
    loss, graph = "eager" if known.loss_casts else "model_fp32", _graph_trainer(job)
    chunked = known.graph_chunked_loss if graph else known.chunked_loss
    if plan.loss in (Loss.CHUNKED, Loss.FUSED_LINEAR) or (plan.loss is None and chunked):
        loss = "chunked"
    elif plan.loss in (Loss.COMPILED, Loss.FUSED) or (plan.loss is None and plan.compile and known.compiles_loss):
        loss = "compiled"
    return Choices(
        plan.recompute, loss, known.frees_prediction, needed_only=plan.compile or graph,
        every_product=graph and known.graph_keeps_products, context_ranks=plan.cp,
        expert_ranks=plan.ep, fused_qkv=known.fused_qkv,
        keeps_exchanges=known.keeps_exchanges, graph=graph,
        abs_kept=float8 and not plan.compile and known.saves_abs and plan.recompute is Recompute.SELECTIVE,
    )


def _reshard(job: Job, known: Facts) -> str:
    """Which blocks free their weights after forward (`fsdp_reshard_after_forward`)."""
    policy = str(job.engine_options.get("reshard", "default" if job.plan.reshard_after_forward else "never"))
    if job.plan.shards is not Shards.EVERYTHING or (policy == "default" and job.plan.pp > 1):
        return "never"
    return policy if policy != "default" else ("blocks" if known.split_root else "last")


def offloaded(job: Job) -> bool:
    """CPUOffloadPolicy: sharded weights, gradients and states live on the host together [titan `apply_fsdp`]."""
    return job.plan.offload_optimizer != "none" or job.plan.offload_parameters != "none"
