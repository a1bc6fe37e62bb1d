"""A plain PyTorch training loop, alone or under DistributedDataParallel.

Every rank keeps weights, gradients and optimizer states whole. torch.autocast where the precision says amp.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.domain.job import Job, Phase
from vramcast.domain.program import Program
from vramcast.domain.rank import RankProgram
from vramcast.engines.eager.models import all_phases
from vramcast.engines.eager.question import (
    attention_of,
    packing_sentences,
    recipe_of,
    refuse_shards,
    stepping_of,
    text_only,
)
from vramcast.engines.eager.trl import reference_sentences


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    Raises: Unsupported for model parallelism, sharding and offload, with the engine that would work
    """
    refuse_shards(job, job.plan)
    recipe = recipe_of(job)
    return (one_role(job, all_phases(job, recipe, stepping_of(job)), *packing_sentences(job)),)


def one_role(job: Job, phases: Mapping[Phase, Program], *assumptions: str) -> RankProgram:
    """All ranks do the same."""
    found = [*assumptions, *reference_sentences(job)]
    if job.plan.compile:
        found.append("torch.compile fuses norms, activations, rotary embedding and the loss; the rest as in eager mode")
    if job.workload.grad_accum > 1:
        found.append("gradients of later micro-batches are added to those of the first and freed")
    if attention_of(job) is not job.plan.attention:
        found.append(f"attention runs in full: transformers has no fused kernel for {job.model.family}")
    if text_only(job):
        found.append("batches of text only: the vision tower needs --image-size")
    return RankProgram(role="all", count=job.cluster.count, phases=phases, assumptions=tuple(found))
