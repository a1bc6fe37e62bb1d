"""Questions to llama.cpp, short to write."""

from typing import Any

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.llamacpp.context import Context

MIB = 1 << 20


def job(
    model: str, *, cards: int = 1, build: int = 9000, fork: bool = False, context: int | None = 4096, **more: Any
) -> ServeJob:
    """A job; what is no field of the plan is an engine option with - for _."""
    fields = set(ServePlan.__struct_fields__)
    plan = {name: value for name, value in more.items() if name in fields}
    options = {name.replace("_", "-"): value for name, value in more.items() if name not in (*fields, "concurrency")}
    return ServeJob(
        model=load_model(model), requests=Requests(context=context, concurrency=more.get("concurrency", 1)),
        plan=ServePlan(**plan), cluster=Cluster(gpu=load_gpu("rtx-3090"), gpus_per_node=cards),
        engine="ik_llama.cpp" if fork else "llama.cpp", version=(3750 if fork and build == 9000 else build,),
        engine_options=options,
    )


def context(model: str, **more: Any) -> Context:
    """The same, worked out."""
    return Context(job(model, **more))


def kv_mib(found: Context) -> float:
    """The cache of all layers [MiB]."""
    return sum(cache.num_bytes for cache in found.caches) / MIB
