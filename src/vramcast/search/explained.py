"""A search's answer with the way there, the techniques of its case, and what its plans cost over the whole run."""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, PlanAnswer, Space
from vramcast.estimate.cost import with_cost
from vramcast.estimate.training import question
from vramcast.search.decisions import decisions, plain_job
from vramcast.search.techniques import techniques


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
    refused = (f"not in the table of techniques: {text}" for text in table.refused)
    clusters = {cluster.name: cluster for cluster in space.clusters}
    plans = tuple(
        with_cost(plan, clusters[plan.question["gpus"]], run_tokens=limits.run_tokens) for plan in answer.plans
    )
    path = decisions(job, engine=_engine_of(answer, space), headroom=limits.headroom)
    return replace(
        answer, plans=plans, decisions=path, techniques=table.techniques,
        assumptions=(*answer.assumptions, *refused),
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
