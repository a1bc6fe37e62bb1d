"""Liger's kernels in the place of a model's own.

[liger] liger_kernel/transformers/monkey_patch.py `apply_liger_kernel_to_*`
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job, Loss
from vramcast.engines.eager.recipe import Recipe
from vramcast.errors import UnknownName

LIGER: Final = ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy")
"""Kernels that are on by default [liger]."""


def liger_kernels(job: Job) -> tuple[str, ...]:
    """Kernels of Liger that take the place of the model's: `use_liger_kernel`, or those of `liger_kernel_config`.

    Raises: UnknownName for one that Liger does not have
    """
    said = job.engine_options.get("liger", False)
    if isinstance(said, bool):
        return LIGER if said else ()
    names = tuple(filter(None, str(said).split("+")))
    for name in names:
        if name not in LIGER:
            raise UnknownName.of("Liger kernel", name, LIGER)
    return names


def with_its_loss(job: Job) -> Job:
    """The job with Liger's loss, where its kernels are asked for and the plan names none."""
    if "fused_linear_cross_entropy" not in liger_kernels(job) or job.plan.loss is not None:
        return job
    return replace(job, plan=replace(job.plan, loss=Loss.FUSED_LINEAR))


def with_its_kernels(recipe: Recipe, job: Job) -> Recipe:
    """The recipe with Liger's norms, activations and rotary embeddings."""
    kernels, sizes = liger_kernels(job), recipe.sizes
    sizes = sizes._replace(
        rope="liger" if "rope" in kernels else sizes.rope, norm="liger" if "rms_norm" in kernels else sizes.norm,
        activation="liger" if "swiglu" in kernels else sizes.activation,
    )
    return recipe._replace(sizes=sizes)
