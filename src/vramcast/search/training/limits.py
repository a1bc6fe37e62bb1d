"""Which clusters and plans can be compared, by size and by prices in one currency; and why no plan keeps a deadline or
a budget: the best that there is without it, and what would keep it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, MissedLimit, Point
from vramcast.errors import InvalidSpec, Note, joined


def comparable(clusters: Sequence[Cluster], limits: Limits, goal: Goal) -> tuple[list[Cluster], list[str]]:
    """The clusters to look at, and what was left out: of prices in several currencies those of most machines stay.

    Raises: InvalidSpec where the limits leave nothing
    """
    warnings: list[str] = []
    kept = [cluster for cluster in clusters if limits.max_gpus is None or cluster.count <= limits.max_gpus]
    if not kept:
        smallest = min(cluster.count for cluster in clusters)
        raise InvalidSpec(
            "max-gpus={} leaves no cluster: the smallest given has {} GPUs; allow {}",
            limits.max_gpus, smallest, smallest
        )
    if limits.budget is None and goal is not Goal.CHEAPEST:
        return kept, warnings
    priced = [cluster for cluster in kept if cluster.price is not None]
    if not priced:
        if limits.budget is not None:
            raise InvalidSpec("a budget needs prices, and no machine has one; give --price, for example --price 2.5usd")
        return kept, ["no price is known: costs are GPU-hours"]
    if len(priced) < len(kept):
        names = ", ".join(cluster.instance or cluster.name for cluster in kept if cluster.price is None)
        warnings.append(Note("left out for want of a price: {}", names))
    currencies = Counter(cluster.price.currency for cluster in priced if cluster.price)
    wanted = limits.currency or currencies.most_common(1)[0][0]
    found = [cluster for cluster in priced if cluster.price and cluster.price.currency == wanted]
    if not found:
        raise InvalidSpec("no machine has a price in {}; there are prices in {}", wanted, ", ".join(sorted(currencies)))
    if len(found) < len(priced):
        others = joined(" and ", sorted(currencies.keys() - {wanted}))
        warnings.append(
            Note(
                "left out: {} machines priced in {}, which is not compared with {}; --currency chooses",
                len(priced) - len(found), others, wanted
            )
        )
    return found, warnings


def cheapest_of_alike(clusters: Sequence[Cluster], *, offload: bool) -> tuple[list[Cluster], list[str]]:
    """One cluster of those that are alike in all that memory and speed depend on: the cheapest, no other can be better.

    Args:
        clusters: to choose from
        offload: whether main memory and disks matter

    Returns: the clusters, in their order, and a sentence about those left out
    """
    best: dict[tuple[Cluster, str], Cluster] = {}
    for cluster in clusters:
        bare = replace(cluster, instance=None, price=None, notes=())
        if not offload:
            bare = replace(bare, host_bytes=None, nvme_bytes=None)
        key = (bare, cluster.price.currency if cluster.price else "")
        if key not in best or _per_hour(cluster) < _per_hour(best[key]):
            best[key] = cluster
    kept = list(best.values())
    left = len(clusters) - len(kept)
    return kept, [Note("left out: {} machines with the same cards and links as a cheaper one", left)] if left else []


def by_machine(clusters: Sequence[Cluster]) -> list[list[Cluster]]:
    """Clusters of equal machines together: each group's differ in the number of them and in what they cost."""
    together: dict[tuple[Cluster, int], list[Cluster]] = {}
    for cluster in clusters:
        machine = replace(cluster, num_nodes=1, instance=None, price=None, notes=())
        # a rack joins machines: what one card reaches grows with their number
        together.setdefault((machine, cluster.node_cards), []).append(cluster)
    return list(together.values())


def _per_hour(cluster: Cluster) -> float:
    return cluster.price.per_hour if cluster.price else float("inf")


def beats(one: Point, other: Point) -> bool:
    """Faster and not dearer, or cheaper and not slower."""
    mine, theirs = ((point.tokens_per_s, -point.cost_per_million_tokens) for point in (one, other))
    return one.unit == other.unit and mine != theirs and mine[0] >= theirs[0] and mine[1] >= theirs[1]


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
