"""The plans of one engine, from whichever way its programs are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job
from vramcast.domain.planning import Space
from vramcast.errors import Unsupported
from vramcast.estimate.step_time import step_time
from vramcast.search.training.direct import Choice, choices
from vramcast.search.training.megatron import Block, blocks
from vramcast.search.training.pool import Plans

_NOTHING = np.empty(0)


def plans_on(space: Space, clusters: Sequence[Cluster], engine: str) -> Iterator[Plans]:
    """Every plan, in batches of one cluster.

    Args:
        space: what may be varied
        clusters: equal machines, in each another number of them
        engine: the framework

    Raises: Unsupported where the engine cannot run the model on any of the clusters
    """
    if engine == "megatron" and len(space.model.stacks) == 1:
        for block in blocks(space, clusters):
            for cluster in block.clusters:
                yield _of_block(block, cluster)
    else:
        yield from _read(space, clusters, engine)


def _read(space: Space, clusters: Sequence[Cluster], engine: str) -> Iterator[Plans]:
    """Whole programs, cluster by cluster; what is refused on some is possible on others."""
    refused: Unsupported | None = None
    possible = False
    for cluster in clusters:
        try:
            for choice in choices(space, cluster, engine):
                possible = True
                yield _of_choice(choice)
        except Unsupported as reason:
            refused = refused or reason
    if refused is not None and not possible:
        raise refused


def _of_block(block: Block, cluster: Cluster) -> Plans:
    shape = block.live_bytes.shape
    own = block.possible & (block.grid.nodes == cluster.num_nodes)[:, None]
    places = np.flatnonzero(np.broadcast_to(own, shape))
    bare = block._replace(live_bytes=_NOTHING, step_s=_NOTHING)  # a kept plan must not keep all the others

    def job_at(place: int) -> Job:
        return bare.job_at(*(int(index) for index in np.unravel_index(places[place], shape)))

    return Plans(cluster, block.live_bytes.ravel()[places], block.step_s.ravel()[places], job_at)


def _of_choice(choice: Choice) -> Plans:
    seconds = np.array([step_time(job).step_s for job in choice.jobs])
    return Plans(choice.jobs[0].cluster, choice.live_bytes, seconds, choice.jobs.__getitem__)


__all__ = ["plans_on"]
