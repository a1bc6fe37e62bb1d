"""The plans of one engine, from whichever way its programs are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job
from vramcast.domain.planning import Space
from vramcast.errors import Unsupported
from vramcast.search.training.direct import Choice, Known, choices
from vramcast.search.training.extents import Counts, with_arrays
from vramcast.search.training.megatron import Block, Memories, blocks
from vramcast.search.training.pool import Plans, Questions, num_splits
from vramcast.search.training.times import steps_s

_NOTHING = np.empty(0)


def plans_on(
    space: Space, clusters: Sequence[Cluster], engine: str, memories: Memories | None = None, known: Known | None = None
) -> Iterator[Plans]:
    """Every plan, in batches of one cluster.

    Args:
        space: what may be varied
        clusters: equal machines, in each another number of them
        engine: the framework
        memories: what other kinds of cards of the same space have read; None: there are none
        known: the same of engines whose programs are read whole

    Raises: Unsupported where the engine cannot run the model on any of the clusters
    """
    gathers = bool(space.engine_options.get("fsdp"))  # over layers, which programs of one layer do not hold
    if engine == "megatron" and len(space.model.stacks) == 1 and not gathers:
        for block in blocks(space, clusters, memories):
            for cluster in block.clusters:
                yield _of_block(block, cluster)
    else:
        yield from _read(space, clusters, engine, {} if known is None else known)


def _read(space: Space, clusters: Sequence[Cluster], engine: str, known: Known) -> Iterator[Plans]:
    """Whole programs, cluster by cluster; what is refused on some is possible on others."""
    refused: Unsupported | None = None
    possible = False
    for cluster in clusters:
        try:
            for choice in choices(space, cluster, engine, known):
                possible = True
                yield _of_choice(choice)
        except Unsupported as reason:
            refused = refused or reason
    if refused is not None and not possible:
        raise refused


def _of_block(block: Block, cluster: Cluster) -> Plans:
    shape, order = block.possible.shape, block.order
    own = block.possible & (block.grid.nodes == cluster.num_nodes)[:, None]
    places = np.flatnonzero(np.broadcast_to(own, (len(order), *shape)))
    ways = tuple(np.array(order).T)
    live, seconds = (figures[ways].ravel()[places] for figures in (block.live_bytes, block.step_s))
    bare = block._replace(live_bytes=_NOTHING, step_s=_NOTHING)  # a kept plan must not keep all the others
    degrees, splits = block.grid, (block.stages.pp.bit_length() + block.stages.chunks.bit_length())
    num_splits = sum(np.frexp(axis)[1] for axis in (degrees.tp, degrees.cp, degrees.ep)) + splits  # bits of each
    plan_at, workload_at = cache(bare.plan_at), cache(bare.workload_at)  # many differ in the other alone

    def job_at(place: int) -> Job:
        rest, batch = divmod(int(places[place]), shape[1])
        way, index = divmod(rest, shape[0])
        plan = plan_at(*order[way], index)
        return replace(bare.job, plan=plan, workload=workload_at(index, batch), cluster=cluster)

    def jobs_at(some: Counts) -> Job:
        rest, batch = np.divmod(places[some], shape[1])
        way, index = np.divmod(rest, shape[0])
        return bare.jobs_at(ways[0][way], ways[1][way], index, batch, cluster)

    questions = Questions(job_at, jobs_at)
    return Plans(cluster, live, seconds, questions, num_splits[places // shape[1] % shape[0]])


def _of_choice(choice: Choice) -> Plans:
    seconds = steps_s(choice.jobs)
    alike = np.full(len(seconds), num_splits(choice.jobs[0].plan))

    def jobs_at(places: Counts) -> Job:
        batches = np.array([job.workload.micro_batch for job in choice.jobs])
        return with_arrays(choice.jobs[0], workload=with_arrays(choice.jobs[0].workload, micro_batch=batches[places]))

    questions = Questions(choice.jobs.__getitem__, jobs_at)
    return Plans(choice.jobs[0].cluster, choice.live_bytes, seconds, questions, alike)


__all__ = ["plans_on"]
