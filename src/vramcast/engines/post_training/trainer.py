"""Whose program a trainer's network runs: FSDP's, Megatron's, that of TRL's trainers or DeepSpeed's."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from vramcast.domain.job import Job, Shards
from vramcast.domain.model import scorer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Program, Tensor
from vramcast.engines.post_training.batches import Batches
from vramcast.engines.post_training.networks import Network
from vramcast.engines.post_training.releases import release_of
from vramcast.errors import Unsupported

MODULES: Final = {"pytorch": "fsdp", "megatron": "megatron", "huggingface": "huggingface", "deepspeed": "zero"}
"""Engine of a trainer -> the module here that knows it, imported when it is asked for."""


def _of(job: PostTrainingJob) -> Any:
    return import_module(f"vramcast.engines.post_training.{MODULES[job.engine]}")


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a training job."""
    made: Job = _of(job).train_job(job, found)
    return made


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns."""
    made: Network = _of(job).actor(job, found)
    return made


def critic(job: PostTrainingJob, found: Batches) -> tuple[Network, Program]:
    """The network that estimates values, and a pass of it without gradients."""
    made: tuple[Network, Program] = _of(job).critic(job, found)
    return made


def moved_by_stage(job: PostTrainingJob) -> tuple[bool, bool]:
    """Whether weights and the optimizer leave the card between two stages; DeepSpeed's offload is part of its step."""
    plan = job.plan
    if job.framework == "ms-swift" or job.engine == "huggingface":
        return job.updates.leaves, job.updates.sleeps and plan.offload_optimizer == "none"
    if job.engine == "deepspeed":
        return False, job.updates.sleeps and plan.offload_optimizer == "none"
    there = bool(_of(job).steps_on_host(job))
    stays = there and job.engine == "pytorch"  # Megatron's weights leave nevertheless
    return plan.offload_parameters != "none" and not stays, plan.offload_optimizer != "none" and not there


def rates_inside(job: PostTrainingJob) -> bool:
    """Whether log-probabilities of the answers are part of the update."""
    return job.engine == "huggingface"


def engine_starts_first(job: PostTrainingJob) -> bool:
    """Whether the engine starts before the trainer has its share of the card."""
    return release_of(job).apart or (job.engine == "huggingface" and bool(_of(job).is_sharded(job)))


def held_before(job: PostTrainingJob, learning: Network) -> int:
    """What an engine that starts first finds on the card [bytes]."""
    if release_of(job).apart:
        return 0
    found: int = _of(job).held_before(job, learning)
    return found


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """The network as it was."""
    made: Network = _of(job).reference(job, found)
    return made


def reward(job: PostTrainingJob, found: Batches) -> tuple[Program, Network]:
    """A pass of the network that rates answers, and what is kept of it.

    Raises: Unsupported for trainers beside which none is modelled
    """
    if job.engine not in ("deepspeed", "pytorch") or job.reward is None:
        raise Unsupported("a reward network beside --engine {} is not modelled; leave out --reward-model", job.engine)
    made: tuple[Program, Network] = _of(job).reward(job, found, scorer(job.reward))
    return made


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """A pass without gradients over one micro-batch."""
    made: Program = _of(job).log_prob(job, found, entropy=entropy, reference=reference)
    return made


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """What is made besides while weights go to the engine."""
    made: tuple[Tensor, ...] = _of(job).handover(job, learning)
    return made


def offloads_reference(job: PostTrainingJob) -> bool:
    """Whether the reference waits on the host: of FSDP since 0.6 unasked, of Megatron where it is asked."""
    if job.engine == "deepspeed":
        return bool(job.updates.offload_reference) and job.plan.shards is Shards.EVERYTHING
    if job.engine == "pytorch" and job.framework == "verl":
        return bool(_of(job).offloads_reference(job))
    return bool(job.updates.offload_reference) if job.framework == "verl" else True
