"""Degrees of parallelism to look at, and the pipeline stages they allow; what is left out because main
memory or local disks are too small for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan
from vramcast.domain.model import MoE
from vramcast.domain.planning import Space
from vramcast.engines.megatron.options import divides_positions
from vramcast.errors import Note, VramcastError, joined
from vramcast.estimate.checks import check
from vramcast.estimate.host_memory import host_need, shortfall
from vramcast.estimate.techniques import recipes
from vramcast.search.training.states import Counts

UNEVEN: Final = 2
"""Sizes of a middle stage that are looked at where layers do not divide evenly."""


class Grid(NamedTuple):
    """Combinations of tensor, context and expert degrees on so many machines, one in each element of the arrays."""

    tp: Counts
    cp: Counts
    ep: Counts
    etp: Counts
    nodes: Counts

    def __len__(self) -> int:
        return int(self.tp.shape[0])

    def at(self, index: int) -> tuple[int, int, int, int]:
        """Degrees of one combination."""
        return int(self.tp[index]), int(self.cp[index]), int(self.ep[index]), int(self.etp[index])


class Stages(NamedTuple):
    """A pipeline of `pp` ranks with `chunks` pieces each."""

    pp: int
    chunks: int
    first: int | None  # layers of the first stage; None: all stages alike
    last: int | None


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def possible(space: Space, cluster: Cluster, axis: str) -> list[int]:
    """The degrees of an axis that divide the cards and what they split."""
    given = getattr(space, axis)
    limit = cluster.gpus_per_node if axis == "tp" and not given else cluster.count
    found = []
    for degree in divisors(cluster.count):
        if (given and degree not in given) or degree > limit:
            continue
        job = Job(
            model=space.model, workload=replace(space.workload, micro_batch=1, grad_accum=1), cluster=cluster,
            plan=replace(Plan(), **{axis: degree}), engine="megatron",
        )
        try:
            check(job)
        except VramcastError:
            continue
        found.append(degree)
    return found


def grid(space: Space, clusters: Sequence[Cluster]) -> Grid:
    """All combinations of tp, cp, ep and etp that clusters of so many equal machines can hold."""
    rows = [row for cluster in clusters for row in _combinations(space, cluster)]
    return Grid(*np.array(rows, np.int64).reshape(-1, len(Grid._fields)).T)


def _combinations(space: Space, cluster: Cluster) -> list[tuple[int, ...]]:
    sparse = any(isinstance(run.layer.channel, MoE) for run in space.model.main.runs)
    experts = possible(space, cluster, "ep") if sparse else [1]
    return [
        (tp, cp, ep, etp, cluster.num_nodes)
        for tp in possible(space, cluster, "tp")
        for cp in possible(space, cluster, "cp")
        for ep in experts
        for etp in (_inside_experts(space, tp, sparse))
        if cluster.count % (tp * cp) == 0 and cluster.count % (ep * etp) == 0
        and divides_positions(space.workload.seq_len, tp=tp, cp=cp, sequence_parallel=True)
    ]


def _inside_experts(space: Space, tp: int, sparse: bool) -> tuple[int, ...]:
    """Tensor parallelism of experts: none, or as everywhere."""
    if not sparse:
        return (tp,)
    return tuple(etp for etp in dict.fromkeys((1, tp)) if not space.etp or etp in space.etp)


def pipelines(space: Space, clusters: Sequence[Cluster]) -> Iterator[Stages]:
    """Every number of stages and chunks that some cluster can hold, with the layers they get.

    Stages are alike where they divide the layers; else the first and the last have fewer than those between.
    """
    layers = space.model.num_layers
    for pp in sorted({pp for cluster in clusters for pp in divisors(cluster.count)}):
        if (space.pp and pp not in space.pp) or pp > layers:
            continue
        for chunks in space.virtual_stages or divisors(layers):
            if pp * chunks > layers or (chunks > 1 and pp == 1):
                continue
            if layers % (pp * chunks) == 0:
                yield Stages(pp, chunks, None, None)
            else:
                yield from _uneven(layers, pp, chunks)


def _uneven(layers: int, pp: int, chunks: int) -> Iterator[Stages]:
    smallest = -(-layers // pp)
    for middle in range(smallest, smallest + UNEVEN):
        ends = layers - middle * (pp - 2)
        for first in range(1, middle + 1):
            last = ends - first
            if 1 <= last <= middle and not any(count % chunks for count in (first, last, middle)):
                yield Stages(pp, chunks, first, last)


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
            clause = Note("on {}: {}", cluster.name, lacks)
            together = found.setdefault(Note("left out: {}", what), [])
            if clause not in together:
                together.append(clause)
    return [
        Note("{} {}{}", what, joined("; ", clauses[:NAMED]),
             Note("; and {} more", len(clauses) - NAMED) if len(clauses) > NAMED else "")
        for what, clauses in found.items()
    ]


def _ways(space: Space) -> Iterator[dict[str, str]]:
    for optimizer, parameters in product(space.offload_optimizer, space.offload_parameters):
        chosen = {"offload_optimizer": optimizer, "offload_parameters": parameters}
        options = {name: value for name, value in chosen.items() if value != "none"}
        if options:
            yield options


__all__ = ["too_large"]
