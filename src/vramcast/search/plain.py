"""The case of a search without any technique: data parallelism, one copy of everything on every card."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Recompute, Shards
from vramcast.domain.planning import Space
from vramcast.engines.eager.releases import with_unasked
from vramcast.errors import VramcastError
from vramcast.estimate.training import rank_programs
from vramcast.estimate.variants import FULL_PRECISION, sixteen_bits, with_plan

COPYING_ENGINE: Final = "pytorch"
"""What several engines are compared with."""


def plain_job(space: Space, cluster: Cluster) -> Job:
    """What techniques are compared with: the smallest micro-batch, nothing sharded, split, dropped or offloaded.

    An engine that cannot but shard does so here too, and one that recomputes unasked recomputes.
    """
    engine = space.engines[0] if len(space.engines) == 1 else COPYING_ENGINE
    own_recipe = sixteen_bits(engine, cluster.gpu)
    first = space.precisions[0] or own_recipe
    own = len(space.engines) == 1 or first in FULL_PRECISION
    plan = replace(
        space.plan, shards=Shards.NOTHING, recompute=Recompute.NONE, optimizer=space.optimizers[0],
        precision=first if own else own_recipe, tp=1, pp=1, cp=1, ep=1, etp=None, virtual_stages=1,
    )
    micro_batch = min(space.micro_batches, default=1)
    accumulation = max(1, space.global_batch // (cluster.count * micro_batch))
    workload = replace(space.workload, micro_batch=micro_batch, grad_accum=accumulation)
    job = with_unasked(Job(
        model=space.model, workload=workload, plan=plan, cluster=cluster, engine=engine,
        engine_version=space.versions.get(engine),
        engine_options=space.engine_options if len(space.engines) == 1 else {},
    ), ())
    try:
        rank_programs(job)
    except VramcastError:
        return with_plan(job, shards=Shards.EVERYTHING) if cluster.count > 1 else job
    return job
