"""Unsloth-style single-GPU training: fused Triton kernels, a loss that never makes all logits, checkpointed layers.

[Unsloth] unsloth/kernels (rms_layernorm, swiglu, rope_embedding, cross_entropy_loss): in-place backward as in Liger
[Zoo] unsloth_zoo temporary_patches/moe_utils_bnb4bit.py: stacked experts become one `Params4bit` and are unpacked all
together; temporary_patches/gpt_oss.py `GptOssExpertsBnb4bit`: those of gpt-oss are linear layers again
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Loss, Recompute
from vramcast.domain.rank import RankProgram
from vramcast.domain.version import Version
from vramcast.engines.eager.models import all_phases
from vramcast.engines.eager.question import recipe_of, refuse_shards, stepping_of
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.pytorch import one_role
from vramcast.engines.transformers.versions import left_sentences, left_whole
from vramcast.errors import Unsupported

NEWEST: Final[Version] = (2026, 10)

TRANSFORMERS: Final[tuple[tuple[Version, Version], ...]] = (
    ((2026, 10), (5, 17)), ((2026, 4), (5, 5)), ((2026, 3), (5, 2)), ((0,), (4, 57)),
)
"""Since which release of Unsloth which transformers is the newest that it allows [unsloth_zoo's requirements]."""

PACKS_EXPERTS_SINCE: Final[Version] = (2026, 6, 2)
"""[Zoo] moe_utils_bnb4bit.py is in the wheel of this release, and not in 2026.6.1's."""

FOUR_BITS: Final = ("nf4", "nf4-dq")


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
    recipe = _packing(asked, recipe_of(asked, variants="liger", autocast=True))
    said = left_sentences(job.model, recipe.sizes.left_whole, transformers_of(job))
    phases = all_phases(asked, recipe, stepping_of(asked))
    return (one_role(asked, phases, "fused kernels with in-place backward", *said),)


def transformers_of(job: Job) -> Version:
    """The release of transformers that comes with the job's Unsloth."""
    version = job.engine_version or NEWEST
    return next(release for since, release in TRANSFORMERS if version >= since)


def _packing(job: Job, recipe: Recipe) -> Recipe:
    """The recipe with the experts of a 4-bit base packed where this release of Unsloth packs them [Zoo]."""
    if not recipe.sizes.left_whole:
        return recipe
    left = left_whole(job.model.family, transformers_of(job))
    stacked = "moe.experts." in left and job.model.family != "gpt_oss"
    packs = (job.engine_version or NEWEST) >= PACKS_EXPERTS_SINCE or not stacked
    if job.plan.peft is not None and job.plan.peft.base in FOUR_BITS and packs:
        left = tuple(path for path in left if path != "moe.experts.")
        return recipe._replace(sizes=recipe.sizes._replace(left_whole=left, stacked=stacked))
    return recipe._replace(sizes=recipe.sizes._replace(left_whole=left))
