"""Why the winner wins, and what speed costs: the best plan beside the best that differ from it in one respect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job
from vramcast.domain.planning import Goal, Point, Reason
from vramcast.search.training.labels import label
from vramcast.search.training.market import beats
from vramcast.search.training.pool import Candidate, Rule

Respect = tuple[str, str, Callable[[Job], object]]
"""Its name, the option that says it, and how a plan has it."""

RESPECTS: Final[tuple[Respect, ...]] = (
    ("cards", "gpus", lambda job: job.cluster.name),
    ("engine", "engine", lambda job: job.engine),
    ("tensor parallelism", "tp", lambda job: job.plan.tp),
    ("pipeline", "pp", lambda job: job.plan.pp),
    ("context parallelism", "cp", lambda job: job.plan.cp),
    ("expert parallelism", "ep", lambda job: job.plan.ep),
    ("virtual stages", "virtual-stages", lambda job: job.plan.virtual_stages),
    ("sharding", "shards", lambda job: job.plan.shards.value),
    ("recomputation", "recompute", lambda job: job.plan.recompute.value),
    ("optimizer offload", "offload-optimizer", lambda job: job.plan.offload_optimizer),
    ("precision", "precision", lambda job: job.plan.precision.value),
    ("micro-batch", "micro-batch", lambda job: job.workload.micro_batch),
)

EQUAL: Final = 5e-4
"""Plans closer than this are alike: no reason to name."""

TRIES: Final = 4
"""Plans of one kind that are put through the allocator before the search for a reason gives up."""


def reasons_of(
    best: Candidate, others: list[Candidate], rule: Rule, fits: Callable[[Candidate], bool],
    value: Callable[[Candidate], float],
) -> Iterator[Reason]:
    """One for every respect in which another choice was possible.

    Args:
        best: the winner, with the value of its goal
        others: candidates in the order of the goal
        rule: the goal
        fits: whether a candidate fits, allocator included
        value: of a candidate that fits, what the goal makes small
    """
    winner = best.job
    jobs = [(candidate, candidate.job) for candidate in others]
    for words, option, look in _respects(winner, rule.goal):
        own = look(winner)
        different = [(candidate, job) for candidate, job in jobs if look(job) != own]
        found = next((pair for pair in different[:TRIES] if fits(pair[0])), None)
        times = _times(found[1], value(found[0]), best, rule.goal) if found else 1.0
        if found is not None and times > 1 + EQUAL:
            yield Reason(
                kind="respect", respect=words, option=option, other=str(look(found[1])), own=str(own), times=times
            )


def _respects(winner: Job, goal: Goal) -> tuple[Respect, ...]:
    """Where GPUs are counted, other ways to divide the work on as many are no worse: only the cards say something."""
    if goal is not Goal.FEWEST_GPUS:
        return RESPECTS
    return RESPECTS[:1] if winner.cluster.count > 1 else ()


def _times(other: Job, value: float, best: Candidate, goal: Goal) -> float:
    """How many times as large another plan's value is; of GPUs, without what breaks ties."""
    if goal is Goal.FEWEST_GPUS:
        return other.cluster.count / best.job.cluster.count
    return value / best.value


def points(found: Iterable[Candidate], rule: Rule) -> tuple[Point, ...]:
    """Cost against speed; a point is on the front where no other is faster and cheaper."""
    points = [_point(candidate, rule) for candidate in found]
    return tuple(replace(point, on_front=not any(beats(other, point) for other in points)) for point in points)


def _point(candidate: Candidate, rule: Rule) -> Point:
    job = candidate.job
    cost = rule.rate(job.cluster) * candidate.step_s / 3600 / rule.tokens * 1e6
    return Point(
        what=label(job), gpus=job.cluster.count, tokens_per_s=rule.tokens / candidate.step_s,
        cost_per_million_tokens=cost, unit=job.cluster.price.currency if job.cluster.price else "GPU-hours",
        on_front=True,
    )
