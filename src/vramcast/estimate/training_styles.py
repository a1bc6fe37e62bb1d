"""How each training engine runs a step: fused kernels, overlap, where gradients and weights travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.sizes import Sizes
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, Recompute, Shards
from vramcast.operators.linear import Numerics
from vramcast.timing.training.parts import Style
from vramcast.timing.training.states import Update

MEGATRON_SCORES: Final = 13.0
"""Bytes of a score: the product writes 2, the fused softmax reads and writes 4, dropout 5 with its mask, a read of 2."""

EAGER_SCORES: Final = 30.0
"""The same one operator after the other: scaled, masked, softmax in fp32, cast, dropped."""


class Recipe(NamedTuple):
    """An engine's way of running a job."""

    style: Style
    update: Update
    loss: Loss
    gradient_bytes: float  # of an element that data-parallel ranks exchange
    weight_bytes: float  # of an element that they gather
    gradients_hidden: float  # share of the gradients' reduction that can run under backward
    weights_hidden: float  # share of the weights' gathering that can run under passes
    each_micro_batch: bool  # gradients are reduced after every micro-batch, weights gathered before every pass
    sequence_parallel: bool
    modules: tuple[str, ...]  # of selective recomputation
    host_s: float = 2e-3  # between two steps


def recipe_of(job: Job) -> Recipe:
    """The recipe of a job's engine."""
    return RECIPES.get(job.engine, _eager)(job)


def _megatron(job: Job) -> Recipe:
    from vramcast.engines.megatron.options import options_of

    plan, options = job.plan, options_of(job)
    gradient = 2.0 if plan.precision is Precision.MIXED_FP16 or options.accumulate_in_fp32 is False else 4.0
    sequence = plan.sequence_parallel if plan.sequence_parallel is not None else True
    whole = plan.precision is Precision.FP32
    width = 4 if whole else 2
    fsdp = options.fsdp or plan.shards is Shards.EVERYTHING
    return Recipe(
        style=Style(
            width=width, residual=width, gradient=int(gradient), launch_s=4e-6,
            tensor_overlap=True, expert_overlap=options.overlap_moe_comm,
            eager_scores=MEGATRON_SCORES if plan.attention is AttentionKernel.EAGER else 0.0,
        ),
        update=Update(copy=0.0 if whole else 2.0, clips=options.clip_grad),
        loss=Loss.EAGER if options.cross_entropy == "unfused" else Loss.FUSED,
        gradient_bytes=gradient,
        weight_bytes=1.0 if options.fp8_param_gather else float(width),
        gradients_hidden=0.9 if options.overlap_grad_reduce or fsdp else 0.0,
        weights_hidden=0.9 if options.overlap_param_gather or fsdp else 0.0,
        each_micro_batch=fsdp,
        sequence_parallel=sequence and plan.tp > 1,
        modules=plan.recompute_modules or ("core_attn",),
    )


LAUNCH_S: Final[dict[str, float]] = {"Ampere": 15e-6, "Hopper": 9e-6, "Blackwell": 8e-6}
"""Host time of one operator by the card's generation, which stands for that of its host."""


def _sizes(job: Job) -> Sizes:
    """Element widths and implementations, as the engine's own memory program has them."""
    from vramcast.engines.eager.question import recipe_of as eager_recipe

    plan = job.plan
    if job.engine in ("torchtitan", "torchtune") or plan.tp > 1 or plan.shards is Shards.EVERYTHING:
        kind = "compiled" if plan.compile else "eager"
        return Sizes(
            batch=1, seq_len=job.workload.seq_len, hidden=job.model.hidden, numerics=Numerics(2, 2, 2, 2),
            norm="compiled" if plan.compile else "torch", activation=kind, rope="compiled" if plan.compile else "complex",
        )
    whole = replace(job, plan=replace(plan, pp=1))
    return eager_recipe(whole, autocast=job.engine in ("huggingface", "unsloth") and plan.precision in AUTOCAST).sizes


AUTOCAST: Final = (Precision.AMP_BF16, Precision.AMP_FP16)


def _eager(job: Job) -> Recipe:
    """PyTorch and the trainers on top of it: operators one by one."""
    plan = job.plan
    whole = plan.precision in (Precision.FP32, Precision.TF32, Precision.FP64)
    amp = plan.precision in (Precision.AMP_BF16, Precision.AMP_FP16)
    width = 4 if whole else 2
    master = plan.precision in (Precision.MIXED_BF16, Precision.MIXED_FP16, Precision.FP8)
    sharded = plan.shards is Shards.EVERYTHING
    return Recipe(
        style=Style(
            fused=plan.compile, sizes=_sizes(job), launch_s=LAUNCH_S.get(job.cluster.gpu.arch, 12e-6), width=width,
            residual=4 if amp and not sharded else width, gradient=0,
            eager_scores=EAGER_SCORES if plan.attention is AttentionKernel.EAGER else 0.0,
        ),
        update=Update(
            weight=4.0 if amp or whole or master else 2.0, gradient=4.0 if amp or whole or master else 2.0,
            states=8.0 if amp or whole or master else 4.0, copy=2.0 if master else 0.0,
            kernel=plan.optimizer_kernel or "foreach",
        ),
        loss=plan.loss or Loss.EAGER,
        gradient_bytes=4.0 if amp or whole else 2.0,
        weight_bytes=float(width),
        gradients_hidden=0.9,
        weights_hidden=0.9 if sharded else 0.0,
        each_micro_batch=plan.shards in (Shards.EVERYTHING, Shards.OPTIMIZER_AND_GRADIENTS),
        sequence_parallel=plan.tp > 1,
        modules=plan.recompute_modules or ("core_attn",),
    )


RECIPES: Final[dict[str, Callable[[Job], Recipe]]] = {"megatron": _megatron}
"""Engine -> its recipe; the others run PyTorch eagerly."""

__all__ = ["Recipe", "Recompute", "recipe_of"]
