"""Whose program a trainer's network runs: FSDP's, Megatron's, that of TRL's trainers or DeepSpeed's.

A network as one rank of a trainer has it, whoever shards it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from vramcast.domain.job import Job, Shards
from vramcast.domain.model import scorer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Alloc, Free, Loop, Program, Tensor
from vramcast.engines.post_training.batches import Batches
from vramcast.engines.post_training.releases import release_of
from vramcast.errors import Unsupported

ON_HOST: Final = "steps_on_host"
"""Option of the trainer: Megatron's `optimizer_cpu_offload`, of all states, or FSDP2's CPUOffloadPolicy."""

Held = tuple[tuple[Tensor, int], ...]
"""Tensors, and how many of each."""


class Network(NamedTuple):
    """What is moved between card and host, and what runs."""

    load: Program  # from nothing to what is there before the first step
    weights: Held = ()  # of it: what the offload of weights moves
    masters: Held = ()  # of it: what the offload of the optimizer moves
    states: Held = ()  # of the optimizer, made in the first update
    first: Program = ()  # one mini-batch, whose optimizer step makes the states
    update: Program = ()  # any later one
    rising: Program = ()  # one whose micro-batches have other lengths, each more than those before

    @property
    def moments(self) -> Held:
        """All that the offload of the optimizer moves once there are states."""
        return (*self.masters, *self.states)


def alloc(held: Held) -> Program:
    """Everything comes to the card."""
    return tuple(Loop(count, (Alloc(tensor),)) for tensor, count in held)


def free(held: Held) -> Program:
    """Everything leaves it."""
    return tuple(Loop(count, (Free(tensor),)) for tensor, count in held)


def num_bytes(held: Held) -> int:
    """Of all of them, as the allocator counts them [bytes]."""
    return sum(tensor.block_bytes * count for tensor, count in held)


MODULES: Final = {"pytorch": "fsdp", "megatron": "megatron", "huggingface": "huggingface", "deepspeed": "zero"}
"""Engine of a trainer -> the module here that knows it, imported when it is asked for."""


class Trainer(Protocol):
    """What each of those modules tells."""

    train_job: Callable[[PostTrainingJob, Batches], Job]  # the update as a training job
    actor: Callable[[PostTrainingJob, Batches], Network]  # the network that learns
    critic: Callable[[PostTrainingJob, Batches], tuple[Network, Program]]  # and a pass of it without gradients
    reference: Callable[[PostTrainingJob, Batches], Network]  # the network as it was
    log_prob: Callable[..., Program]  # a pass without gradients over one micro-batch; keywords `entropy`, `reference`
    handover: Callable[[PostTrainingJob, Network], tuple[Tensor, ...]]  # made besides while weights go to the engine


def of(job: PostTrainingJob) -> Trainer:
    """The trainer's own module."""
    found: Trainer = _module(job)
    return found


def _module(job: PostTrainingJob) -> Any:
    return import_module(f"vramcast.engines.post_training.{MODULES[job.engine]}")


def moved_by_stage(job: PostTrainingJob) -> tuple[bool, bool]:
    """Whether weights and the optimizer leave the card between two stages; DeepSpeed's offload is part of its step."""
    plan = job.plan
    if job.framework == "ms-swift" or job.engine == "huggingface":
        return job.updates.leaves, job.updates.sleeps and plan.offload_optimizer == "none"
    if job.engine == "deepspeed":
        return False, job.updates.sleeps and plan.offload_optimizer == "none"
    there = bool(_module(job).steps_on_host(job))
    stays = there and job.engine == "pytorch"  # Megatron's weights leave nevertheless
    return plan.offload_parameters != "none" and not stays, plan.offload_optimizer != "none" and not there


def rates_inside(job: PostTrainingJob) -> bool:
    """Whether log-probabilities of the answers are part of the update."""
    return job.engine == "huggingface"


def engine_starts_first(job: PostTrainingJob) -> bool:
    """Whether the engine starts before the trainer has its share of the card."""
    return release_of(job).apart or (job.engine == "huggingface" and bool(_module(job).is_sharded(job)))


def held_before(job: PostTrainingJob, learning: Network) -> int:
    """What an engine that starts first finds on the card [bytes]."""
    if release_of(job).apart:
        return 0
    found: int = _module(job).held_before(job, learning)
    return found


def reward(job: PostTrainingJob, found: Batches) -> tuple[Program, Network]:
    """A pass of the network that rates answers, and what is kept of it.

    Raises: Unsupported for trainers beside which none is modelled
    """
    if job.engine not in ("deepspeed", "pytorch") or job.reward is None:
        raise Unsupported("a reward network beside --engine {} is not modelled; leave out --reward-model", job.engine)
    made: tuple[Program, Network] = _module(job).reward(job, found, scorer(job.reward))
    return made


def offloads_reference(job: PostTrainingJob) -> bool:
    """Whether the reference waits on the host: of FSDP since 0.6 unasked, of Megatron where it is asked."""
    if job.engine == "deepspeed":
        return bool(job.updates.offload_reference) and job.plan.shards is Shards.EVERYTHING
    if job.engine == "pytorch" and job.framework == "verl":
        return bool(_module(job).offloads_reference(job))
    return bool(job.updates.offload_reference) if job.framework == "verl" else True
