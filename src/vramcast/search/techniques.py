"""The technique table of a case: every way to save memory, answered by the engine's own model for this very job;
and a search's answer with it, the way there and what its plans cost over the whole run.

The decision path of a case: from one card to one that is sharded, split and offloaded, each step with its figures.

    one card? -> above what a card's states hold? -> shard -> recompute -> split -> offload -> more cards
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import StepTime
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.planning import Decision, Goal, Limits, PlanAnswer, Space, Technique
from vramcast.domain.verdict import Fit, claimed_bytes, fit_of, usable_bytes
from vramcast.engines.eager.trl import with_unasked
from vramcast.engines.training import TRAINING
from vramcast.errors import Note, VramcastError
from vramcast.estimate import techniques as ways
from vramcast.estimate.changes import Need
from vramcast.estimate.cost import with_cost
from vramcast.estimate.host_memory import host_need, shortfall
from vramcast.estimate.step_time import step_time
from vramcast.estimate.techniques import FULL_PRECISION, on_engine, options_between, sixteen_bits, with_plan
from vramcast.estimate.training import need_of, question, rank_programs
from vramcast.search.goals import (
    Build,
    all_offloaded,
    alone,
    eight_bit,
    offloaded,
    pipeline,
    pure_bf16,
    recomputed,
    sharded,
    tensor,
)
from vramcast.units import format_bytes

COPYING_ENGINE: Final = "pytorch"
"""What several engines are compared with."""


def plain_job(space: Space, cluster: Cluster) -> Job:
    """What techniques are compared with: the smallest micro-batch, nothing sharded, split, dropped or offloaded.

    An engine that cannot but shard does so here too, and one that recomputes unasked recomputes.
    """
    engine = space.engines[0] if len(space.engines) == 1 else COPYING_ENGINE
    own_recipe = sixteen_bits(engine, cluster.gpu)
    first = space.precisions[0] or own_recipe
    own = len(space.engines) == 1 or first in FULL_PRECISION
    plan = replace(
        space.plan, shards=Shards.NOTHING, recompute=Recompute.NONE, optimizer=space.optimizers[0],
        precision=first if own else own_recipe, tp=1, pp=1, cp=1, ep=1, etp=None, virtual_stages=1,
    )
    micro_batch = min(space.micro_batches, default=1)
    accumulation = max(1, space.global_batch // (cluster.count * micro_batch))
    workload = replace(space.workload, micro_batch=micro_batch, grad_accum=accumulation)
    job = with_unasked(Job(
        model=space.model, workload=workload, plan=plan, cluster=cluster, engine=engine,
        engine_version=space.versions.get(engine),
        engine_options=space.engine_options if len(space.engines) == 1 else {},
    ), ())
    try:
        rank_programs(job)
    except VramcastError:
        return with_plan(job, shards=Shards.EVERYTHING) if cluster.count > 1 else job
    return job


STATE_BYTES: Final = 16
"""A parameter under Adam in mixed precision: 2 + 2 for weight and gradient, 4 + 4 + 4 for its copy and two moments, or
4 + 4 + 4 + 4 under autocast [ZeRO, arXiv:1910.02054, section 3.1]."""

MOST_MACHINES: Final = 1024

TAKE: Final = "take it"
COPY: Final = "copy it to every card for speed"
SHARD: Final = "shard them"
NOT_STATES: Final = "activations and temporaries are what is too large"
USE_MORE: Final = "use that many"


class Step(NamedTuple):
    """One question of the path, and the job that answers it."""

    name: str
    question: str
    build: Build
    otherwise: str  # what to do where it does not fit


def _on_one_card(build: Build) -> Build:
    return lambda job: build(alone(job))


ONE_CARD: Final = (
    Step("one-card", "Does it fit on one card as it is?", alone, "recompute activations"),
    Step(
        "one-card-recompute", "And with full recomputation?", _on_one_card(recomputed),
        "save on what each parameter takes",
    ),
)

EIGHT_BIT: Final = Step(
    "one-card-8bit", "And with 8-bit optimizer states?", eight_bit, "train in pure bf16, if its rounding does no harm",
)

TO_THE_CPU: Final = "put the optimizer on the CPU"

ONLY_ONE: Final = (
    *ONE_CARD,
    EIGHT_BIT,
    Step("one-card-bf16", "And in pure bf16?", pure_bf16, TO_THE_CPU),
    Step("one-card-offload", "With the optimizer on the CPU?", offloaded, "use several cards"),
)

WITHOUT_BF16: Final = (*ONE_CARD, EIGHT_BIT._replace(otherwise=TO_THE_CPU), ONLY_ONE[-1])
"""The path of a card that has no bf16."""

SEVERAL: Final = (
    Step("zero-1", "Does it fit with ZeRO 1?", sharded(Shards.OPTIMIZER, Recompute.NONE), "shard gradients as well"),
    Step(
        "zero-2", "And with ZeRO 2?", sharded(Shards.OPTIMIZER_AND_GRADIENTS, Recompute.NONE), "shard weights as well"
    ),
    Step("zero-3", "And with ZeRO 3 (FSDP)?", sharded(Shards.EVERYTHING, Recompute.NONE), "recompute activations"),
    Step(
        "zero-3-recompute", "And with full recomputation?", sharded(Shards.EVERYTHING, Recompute.FULL),
        "split the layers themselves",
    ),
    Step("tensor", "With tensor parallelism in each machine and ZeRO 1?", tensor, "add pipeline stages or offload"),
    Step("pipeline", "And with one pipeline stage a machine?", pipeline, "offload"),
    Step("offload", "With ZeRO 3 and the optimizer on the CPU?", offloaded, "put the weights on the CPU as well"),
    Step("offload-all", "And the weights on the CPU as well?", all_offloaded, "use more cards, or larger ones"),
)


def decisions(job: Job, *, engine: str | None = None, headroom: float | None = None) -> tuple[Decision, ...]:
    """The path for a job's model, data and cards; what its plan says of sharing and saving is not looked at.

    It ends at the first step that fits on the cards there are, and else with how many machines it would take. A plan
    that may run out is no end of it, as a search offers none.

    Args:
        job: model, data and cards
        engine: whose plans to look at as far as it has them; None: of each technique the first engine that has it
        headroom: share of a card that stays free; None: the upper end of the 90 % interval is to fit
    """
    only_one = ONLY_ONE if job.cluster.gpu.has_bf16 else WITHOUT_BF16
    path = _asked(job, ONE_CARD if job.cluster.count > 1 else only_one, engine, headroom)
    if path and path[-1].yes:
        return tuple(path)
    path.append(_size(job))
    if job.cluster.count > 1:
        path += _asked(job, SEVERAL, engine, headroom)
    if not path[-1].yes or path[-1].name == "size":
        path += _more_machines(job, engine, headroom)
    return tuple(path)


def _asked(job: Job, steps: tuple[Step, ...], engine: str | None, headroom: float | None) -> list[Decision]:
    """The steps up to the first that fits."""
    found: list[Decision] = []
    before: Job | None = None
    for step in steps:
        looked = _look(step.build(job), job, engine)
        if looked is None:
            continue  # no such plan for this model: nothing to decide
        if looked[0] == before:  # what the engine does unasked
            found[-1] = replace(found[-1], action=step.otherwise)
            continue
        before = looked[0]
        found.append(_decision(step, job, *looked, headroom))
        if found[-1].yes:
            break
    return found


def _look(built: Job | None, job: Job, engine: str | None) -> tuple[Job, Need] | None:
    """A plan on the engine wanted, or else on its own, with what it needs; None where neither has it."""
    if built is None:
        return None
    wanted = built if engine is None else _moved(built, job, engine)
    for plan in (wanted,) if wanted == built else (wanted, built):
        try:
            return plan, need_of(plan, rank_programs(plan))
        except VramcastError:
            continue
    return None


def _moved(built: Job, job: Job, engine: str) -> Job:
    """A plan on another engine, in the recipe the job has there, unless the recipe is what the plan is about."""
    if engine == built.engine:
        return built
    moved = on_engine(built, engine)
    if built.plan.precision is Precision.BF16:
        return built if TRAINING[engine].copies_in_fp32 else with_plan(moved, precision=Precision.BF16)
    if engine == job.engine:
        own = with_plan(moved, precision=job.plan.precision)
        moved = replace(own, engine_version=job.engine_version, engine_options=job.engine_options)
    return with_unasked(moved, ())


def _decision(step: Step, job: Job, built: Job, need: Need, headroom: float | None) -> Decision:
    capacity, host = job.cluster.gpu.visible_bytes, host_need(built)
    on_card = need.needed_bytes <= capacity and (host is None or host.fits)
    verdict = fit_of(fits=on_card, high_bytes=need.high_bytes, capacity_bytes=capacity)
    finding = f"{verdict}: {format_bytes(need.needed_bytes)} of {format_bytes(capacity)}"
    if verdict is Fit.MAY_RUN_OUT:
        finding += f", 90 % up to {format_bytes(need.high_bytes)}"
    if host is not None:
        there = host.memory_there_bytes
        have = "" if there is None else f" of {format_bytes(there)}"
        finding += f", and at least {format_bytes(host.memory_bytes)}{have} of main memory in each machine"
    take = TAKE if job.cluster.count == built.cluster.count else COPY
    enough = on_card and _leaves(need, capacity, headroom)
    return Decision(
        name=step.name, question=step.question, finding=finding, action=take if enough else step.otherwise, yes=enough,
        verdict=verdict, device_bytes=need.needed_bytes, high_bytes=need.high_bytes, capacity_bytes=capacity,
        host_bytes=host.memory_bytes if host else None, options=options_between(_bare(job), built), engine=built.engine,
    )


def _leaves(need: Need, capacity: int, headroom: float | None) -> bool:
    """Whether a plan leaves free what a search leaves free."""
    claimed = claimed_bytes(needed_bytes=need.needed_bytes, high_bytes=need.high_bytes, headroom=headroom)
    return claimed <= usable_bytes(capacity, headroom)


def _bare(job: Job) -> Job:
    """The question without what sharing it has, so that options say all of what is shared."""
    return with_plan(job, shards=Shards.NOTHING)


def _size(job: Job) -> Decision:
    """Whether the states alone are more than a card: above 5B parameters for 80 GB."""
    number, capacity = count_parameters(job.model).total, job.cluster.gpu.visible_bytes
    states = number * STATE_BYTES
    limit, above = capacity / STATE_BYTES / 1e9, states > capacity
    return Decision(
        name="size",
        question=f"Is it above the {limit:.1f}B parameters whose states fill a card ({STATE_BYTES} bytes each)?",
        finding=f"{'yes' if above else 'no'}: {number / 1e9:.2f}B parameters, {format_bytes(states)} of states",
        action=SHARD if above else NOT_STATES,
        yes=above, device_bytes=states, capacity_bytes=capacity,
    )


def _more_machines(job: Job, engine: str | None, headroom: float | None) -> Iterator[Decision]:
    """The smallest power of two of machines on which ZeRO 3 with recomputation fits."""
    build, machines = sharded(Shards.EVERYTHING, Recompute.FULL), job.cluster.num_nodes
    while 2 * machines <= MOST_MACHINES:
        machines *= 2
        wider = replace(job, cluster=replace(job.cluster, num_nodes=machines))
        looked = _look(build(wider), wider, engine)
        if looked is None:
            return
        larger, need = looked
        needed, capacity = need.needed_bytes, job.cluster.gpu.visible_bytes
        if needed <= capacity and _leaves(need, capacity, headroom):
            yield Decision(
                name="more", question="How many of these machines would do, with ZeRO 3 and full recomputation?",
                finding=f"{machines}: {format_bytes(needed)} of {format_bytes(capacity)}",
                action=USE_MORE, yes=True, device_bytes=needed, high_bytes=need.high_bytes, capacity_bytes=capacity,
                verdict=fit_of(fits=True, high_bytes=need.high_bytes, capacity_bytes=capacity),
                options=options_between(_bare(job), larger), engine=larger.engine,
            )
            return


__all__ = ["decisions"]


Pace = Callable[[Job], StepTime]
"""How long a step of a job takes."""


class Table(NamedTuple):
    """What was computed, and what no engine of the case has."""

    techniques: tuple[Technique, ...]
    refused: tuple[str, ...]  # one sentence each


class _Pair(NamedTuple):
    """A technique on and off, on an engine that has it."""

    with_it: Job
    without: Job
    need: Need
    without_bytes: int


def techniques(job: Job, *, pace: Pace = step_time) -> Table:
    """All techniques that apply to a job, each switched on alone.

    Where the job's own engine does not have one, the first engine that has it answers, and is compared with its own
    plan without it; sharding and adapters are compared with the job as it was asked.

    Args:
        job: the case, fitting or not
        pace: how long a step takes
    """
    sizes: dict[tuple[object, ...], Need] = {}

    def measured(other: Job) -> Need:
        key = (other.engine, other.plan, other.workload, other.alloc_conf)
        if key not in sizes:
            sizes[key] = need_of(other, rank_programs(other))
        return sizes[key]

    found: list[Technique] = []
    refused: list[str] = []
    seen: list[Job] = []
    for way in ways.TECHNIQUES:
        try:
            pair = _pair(job, way, measured)
        except VramcastError as error:
            refused.append(Note("not in the table of techniques: {}: {}", way.name, error))
        else:
            if pair is not None and pair.with_it not in seen:
                seen.append(pair.with_it)
                found.append(_row(job, way, pair, pace))
    return Table(tuple(found), tuple(refused))


def _pair(job: Job, way: ways.Technique, measured: Callable[[Job], Need]) -> _Pair | None:
    """The technique on the first engine that has it; None where it does not apply.

    Raises: VramcastError of the job's own engine, where it applies and no engine has it
    """
    refusal: VramcastError | None = None
    for engine in dict.fromkeys((job.engine, *way.engines)):
        own = on_engine(job, engine)
        with_it = way.apply(own)
        if with_it is None:
            continue
        if with_it == job and way.without is None:
            return None  # the job has it already
        without = way.without(with_it) if way.without else job if way.against_asked else own
        if without is None or without == with_it:
            continue
        try:
            return _Pair(with_it, without, measured(with_it), measured(without).needed_bytes)
        except VramcastError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return None


def _row(job: Job, way: ways.Technique, pair: _Pair, pace: Pace) -> Technique:
    already = pair.with_it == job
    lacks, visible = shortfall(host_need(pair.with_it)), job.cluster.gpu.visible_bytes
    fits = pair.need.needed_bytes <= visible and not lacks
    return Technique(
        name=way.name,
        change=options_between(pair.without if already else job, pair.with_it),
        device_bytes=pair.need.needed_bytes,
        saves_bytes=pair.without_bytes - pair.need.needed_bytes,
        fits=fits,
        verdict=fit_of(fits=fits, high_bytes=pair.need.high_bytes, capacity_bytes=visible),
        slowdown=_slowdown(pair, pace),
        when=way.when,
        needs=way.needs,
        against=pair.without.engine,
        lacks=lacks or "",
    )


def _slowdown(pair: _Pair, pace: Pace) -> float | None:
    """Time per token with it over without it, less one.

    None where either is not known, and where both are the same to the last digit: then what the technique changes is
    not part of the model of time.
    """
    try:
        before, after = pace(pair.without).tokens_per_s, pace(pair.with_it).tokens_per_s
    except VramcastError:
        return None
    return None if before == after else before / after - 1


def explained(answer: PlanAnswer, space: Space, limits: Limits, cluster: Cluster) -> PlanAnswer:
    """The answer with decision path and technique table.

    Args:
        answer: what a search found
        space: what it looked at
        limits: what its plans keep to
        cluster: the machines to explain it on
    """
    job = plain_job(space, cluster)
    table = techniques(job)
    clusters = {cluster.name: cluster for cluster in space.clusters}
    plans = tuple(
        with_cost(plan, clusters[plan.question["gpus"]], run_tokens=limits.run_tokens) for plan in answer.plans
    )
    path = decisions(job, engine=_engine_of(answer, space), headroom=limits.headroom)
    return replace(
        answer, plans=plans, decisions=path, techniques=table.techniques,
        assumptions=(*answer.assumptions, *table.refused),
    )


def _engine_of(answer: PlanAnswer, space: Space) -> str | None:
    """The engine that a path leads to: the winner's, or the only one asked for."""
    if answer.plans:
        return str(answer.plans[0].question["engine"]).partition("@")[0]
    return space.engines[0] if len(space.engines) == 1 else None


def unsearched(space: Space, goal: Goal) -> PlanAnswer:
    """The answer to a question that asks for no plans, only how techniques do on the first machines."""
    asked = question(plain_job(space, space.clusters[0]))
    return PlanAnswer(question=asked | {"goal": goal.value}, plans=(), labels=(), num_plans=0, num_fitting=0)
