"""What a search leaves out because main memory or local disks are too small for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job
from vramcast.domain.planning import Space
from vramcast.estimate.host_memory import host_need, shortfall
from vramcast.estimate.variants import recipes

NAMED: Final = 3
"""Clusters that are named where something is left out on many."""


def too_large(space: Space, clusters: Sequence[Cluster]) -> list[str]:
    """A sentence for every way to offload that some cluster has too little room for.

    Args:
        space: what may be varied
        clusters: where
    """
    found: dict[str, list[str]] = {}
    for options, cluster, engine in product(_ways(space), clusters, space.engines):
        precision = recipes(space.precisions, engine, cluster.gpu)[0]
        plan = replace(space.plan, optimizer=space.optimizers[0], precision=precision, **options)
        job = Job(
            model=space.model, workload=space.workload, cluster=cluster, engine=engine, plan=plan,
            engine_version=space.versions.get(engine),
        )
        lacks = shortfall(host_need(job))
        if lacks:
            what = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
            clause = f"on {cluster.name}: {lacks}"
            together = found.setdefault(f"left out: {what}", [])
            if clause not in together:
                together.append(clause)
    return [
        f"{what} {'; '.join(clauses[:NAMED])}" + (f"; and {len(clauses) - NAMED} more" if len(clauses) > NAMED else "")
        for what, clauses in found.items()
    ]


def _ways(space: Space) -> Iterator[dict[str, str]]:
    for optimizer, parameters in product(space.offload_optimizer, space.offload_parameters):
        chosen = {"offload_optimizer": optimizer, "offload_parameters": parameters}
        options = {name: value for name, value in chosen.items() if value != "none"}
        if options:
            yield options


__all__ = ["too_large"]
