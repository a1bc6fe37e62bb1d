"""One card through two steps: its processes, and what each of them does in every stage.

[order] verl trainer/ppo/ray_trainer.py `fit`: the weights are handed over, sequences are generated, log-probabilities
of the network that learns and of the reference are computed, values, then critic and actor are updated
[nemo] nemo_rl/algorithms/grpo.py `grpo_train`: the same; the policy leaves the card before the engine wakes its cache
[openrlhf] openrlhf/trainer/ppo_trainer.py `ppo_train`, ppo_utils/experience_maker.py `make_experience`: every network
is a process, which empties its cache behind a pass; critic and actor learn at once where neither sleeps
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.post_training import WITH_CRITIC, Card, PostTrainingJob, Process, Stage
from vramcast.domain.program import Alloc, Free, Node, Program
from vramcast.engines.eager.checks import text_sentences
from vramcast.engines.post_training import trainer
from vramcast.engines.post_training.batches import Batches, batches, seen_from, usual_budget
from vramcast.engines.post_training.releases import (
    MICRO_TOKENS,
    Release,
    has_own_reference,
    is_swift_on_megatron,
    keeps_cache,
    leaves_cards,
    lives_inside,
    release_of,
    sleep_level,
)
from vramcast.engines.post_training.rollout import Engine, engine, rating_job
from vramcast.engines.post_training.trainer import Held, Network, alloc, free, num_bytes
from vramcast.errors import Note

TRAINER: Final = "trainer"
ENGINE: Final = "engine"
CRITIC: Final = "critic"
REFERENCE: Final = "reference"
REWARD: Final = "reward"
TRAINERS: Final = (TRAINER, CRITIC, REFERENCE, REWARD)
"""Processes of the trainer: where they are not apart, all networks are in the first."""

OUTSIDE_LEARNING: Final = ("update_weights", "generate")
"""Stages of a step in which the trainer neither rates answers nor learns."""

POOLS: Final = ("weights", "key-value cache")
RATING_POOLS: Final = ("weights of the reward network", "its key-value cache")


class _Roles(NamedTuple):
    """The networks of a trainer."""

    actor: Network
    reference: Network | None = None  # one of its own
    critic: Network | None = None
    values: Program = ()  # a pass of the critic
    reward: Network | None = None
    rated: Program = ()  # a pass of it
    rater: Engine | None = None  # that serves it instead
    apart: bool = False  # each in a process of its own

    @property
    def trained(self) -> tuple[Network, ...]:
        """Those that learn."""
        return (self.actor,) if self.critic is None else (self.actor, self.critic)

    def home(self, name: str) -> str:
        """The process of a network."""
        return name if self.apart else TRAINER

    @property
    def all(self) -> dict[str, Network]:
        """By the process that they would have alone."""
        found = zip(TRAINERS, (self.actor, self.critic, self.reference, self.reward), strict=True)
        return {name: network for name, network in found if network is not None}

    @property
    def homes(self) -> tuple[str, ...]:
        """Processes of the trainer."""
        return tuple(dict.fromkeys(map(self.home, self.all)))


def cards(job: PostTrainingJob) -> tuple[Card, ...]:
    """What a card sees from the start on, two steps of it; of an engine with cards of its own one of those besides.

    Raises: InvalidSpec or Unsupported with one sentence for what the framework cannot run, or is not modelled
    """
    release, roles = release_of(job), _roles(job)
    apart, rising = job.rollout.gpus is not None, _rising(job, roles)
    made = engine(job, held_bytes=0 if apart else _held(job, release, roles))
    in_process = lives_inside(job)
    said = tuple(_assumptions(job, made, in_process=in_process))
    if apart:
        alone = _alone(job, roles, tuple(_stages(job, release, roles)), rising, said)
        process = Process(name=ENGINE, outside=made.outside, pools=(made.weights, made.cache))
        started = Stage(name="engine_start", programs={ENGINE: (*made.kept, *made.forward)}, awake=POOLS)
        return (*alone, Card(processes=(process,), shortfall=made.shortfall, stages=(
            started, Stage(name="generate", programs={ENGINE: made.forward}, awake=POOLS))))
    stages = tuple(_stages(job, release, roles, made, generator=TRAINER if in_process else ENGINE))
    return (Card(processes=_processes(release, made, roles, in_process=in_process), stages=stages, rising=rising,
                 shortfall=made.shortfall or (roles.rater.shortfall if roles.rater else ""), assumptions=said),)


def _alone(
    job: PostTrainingJob, roles: _Roles, stages: tuple[Stage, ...], rising: tuple[Stage, ...], said: tuple[str, ...]
) -> Iterator[Card]:
    """Cards without an engine: the trainer's, and those of networks that have some of their own."""
    own = [tuple(map(roles.home, names.split("+"))) for names in job.own_gpus]
    others = tuple(name for name in roles.homes if not any(name in homes for homes in own))
    for homes in (others, *own):
        there, grown = (tuple(stage for stage in (
            replace(stage, programs={name: stage.programs[name] for name in homes if name in stage.programs},
                    releases=tuple(name for name in stage.releases if name in homes)) for stage in found)
            if stage.programs) for found in (stages, rising))
        yield Card(processes=tuple(Process(name=name) for name in homes), assumptions=said, stages=there, rising=grown)


def _held(job: PostTrainingJob, release: Release, roles: _Roles) -> int:
    """What the engine finds on the card when it starts [bytes]."""
    if job.engine == "huggingface" or release.apart:
        return trainer.held_before(job, roles.actor)
    if is_swift_on_megatron(job) and job.updates.leaves:
        return 0 if job.updates.sleeps else num_bytes(roles.actor.masters)
    reference = num_bytes(roles.reference.weights if roles.reference else ())
    if job.plan.offload_parameters != "none" or leaves_cards(job):
        return reference
    return reference + sum(num_bytes(network.weights) + num_bytes(network.masters) for network in roles.trained)


def _roles(job: PostTrainingJob) -> _Roles:
    found = batches(job, learns=True)
    apart = has_own_reference(job) and not trainer.rates_inside(job)
    asked, valued, rating = (seen_from(job, role) for role in (REFERENCE, CRITIC, REWARD))
    reference = trainer.of(asked).reference(asked, batches(asked, learns=False)) if apart else None
    critic, values = trainer.of(valued).critic(valued, batches(valued, learns=True, of_critic=True)) if (
        job.algorithm in WITH_CRITIC) else (None, ())
    updates = rating.updates
    if updates.reward_micro_batch or updates.reward_micro_tokens:
        rating = replace(rating, updates=replace(updates, log_prob_micro_batch=updates.reward_micro_batch,
                                                 log_prob_tokens=updates.reward_micro_tokens))
    served = rating_job(job)
    rated, reward = trainer.reward(rating, batches(rating, learns=False)) if (
        job.reward is not None and served is None) else ((), None)
    made = _Roles(trainer.of(job).actor(job, found), reference, critic, values, reward, rated,
                  apart=release_of(job).apart)
    return made if served is None else made._replace(
        rater=_renamed(engine(served, held_bytes=_held(job, release_of(job), made))))


def _renamed(made: Engine) -> Engine:
    """With pools of its own names, which sleep and wake apart from those of the engine that generates."""
    weights, cache = (replace(pool, name=name, owner="reward") for pool, name in zip(
        (made.weights, made.cache), RATING_POOLS, strict=True))
    return made._replace(weights=weights, cache=cache)


def _stages(
    job: PostTrainingJob, release: Release, roles: _Roles, made: Engine | None = None, *, generator: str = ENGINE
) -> Iterator[Stage]:
    """In order; without `made` those of a trainer alone."""
    stays = _stays(job)
    loads: dict[str, list[Node]] = {name: [] for name in roles.homes}
    for name, network in roles.all.items():
        loads[roles.home(name)] += network.load
    for name, network in zip((TRAINER, CRITIC), roles.trained, strict=False):
        loads[roles.home(name)] += () if stays.weights else free(network.weights)
        loads[roles.home(name)] += () if stays.moments else free(network.masters)
    loads[TRAINER] += free(_leaving_reference(job, roles))
    awake = POOLS if made is not None and not job.rollout.sleeps else ()
    first = made is not None and trainer.engine_starts_first(job)
    init = Stage(name="init", awake=awake if first else (), releases=roles.homes,
                 programs={name: tuple(nodes) for name, nodes in loads.items()})
    started = () if made is None else (
        Stage(name="engine_start", programs={generator: (*made.kept, *made.forward)}, awake=POOLS,
              releases=(generator,)),)
    yield from (*started, init) if first else (init, *started)
    if (rater := roles.rater) is not None:
        yield Stage(name="engine_start", programs={REWARD: (*rater.kept, *rater.forward)},
                    awake=(*awake, *RATING_POOLS),
                    releases=(REWARD,))
    for stage in _steps(job, release, roles, stays, made, generator):
        expands = tuple(stage.programs) if release.expands and stage.name not in OUTSIDE_LEARNING else ()
        yield replace(stage, releases=() if keeps_cache(job) else stage.releases, expands=expands)


def _stays(job: PostTrainingJob) -> _Stays:
    moves, moved = trainer.moved_by_stage(job)
    leaves = leaves_cards(job)
    return _Stays(weights=not (moves or leaves), moments=not (moved or leaves))


def _rising(job: PostTrainingJob, roles: _Roles) -> tuple[Stage, ...]:
    """Updates of networks whose micro-batches differ in length, at their worst."""
    stays, named = _stays(job), ("update_actor", "update_critic")
    release = release_of(job)
    return tuple(
        replace(stays.updated(name, roles.home(role), network._replace(update=network.rising), (), first=False),
                expands=(roles.home(role),) if release.expands else ())
        for role, name, network in zip((TRAINER, CRITIC), named, roles.trained, strict=False) if network.rising
    )


def _steps(
    job: PostTrainingJob, release: Release, roles: _Roles, stays: _Stays, made: Engine | None, generator: str
) -> Iterator[Stage]:
    """Two steps: the first makes the optimizer's states."""
    awake = POOLS if made is not None and not job.rollout.sleeps else ()
    woken = POOLS if release.wakes_both or not job.rollout.sleeps else POOLS[:1]
    handed, whole = trainer.of(job).handover(job, roles.actor), is_swift_on_megatron(job)
    referred = _leaving_reference(job, roles)
    for first in (True, False):
        passed: Program = (*map(Alloc, handed), *map(Free, handed))
        there: Held = ()
        if (whole or trainer.rates_inside(job)) and not stays.moments:  # they leave behind the handover
            there = roles.actor.masters if first else roles.actor.moments
        program = stays.beside(roles.actor, _beside((*there, *referred), passed))
        yield Stage(name="update_weights", awake=woken if made is not None else (), releases=(TRAINER,),
                    programs={TRAINER: program})
        if made is not None:
            yield Stage(name="generate", programs={generator: made.forward}, awake=POOLS, releases=(generator,))
        for stage in _rated(job, roles, stays, awake):
            alone = stage.name == "ref_log_prob" and roles.reference is not None and not stays.weights
            more = (*there, *referred, *(roles.actor.weights if alone else ())) if whole else ()
            yield replace(stage, programs={name: _beside(more, program) for name, program in stage.programs.items()})
        updated = stays.updated("update_actor", TRAINER, roles.actor, awake, first=first)
        updated = replace(updated, programs={TRAINER: _beside(referred, updated.programs[TRAINER])})
        if roles.critic is not None:
            home = roles.home(CRITIC)
            yield Stage(name="values", programs={home: stays.beside(roles.critic, roles.values)}, awake=awake,
                        releases=(home,) if roles.apart or not stays.weights else ())
            other = stays.updated("update_critic", home, roles.critic, awake, first=first)
            if roles.apart and stays.moments and not job.own_gpus:  # both learn at once
                updated = replace(updated, programs={**other.programs, **updated.programs},
                                  releases=(*other.releases, *updated.releases))
            else:
                yield other
        yield updated


def _leaving_reference(job: PostTrainingJob, roles: _Roles) -> Held:
    """What leaves with the weights of a reference."""
    leaves = is_swift_on_megatron(job) and job.updates.leaves and roles.reference is not None
    return roles.reference.weights if leaves and roles.reference is not None else ()


def _beside(held: Held, program: Program) -> Program:
    return (*alloc(held), *program, *free(held))


class _Stays(NamedTuple):
    """What is on the card between two stages that need it."""

    weights: bool
    moments: bool

    def beside(self, network: Network, program: Program) -> Program:
        """A program with the weights there."""
        return program if self.weights else _beside(network.weights, program)

    def updated(self, name: str, home: str, network: Network, awake: tuple[str, ...], *, first: bool) -> Stage:
        """Mini-batches of a step; the first one ever makes the optimizer's states."""
        there = network.masters if first else network.moments
        body = network.first if first else network.update
        if not self.moments:
            body = (*alloc(there), *body, *free(network.moments))
        return Stage(name=name, programs={home: self.beside(network, body)}, awake=awake, releases=(home,))


def _rated(job: PostTrainingJob, roles: _Roles, stays: _Stays, awake: tuple[str, ...]) -> Iterator[Stage]:
    """Log-probabilities of the answers: of the network that learns always with their entropy."""
    if trainer.rates_inside(job):
        return
    found: Batches = batches(job, learns=False)
    releases = () if stays.weights and not roles.apart else (TRAINER,)
    if roles.rater is not None:
        yield Stage(name="reward", programs={REWARD: roles.rater.forward}, awake=(*awake, *RATING_POOLS),
                    releases=(REWARD,))
    if roles.reward is not None:
        home = roles.home(REWARD)
        yield Stage(name="reward", programs={home: roles.rated}, awake=awake, releases=(home,) if roles.apart else ())
    if not job.updates.reuses_log_prob:
        rated = trainer.of(job).log_prob(job, found, entropy=True)
        yield Stage(name="old_log_prob", programs={TRAINER: stays.beside(roles.actor, rated)}, awake=awake,
                    releases=releases)
    if job.updates.reference:
        asked = seen_from(job, REFERENCE)
        referred = trainer.of(asked).log_prob(asked, batches(asked, learns=False), entropy=False, reference=True)
        if roles.reference is None:  # the same network, its adapter switched off
            referred = stays.beside(roles.actor, referred)
        home = roles.home(REFERENCE) if roles.reference is not None else TRAINER
        yield Stage(name="ref_log_prob", programs={home: referred}, awake=awake, releases=(home,) if releases else ())


def _processes(release: Release, made: Engine, roles: _Roles, *, in_process: bool) -> tuple[Process, ...]:
    pools = (made.cache,) if release.shares_weights else (made.weights, made.cache)
    if in_process:
        return (Process(name=TRAINER, outside=made.outside, pools=pools),)
    rater = () if roles.rater is None else (Process(name=REWARD, outside=roles.rater.outside,
                                                    pools=(roles.rater.weights, roles.rater.cache)),)
    return (*(Process(name=name) for name in roles.homes), Process(name=ENGINE, outside=made.outside, pools=pools),
            *rater)


def _budget_sentence(job: PostTrainingJob) -> str:
    """The budget of dynamic micro-batches that is counted where nobody says one, and whose it is."""
    budget = usual_budget(job)
    if job.framework != "verl":
        return Note("dynamic micro-batches of {:,} tokens on each card are assumed; --micro-batch or --micro-tokens "
                    "says otherwise", budget)
    if budget == MICRO_TOKENS:
        return ("dynamic micro-batches of 16,384 tokens on each card, verl's default budget; --micro-batch or "
                "--micro-tokens says otherwise")
    return Note("dynamic micro-batches of {:,} tokens on each card, as many as the longest sequence has, for which "
                "verl's default budget is too small; --micro-batch or --micro-tokens says otherwise", budget)


def _assumptions(job: PostTrainingJob, made: Engine, *, in_process: bool) -> Iterator[str]:
    episodes, updates = job.episodes, job.updates
    if len(job.model.stacks) > 1:
        yield from text_sentences(trainer.of(job).train_job(job, batches(job, learns=True)))
    if updates.micro_batch is None and updates.micro_tokens is None:
        yield _budget_sentence(job)
    if updates.padded:
        yield Note("batches are padded to {:,} tokens", episodes.longest)
    elif episodes.usual == episodes.longest:
        yield (Note(
            "every sequence has {:,} tokens, the most; --mean-response-len says what is to be expected",
            episodes.longest
        ))
    elif episodes.response_deviation is not None:
        yield Note("sequences of {:,} tokens, the mean; answers deviate by {:,.0f} tokens, and the longest micro-batch "
                   "of a run lies three deviations above", episodes.usual, episodes.response_deviation)
    else:
        yield (Note(
            "sequences of {:,} tokens, the mean; lengths that deviate by half of it, and the longest micro-batch of a "
            "run three deviations above", episodes.usual
        ))
    yield (Note("{} lives in the trainer's process, whose figures count what sleeps", job.rollout_engine) if in_process
           else Note("{} is a process of its own", job.rollout_engine) if job.rollout.gpus is None
           else Note("{} is on {} cards of its own", job.rollout_engine, job.rollout.gpus))
    plan = made.job.plan
    tokens = "its own number of" if plan.batched_tokens is None else f"{plan.batched_tokens:,}"
    yield (Note(
        "the engine: tp {}, {:g} of the card, max_num_seqs {}, {} tokens a forward, {}",
        plan.tp, plan.memory_fraction, plan.max_sequences or "unset", tokens,
        "CUDA graphs" if plan.graphs else "no CUDA graphs"
    ))
    if plan.expert_parallel:
        yield Note("experts of the engine lie whole on its {} ranks", plan.tp * plan.dp)
    if plan.dp > 1:
        yield Note("{} copies of the engine start together", plan.dp)
    if plan.draft is not None:
        yield "what is proposed to the engine is not timed: answers come one token at a time, and drafts do not learn"
    if release_of(job).shares_weights:
        yield "frozen weights are there once, for trainer and engine; asleep, that gives up its cache alone"
    elif job.rollout.sleeps and job.rollout.gpus is None:
        yield Note("it sleeps while the trainer works (level {})", sleep_level(job))
    if job.engine == "megatron":
        yield "under Megatron passes without gradients are counted by their logits alone"
