"""The technique table of a case: every way to save memory, answered by the engine's own model for this very job;
and a search's answer with it, the way there and what its plans cost over the whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import StepTime
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job
from vramcast.domain.planning import Goal, Limits, PlanAnswer, Space, Technique
from vramcast.domain.verdict import fit_of
from vramcast.errors import Note, VramcastError
from vramcast.estimate import techniques as ways
from vramcast.estimate.changes import Need
from vramcast.estimate.cost import with_cost
from vramcast.estimate.host_memory import host_need, shortfall
from vramcast.estimate.step_time import step_time
from vramcast.estimate.training import need_of, question, rank_programs
from vramcast.estimate.variants import on_engine, options_between
from vramcast.search.decisions import decisions, plain_job

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
