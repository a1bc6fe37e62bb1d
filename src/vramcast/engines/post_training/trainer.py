"""Whose program a trainer's network runs: FSDP's or Megatron's."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from vramcast.domain.job import Job
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Program, Tensor
from vramcast.engines.post_training import fsdp, huggingface, megatron
from vramcast.engines.post_training.batches import Batches
from vramcast.engines.post_training.networks import Network
from vramcast.errors import Unsupported

MODULES: Final[dict[str, ModuleType]] = {
    "pytorch": fsdp, "megatron": megatron, "huggingface": huggingface,
}


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a training job."""
    made: Job = MODULES[job.engine].train_job(job, found)
    return made


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns."""
    made: Network = MODULES[job.engine].actor(job, found)
    return made


def critic(job: PostTrainingJob, found: Batches) -> tuple[Network, Program]:
    """The network that estimates values, and a pass of it without gradients.

    Raises: Unsupported under Megatron
    """
    if job.engine != "pytorch":
        raise Unsupported("a critic under Megatron is not modelled; use --engine pytorch, or an algorithm without one")
    return fsdp.critic(job, found)


def rates_inside(job: PostTrainingJob) -> bool:
    """Whether log-probabilities of the answers are part of the update."""
    return job.engine == "huggingface"


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """The network as it was."""
    made: Network = MODULES[job.engine].reference(job, found)
    return made


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """A pass without gradients over one micro-batch."""
    made: Program = MODULES[job.engine].log_prob(job, found, entropy=entropy, reference=reference)
    return made


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """What is made besides while weights go to the engine."""
    made: tuple[Tensor, ...] = MODULES[job.engine].handover(job, learning)
    return made


def offloads_reference(job: PostTrainingJob) -> bool:
    """Whether the reference waits on the host: of FSDP since 0.6 unasked, of Megatron where it is asked."""
    if job.engine == "pytorch" and job.framework == "verl":
        return fsdp.offloads_reference(job)
    return bool(job.updates.offload_reference) if job.framework == "verl" else True
