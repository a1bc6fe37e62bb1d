"""Unsloth-style single-GPU training: fused Triton kernels, a loss that never makes all logits, checkpointed layers.

[Unsloth] unsloth/kernels (rms_layernorm, swiglu, rope_embedding, cross_entropy_loss): in-place backward as in Liger
"""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.job import Job, Loss, Recompute
from vramcast.domain.rank import RankProgram
from vramcast.engines.eager.models import all_phases
from vramcast.engines.eager.question import recipe_of, refuse_shards, stepping_of
from vramcast.engines.pytorch import one_role
from vramcast.errors import Unsupported


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """One GPU with everything on it.

    Raises: Unsupported for more than one GPU
    """
    if job.cluster.count > 1:
        raise Unsupported(f"--engine unsloth trains on one GPU, not {job.cluster.count}; use --engine huggingface")
    refuse_shards(job, job.plan)
    plan = replace(job.plan, loss=job.plan.loss or Loss.FUSED_LINEAR)
    if job.plan.recompute is Recompute.SELECTIVE:
        plan = replace(plan, recompute=Recompute.FULL)
    asked = replace(job, plan=plan)
    recipe = recipe_of(asked, variants="liger", autocast=True)
    return (one_role(asked, all_phases(asked, recipe, stepping_of(asked)), "fused kernels with in-place backward"),)
