"""Why no plan keeps a deadline or a budget: the best that there is without it, and what would keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, MissedLimit

DOUBLINGS: Final = 3
"""Numbers of machines that are searched for one that keeps a deadline, from the first that could on."""


class Run(NamedTuple):
    """The best plan of a search, over the whole run."""

    label: str
    cluster: Cluster
    engine: str
    hours: float
    cost: float  # in the currency of the machines


Find = Callable[[Sequence[Cluster], Limits, Goal, str | None], Run | None]
"""The best plan on some clusters within limits for a goal, of one engine or (None) of all."""


def missed_limits(clusters: Sequence[Cluster], limits: Limits, find: Find) -> Iterator[MissedLimit]:
    """The limits of the run that no plan keeps, though it fits in memory; nothing where memory is what fails.

    Args:
        clusters: what was searched without finding a plan
        limits: what plans had to keep to
        find: a search
    """
    free = replace(limits, deadline_hours=None, budget=None)
    if limits == free:
        return
    fastest = find(clusters, free, Goal.FASTEST, None)
    if fastest is None:
        return
    deadline, budget = limits.deadline_hours, limits.budget
    if deadline is not None and fastest.hours > deadline:
        enough = _with_more_machines(fastest, free, deadline, find)
        yield MissedLimit(
            limit="deadline", allowed=deadline, least=fastest.hours, unit="hours", label=fastest.label,
            enough_label=enough.label if enough else "", enough=enough.hours if enough else None,
            times=enough.cluster.num_nodes // fastest.cluster.num_nodes if enough else None,
        )
        deadline = None  # the budget is looked at by itself
    if budget is None:
        return
    cheapest = find(clusters, replace(free, deadline_hours=deadline), Goal.CHEAPEST, None)
    if cheapest is not None and cheapest.cost > budget:
        price = cheapest.cluster.price
        yield MissedLimit(
            limit="budget", allowed=budget, least=cheapest.cost, unit=price.currency if price else "GPU-hours",
            label=cheapest.label,
        )


def _with_more_machines(fastest: Run, limits: Limits, deadline_hours: float, find: Find) -> Run | None:
    """The fastest run on the smallest multiple of its machines, of those looked at, that keeps the deadline."""
    first = max(2, 1 << (int(fastest.hours / deadline_hours).bit_length() - 1))
    for doubling in range(DOUBLINGS):
        cluster = replace(fastest.cluster, num_nodes=fastest.cluster.num_nodes * (first << doubling))
        if limits.max_gpus is not None and cluster.count > limits.max_gpus:
            return None
        found = find([cluster], limits, Goal.FASTEST, fastest.engine)
        if found is not None and found.hours <= deadline_hours:
            return found
    return None
