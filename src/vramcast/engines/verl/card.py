"""One card through a step of verl: its processes, and what each of them does in every stage.

[order] verl trainer/ppo/ray_trainer.py `fit`: the weights are handed over, sequences are generated, log-probabilities
of the network that learns and of the reference are computed, values, then critic and actor are updated
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from vramcast.domain.post_training import WITH_CRITIC, Card, PostTrainingJob, Process, Stage
from vramcast.domain.program import Alloc, Free, Program, total_bytes
from vramcast.engines.verl import trainer
from vramcast.engines.verl.releases import release_of
from vramcast.engines.verl.rollout import Engine, engine
from vramcast.engines.verl.trainer import Network, alloc, batches, free

TRAINER: Final = "trainer"
ENGINE: Final = "engine"

POOLS: Final = ("weights", "key-value cache")

ROUNDS: Final = 2
"""Steps that are played: the first makes the optimizer's states, any other finds them [count]."""


def card(job: PostTrainingJob) -> Card:
    """What a card sees from the start on, two steps of it.

    Raises: InvalidSpec or Unsupported with one sentence for what verl cannot run, or is not modelled
    """
    release = release_of(job.version)
    learning = trainer.actor(job, batches(job, learns=True))
    offloads = job.plan.offload_parameters != "none"
    in_process = release.in_process and job.rollout_engine == "vllm"
    apart = job.updates.reference and job.plan.peft is None
    reference = trainer.reference(job, batches(job, learns=False)) if apart else None
    valued = trainer.critic(job, batches(job, learns=True, micro_batch=job.updates.critic_micro_batch)) if (
        job.algorithm in WITH_CRITIC) else None
    resident = () if reference is None else reference.shards
    networks = [learning, *((valued[0],) if valued else ())]
    held = sum(total_bytes(dict(shards)) for shards in (
        resident, *(() if offloads else (network.shards for network in networks))))
    made = engine(job, held_bytes=held)
    generator = TRAINER if in_process else ENGINE
    awake = () if job.rollout.sleeps else POOLS
    woken = POOLS if release.wakes_both or not job.rollout.sleeps else POOLS[:1]
    loads = (*chain.from_iterable(network.load for network in networks), *(reference.load if reference else ()))
    left = chain.from_iterable(free(network.shards) for network in networks) if offloads else ()
    stages = [
        Stage(name="init", programs={TRAINER: (*loads, *left)}, releases=(TRAINER,)),
        Stage(name="engine_start", programs={generator: (*made.kept, *made.forward)}, awake=POOLS,
              releases=(generator,)),
    ]
    handed = trainer.handover(job, learning)
    for first in (True, False):
        stages += [
            Stage(name="update_weights", awake=woken, releases=(TRAINER,),
                  programs={TRAINER: _with(learning, offloads, (*map(Alloc, handed), *map(Free, handed)))}),
            Stage(name="generate", programs={generator: made.forward}, awake=POOLS, releases=(generator,)),
            *_rated(job, learning, offloads=offloads, awake=awake),
            *(_critic(*valued, first=first, job=job, awake=awake) if valued else ()),
            _updated("update_actor", learning, first=first, job=job, awake=awake),
        ]
    return Card(
        processes=_processes(made, in_process=in_process), stages=tuple(stages), shortfall=made.shortfall,
        assumptions=tuple(_assumptions(job, made, in_process=in_process)),
    )


def _with(network: Network, offloads: bool, program: Program) -> Program:
    """A program between the shards' coming to the card and their leaving it."""
    return (*alloc(network.shards), *program, *free(network.shards)) if offloads else program


def _rated(job: PostTrainingJob, learning: Network, *, offloads: bool, awake: tuple[str, ...]) -> Iterator[Stage]:
    """Log-probabilities of the answers: of the network that learns always with their entropy."""
    found = batches(job, learns=False)
    asked = trainer.log_prob(job, found, entropy=True)
    releases = (TRAINER,) if offloads else ()
    yield Stage(name="old_log_prob", programs={TRAINER: _with(learning, offloads, asked)}, awake=awake,
                releases=releases)
    if job.updates.reference:
        referred = trainer.log_prob(job, found, entropy=False, reference=True)
        own = job.plan.peft is not None  # the same network, its adapter switched off
        yield Stage(name="ref_log_prob", programs={TRAINER: _with(learning, offloads and own, referred)}, awake=awake,
                    releases=releases)


def _critic(
    network: Network, values: Program, *, first: bool, job: PostTrainingJob, awake: tuple[str, ...]
) -> Iterator[Stage]:
    offloads = job.plan.offload_parameters != "none"
    yield Stage(name="values", programs={TRAINER: _with(network, offloads, values)}, awake=awake,
                releases=(TRAINER,) if offloads else ())
    yield _updated("update_critic", network, first=first, job=job, awake=awake)


def _updated(
    name: str, network: Network, *, first: bool, job: PostTrainingJob, awake: tuple[str, ...]
) -> Stage:
    """Mini-batches of a step; the first one ever makes the optimizer's states."""
    offloads, leaves = job.plan.offload_parameters != "none", job.plan.offload_optimizer != "none"
    states = alloc(network.states)
    before = () if first or not leaves else states
    after = (*(states if first else ()), *(free(network.states) if leaves else ()))
    program = (*before, *network.update, *after)
    return Stage(name=name, programs={TRAINER: _with(network, offloads, program)}, awake=awake, releases=(TRAINER,))


def _processes(made: Engine, *, in_process: bool) -> tuple[Process, ...]:
    pools = (made.weights, made.cache)
    if in_process:
        return (Process(name=TRAINER, outside=made.outside, pools=pools),)
    return (Process(name=TRAINER), Process(name=ENGINE, outside=made.outside, pools=pools))


def _assumptions(job: PostTrainingJob, made: Engine, *, in_process: bool) -> Iterator[str]:
    episodes, updates = job.episodes, job.updates
    if episodes.usual == episodes.longest:
        yield (f"every sequence has {episodes.longest:,} tokens, the most; --mean-response-len says what is to be "
               "expected")
    else:
        yield (f"sequences of {episodes.usual:,} tokens, the mean; lengths that deviate by half of it, and the "
               "longest micro-batch of a run three deviations above")
    if updates.padded:
        yield f"batches are padded to {episodes.longest:,} tokens"
    yield (f"{job.rollout_engine} lives in the trainer's process, whose figures count what sleeps" if in_process
           else f"{job.rollout_engine} is a process of its own")
    plan = made.job.plan
    yield (f"the engine: tp {plan.tp}, {plan.memory_fraction:g} of the card, {plan.max_sequences} sequences, "
           f"{plan.batched_tokens:,} tokens a forward, {'graphs' if plan.graphs else 'no graphs'}")
    if job.rollout.sleeps:
        level = 1 if job.plan.peft is not None else release_of(job.version).sleep_level
        yield f"it sleeps while the trainer works (level {level})"
