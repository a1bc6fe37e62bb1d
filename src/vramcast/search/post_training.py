"""Inverse questions about post-training: the largest micro-batch, the longest answer, the fewest cards, the largest
share of the card for the engine, the fastest step. Each plan looked at is answered whole, and fits where its 90 %
interval does.

The fastest step of post-training on given cards: placement, split of the trainer, offloads, micro-batches, engine.

A step's time is that of the engine and that of the trainer, and neither depends on the other's settings but for the
cards it has: each is timed once per setting, all placements are put together from them, and the fastest is answered
whole, then the next, until one fits with its 90 % interval. What needs more than a plan that failed is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Found, PostTrainingAnswer, Tried
from vramcast.domain.job import Recompute
from vramcast.domain.post_training import PostTrainingJob
from vramcast.engines.post_training.batches import part_of, replicas
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.post_training import answer
from vramcast.estimate.post_training_time import generation_s, trainer_seconds, whole_step
from vramcast.search.goals import SHOWN, largest
from vramcast.units import ceil_div, format_seconds

MOST_ASKED: Final = 200
"""Plans that are answered whole before a search gives up."""

OF_ENGINE: Final = ("generate", "engine_start")
"""Stages in which the engine is awake whole."""

OVER: Final = 1.05
"""A trainer that needs so many times the card while the engine sleeps fits beside no setting of the engine."""

FRACTIONS: Final = tuple(round(step / 20, 2) for step in range(4, 20))


class Engine(NamedTuple):
    """A setting of the engine that generates, and its seconds."""

    gpus: int | None
    tp: int
    fraction: float
    seconds: float


class Trainer(NamedTuple):
    """A setting of the trainer, of which less memory is never asked where every number is greater."""

    options: dict[str, Any]
    weight: tuple[int, ...]  # micro-batch, -ulysses, -recompute, -offloads, and what splits the network as it is
    split: tuple[int, ...]
    seconds: dict[str, float]
    job: PostTrainingJob


class Placement(NamedTuple):
    """Both on the same cards or on cards of their own."""

    step_s: float
    engine: Engine
    trainer: Trainer

    @property
    def what(self) -> str:
        """As options."""
        named = {"rollout-gpus": self.engine.gpus, "rollout-tp": self.engine.tp,
                 "memory-fraction": f"{self.engine.fraction:g}", **self.trainer.options}
        return " ".join(f"--{name} {value}" for name, value in named.items() if value is not None)


class Failed(NamedTuple):
    """A placement that does not fit, and which others it speaks for."""

    placement: Placement
    reason: str  # "trainer": its own stages; "more", "less": the engine's share, and any that is larger, or smaller
    far: bool  # too large beside any engine

    def covers(self, one: Placement) -> bool:
        """Whether another fits no better."""
        mine, its = self.placement.engine, one.engine
        trainer = self.placement.trainer.split == one.trainer.split and all(
            new >= old for new, old in zip(one.trainer.weight, self.placement.trainer.weight, strict=True))
        if mine.gpus != its.gpus or not (trainer or (mine.gpus and self.reason != "trainer")):
            return False
        if self.reason == "trainer":
            return self.far or mine.tp == its.tp
        larger = its.fraction >= mine.fraction if self.reason == "more" else its.fraction <= mine.fraction
        return mine.tp == its.tp and larger


def placements(job: PostTrainingJob, fixed: Collection[str]) -> list[Placement]:
    """All that can be put together, the fastest first; of those as fast the one that offloads and recomputes least,
    with the engine's smallest share.

    Args:
        fixed: options that the question names: they are as they are asked
    """
    engines = tuple(_engines(job, fixed))
    found = []
    for gpus in dict.fromkeys(one.gpus for one in engines):
        placed = replace(job, rollout=replace(job.rollout, gpus=gpus))
        for trainer in _trainers(placed, fixed):
            found += [Placement(sum(whole_step(placed, one.seconds, trainer.seconds).values()), one, trainer)
                      for one in engines if one.gpus == gpus]
    return sorted(found, key=lambda one: (round(one.step_s, 3), -sum(one.trainer.weight[1:]), one.engine.fraction,
                                          one.engine.tp))


def fastest(
    job: PostTrainingJob, fixed: Collection[str], answered: Callable[[str, PostTrainingJob], PostTrainingAnswer | None]
) -> tuple[str, int]:
    """Options of the fastest placement that fits, "" where none does, and how many there are.

    Args:
        answered: the answer of a plan, None where it cannot run

    Raises: InvalidSpec where nothing can be compared
    """
    every = placements(job, fixed)
    if not every:
        raise InvalidSpec("no placement of trainer and engine can be timed; give --rollout-tp, --micro-batch or other "
                          "--gpus")
    failed: list[Failed] = []
    for one in every:
        if any(other.covers(one) for other in failed):
            continue
        if len(failed) == MOST_ASKED:
            raise InvalidSpec(
                "none of {} placements that were looked at fits, of {:,} the fastest; name some options, for example "
                "--recompute full or --offload-optimizer cpu", MOST_ASKED, len(every)
            )
        rollout = replace(job.rollout, gpus=one.engine.gpus, tp=one.engine.tp, memory_fraction=one.engine.fraction)
        found = answered(one.what, replace(one.trainer.job, rollout=rollout))
        if found is not None and found.fits and found.high_bytes <= found.capacity_bytes:
            return one.what, len(every)
        failed.append(_failed(job, one, found))
    return "", len(every)


def _failed(job: PostTrainingJob, one: Placement, found: PostTrainingAnswer | None) -> Failed:
    """Why a placement does not fit: an engine that sleeps or has its own cards adds nothing to the trainer's stages."""
    if found is None:
        return Failed(one, "trainer", far=False)
    apart, fullest = one.engine.gpus is not None, found.fullest
    if (apart or job.rollout.sleeps) and fullest.highest not in OF_ENGINE and (
            not found.shortfall or fullest.needed_bytes > found.capacity_bytes):
        return Failed(one, "trainer", far=apart or fullest.needed_bytes > OVER * found.capacity_bytes)
    return Failed(one, "less" if "raise --memory-fraction" in found.shortfall else "more", far=False)


def _powers(most: int) -> tuple[int, ...]:
    """Of two, up to `most`."""
    return tuple(1 << place for place in range(most.bit_length()))


def _engines(job: PostTrainingJob, fixed: Collection[str]) -> Iterator[Engine]:
    """Settings of the engine that it can run with, and how long it generates."""
    count, each, asked = job.cluster.count, job.cluster.gpus_per_node, job.rollout
    places = (asked.gpus,) if "rollout-gpus" in fixed or job.own_gpus or not asked.ahead else (
        range(each, count, each) if count > each else _powers(count - 1))
    degrees = (asked.tp,) if "rollout-tp" in fixed else _powers(each)
    shares = (asked.memory_fraction,) if "memory-fraction" in fixed else FRACTIONS
    for gpus, tp, share in product(places, degrees, shares):
        cards = gpus or count
        if tp is None or share is None or cards % tp:
            continue
        try:
            seconds, _ = generation_s(replace(job, rollout=replace(asked, gpus=gpus, tp=tp, memory_fraction=share)))
        except VramcastError:  # heads that do not divide, weights larger than the share
            continue
        if seconds is not None:
            yield Engine(gpus, tp, share, seconds)


def _trainers(job: PostTrainingJob, fixed: Collection[str]) -> Iterator[Trainer]:
    """Settings of the trainer on the cards that the engine leaves it, and the seconds of its stages."""
    undivided: dict[tuple[Any, ...], dict[str, float]] = {}
    for options in _settings(job, fixed):
        try:
            made = _set(job, options)
            if (options.get("micro-batch") or 1) * replicas(made) > job.updates.mini_batch * job.episodes.samples:
                continue
            seconds, _ = trainer_seconds(made)
        except VramcastError:  # degrees and sizes that do not divide
            continue
        if seconds is not None:
            # what ranks that divide a sequence send each other is not timed: it saves memory, and no time
            alone = undivided.setdefault(tuple(value for name, value in options.items() if name != "ulysses"), seconds)
            seconds = {name: max(value, alone[name]) for name, value in seconds.items()}
            plan, updates = made.plan, made.updates
            weight = (updates.micro_batch or updates.micro_tokens or 0, -updates.ulysses,
                      -(plan.recompute is Recompute.FULL), -(plan.offload_parameters == "cpu"),
                      -(plan.offload_optimizer == "cpu"))
            yield Trainer(options, weight, (plan.tp, plan.pp), seconds, made)


def _settings(job: PostTrainingJob, fixed: Collection[str]) -> Iterator[dict[str, Any]]:
    """Options that differ, of those that the trainer's engine has."""
    each = job.cluster.gpus_per_node
    axes: dict[str, tuple[Any, ...]] = {}
    degrees = _powers(each)
    if job.engine == "megatron":
        axes |= {"tp": degrees, "pp": degrees[:3]}
    if job.framework == "verl" and job.engine == "pytorch":
        axes |= {"ulysses": degrees}
    if job.engine in ("pytorch", "megatron") and job.framework == "verl":
        axes |= {"offload-parameters": ("none", "cpu"), "offload-optimizer": ("none", "cpu")}
    if job.engine == "pytorch":
        axes |= {"recompute": ("none", "full")}
    if "micro-tokens" in fixed or (job.updates.micro_batch is None and job.framework in ("verl", "nemo-rl")):
        least = ceil_div(job.episodes.longest, 1024) * 1024
        axes |= {"micro-tokens": tuple(least << place for place in range(5))}
    else:
        axes |= {"micro-batch": _powers(64)}
    axes = {name: values for name, values in axes.items() if name not in fixed}
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _set(job: PostTrainingJob, options: dict[str, Any]) -> PostTrainingJob:
    """The question with other settings of its trainer."""
    fields = {name.replace("-", "_"): value for name, value in options.items()}
    fields |= {"recompute": Recompute(fields["recompute"])} if "recompute" in fields else {}
    updates = {name: fields.pop(name) for name in ("micro_batch", "micro_tokens", "ulysses") if name in fields}
    return replace(job, plan=replace(job.plan, **fields), updates=replace(job.updates, **updates))


FASTEST: Final = "fastest-step"

TOKEN_STEP: Final = 128
"""Answers are looked at in steps of this [tokens]."""

MOST_STEPS: Final = 1024
PERCENT: Final = 0.05
"""Shares of the card are looked at in steps of this."""


class _Looked:
    """Plans that were looked at."""

    def __init__(self) -> None:
        self.tried: dict[str, Tried] = {}
        self.answers: dict[str, PostTrainingAnswer] = {}

    def fits(self, what: str, job: Callable[[], PostTrainingJob]) -> bool:
        """Whether a plan fits, its interval with it; what cannot run does not."""
        if what not in self.tried:
            try:
                found = answer(job(), with_changes=False)
            except VramcastError as reason:
                self.tried[what] = Tried(what=what, fits=False, reason=str(reason))
                return False
            enough = found.fits and found.high_bytes <= found.capacity_bytes
            self.answers[what] = found
            self.tried[what] = Tried(
                what=what, fits=enough, needed_bytes=found.fullest.needed_bytes, high_bytes=found.high_bytes,
                capacity_bytes=found.capacity_bytes,
                tokens_per_s=None if found.time is None else found.time.tokens_per_s,
            )
        return self.tried[what].fits


def find(goal: str, job: PostTrainingJob, fixed: Collection[str] = ()) -> PostTrainingAnswer:
    """The plan that an inverse question is for; where nothing fits, the answer of the plan as it is asked.

    Args:
        fixed: options that are named, which the search for the fastest step leaves as they are

    Raises: InvalidSpec for a goal that says nothing about the question
    """
    looked, count = _Looked(), 0
    if goal == FASTEST:
        def answered(what: str, plan: PostTrainingJob) -> PostTrainingAnswer | None:
            looked.fits(what, lambda: plan)
            return looked.answers.get(what)

        what, count = fastest(job, fixed, answered)
        time = looked.answers[what].time if what else None
        value: int | str = format_seconds(time.step_s) if time is not None else ""
    else:
        value, what = _SEARCHES[goal](job, looked)
    tried = sorted(looked.tried.values(), key=lambda one: -(one.needed_bytes or 0))
    if goal == FASTEST:  # the plan found comes last, and those before it are faster
        tried = list(looked.tried.values())[::-1]
    found = Found(
        goal=goal, what=what or None, value=value if what else None,
        tried=tuple(tried[:SHOWN]),
        num_tried=count or len(looked.tried),
    )
    return replace(looked.answers[what] if what in looked.answers else answer(job), found=found)


def _largest_batch(job: PostTrainingJob, looked: _Looked) -> tuple[int, str]:
    """Sequences of a micro-batch, of every pass."""
    most = max(1, job.updates.mini_batch * job.episodes.samples // replicas(job))

    def of(count: int) -> PostTrainingJob:
        sizes: dict[str, Any] = {"micro_batch": count, "micro_tokens": None, "log_prob_micro_batch": None,
                                 "log_prob_tokens": None}
        return replace(job, updates=replace(job.updates, **sizes))

    count = largest(lambda number: looked.fits(f"--micro-batch {number}", lambda: of(number)), most,
                    guess=job.updates.micro_batch or 8)
    return count, f"--micro-batch {count}" if count else ""


def _longest_response(job: PostTrainingJob, looked: _Looked) -> tuple[int, str]:
    """Tokens of an answer, every one as long."""
    def of(steps: int) -> PostTrainingJob:
        episodes = replace(job.episodes, response_len=steps * TOKEN_STEP, mean_prompt_len=None, mean_response_len=None)
        return replace(job, episodes=episodes, rollout=replace(job.rollout, context=None))

    steps = largest(lambda number: looked.fits(f"--response-len {number * TOKEN_STEP}", lambda: of(number)), MOST_STEPS,
                    guess=max(1, job.episodes.response_len // TOKEN_STEP))
    return steps * TOKEN_STEP, f"--response-len {steps * TOKEN_STEP}" if steps else ""


def _fewest_gpus(job: PostTrainingJob, looked: _Looked) -> tuple[int, str]:
    """Cards of the same kind, up to those asked for."""
    if job.rollout.gpus is not None:
        raise InvalidSpec("--find fewest-gpus varies the cards that trainer and engine share; leave out --rollout-gpus")
    for count in _counts(job):
        cluster = part_of(job.cluster, count)
        what = f"--gpus {cluster.name}"
        if looked.fits(what, lambda cluster=cluster: replace(job, cluster=cluster)):  # type: ignore[misc]
            return count, what
    return 0, ""


def _counts(job: PostTrainingJob) -> Iterator[int]:
    each, count = job.cluster.gpus_per_node, 1
    while count < each:
        yield count
        count *= 2
    yield from range(each, job.cluster.count + 1, each)


def _largest_fraction(job: PostTrainingJob, looked: _Looked) -> tuple[str, str]:
    """The engine's share of the card."""
    for step in range(round(1 / PERCENT) - 1, 0, -1):
        share = round(step * PERCENT, 2)
        what = f"--memory-fraction {share:g}"
        if looked.fits(what, lambda share=share: replace(  # type: ignore[misc]
                job, rollout=replace(job.rollout, memory_fraction=share))):
            return f"{share:g}", what
    return "", ""


_SEARCHES: Final[dict[str, Callable[[PostTrainingJob, _Looked], tuple[int | str, str]]]] = {
    "largest-batch": _largest_batch, "longest-response": _longest_response, "fewest-gpus": _fewest_gpus,
    "largest-fraction": _largest_fraction,
}
