"""Why the winner wins, and what speed costs: the best plan beside the best that differ from it in one respect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from vramcast.domain.job import Job
from vramcast.domain.planning import Goal, Point
from vramcast.search.training.labels import label
from vramcast.search.training.pool import Candidate, Rule

RESPECTS: Final[tuple[tuple[str, str, Callable[[Job], object]], ...]] = (
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

WORSE: Final[dict[Goal, str]] = {
    Goal.FASTEST: "{share:.1%} slower",
    Goal.CHEAPEST: "{share:.1%} dearer",
    Goal.FEWEST_GPUS: "not better",
    Goal.LEAST_MEMORY: "{share:.1%} more memory",
}

TRIES: Final = 4
"""Plans of one kind that are put through the allocator before the search for a reason gives up."""


def reasons_of(best: Job, value: float, others: list[Candidate], rule: Rule, fits: Callable[[Candidate], bool]) -> Iterator[str]:
    """One sentence for every respect in which another choice was possible.

    Args:
        best: the winner
        value: what the goal made of it
        others: candidates in the order of the goal
        rule: the goal
        fits: whether a candidate fits, allocator included
    """
    jobs = [(candidate, candidate.job) for candidate in others]
    for words, option, look in RESPECTS:
        own = look(best)
        different = [(candidate, job) for candidate, job in jobs if look(job) != own]
        found = next((pair for pair in different[:TRIES] if fits(pair[0])), None)
        if found is not None:
            share = found[0].value / value - 1
            yield f"{words}: the best with --{option} {look(found[1])} instead of {own} is {WORSE[rule.goal].format(share=share)}"


def points(found: Iterable[Candidate], rule: Rule) -> tuple[Point, ...]:
    """Cost against speed; a point is on the front where no other is faster and cheaper."""
    rows = []
    for candidate in found:
        job = candidate.job
        price = job.cluster.price
        cost = rule.rate(job.cluster) * candidate.step_s / 3600 / rule.tokens * 1e6
        rows.append((job, rule.tokens / candidate.step_s, cost, price.currency if price else "GPU-hours"))
    return tuple(
        Point(
            what=label(job), gpus=job.cluster.count, tokens_per_s=speed, cost_per_million_tokens=cost, unit=unit,
            on_front=not any(
                other_unit == unit and other_speed >= speed and other_cost <= cost and (other_speed, other_cost) != (speed, cost)
                for _, other_speed, other_cost, other_unit in rows
            ),
        )
        for job, speed, cost, unit in rows
    )
