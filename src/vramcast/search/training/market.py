"""Which clusters and plans can be compared: their size, and prices in one currency."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.planning import Goal, Limits, Point
from vramcast.errors import InvalidSpec


def comparable(clusters: Sequence[Cluster], limits: Limits, goal: Goal) -> tuple[list[Cluster], list[str]]:
    """The clusters to look at, and what was left out.

    Raises: InvalidSpec where the limits leave nothing, or prices in several currencies would have to be compared
    """
    warnings: list[str] = []
    kept = [cluster for cluster in clusters if limits.max_gpus is None or cluster.count <= limits.max_gpus]
    if not kept:
        smallest = min(cluster.count for cluster in clusters)
        raise InvalidSpec(
            f"max-gpus={limits.max_gpus} leaves no cluster: the smallest given has {smallest} GPUs; allow {smallest}"
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
        warnings.append(f"left out for want of a price: {names}")
    currencies = {cluster.price.currency for cluster in priced if cluster.price}
    wanted = limits.currency or (next(iter(currencies)) if len(currencies) == 1 else None)
    if wanted is None:
        raise InvalidSpec(f"prices in {' and '.join(sorted(currencies))} are not compared; choose with --currency")
    found = [cluster for cluster in priced if cluster.price and cluster.price.currency == wanted]
    if not found:
        raise InvalidSpec(f"no machine has a price in {wanted}; there are prices in {', '.join(sorted(currencies))}")
    if len(found) < len(priced):
        warnings.append(f"left out: {len(priced) - len(found)} machines priced in another currency than {wanted}")
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
    return kept, [f"left out: {left} machines with the same cards and links as a cheaper one"] if left else []


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
