"""One serving question answered: engine -> rank programs and caches -> peaks, capacity, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from itertools import chain
from math import floor
from typing import Any, Final, NamedTuple

import msgspec
import msgspec.structs

from vramcast.blocks.parameters import count_parameters
from vramcast.domain.answer import Capacity, RankAnswer, ServeAnswer
from vramcast.domain.serving import Cache, Deployment, PipelineJob, ServeJob, ServingRank, Version
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.estimate.corrections import applicable, effects
from vramcast.estimate.outside import context_tensor
from vramcast.estimate.ranks import rank_answer
from vramcast.units import ceil_div, format_bytes


class Engine(NamedTuple):
    """A serving engine: its module, the versions its model covers, and the one assumed when none is named."""

    module: str
    oldest: Version
    newest: Version
    default: Version


ENGINES: Final[dict[str, Engine]] = {
    "vllm": Engine("vramcast.engines.vllm", (0, 2), (0, 33), (0, 19)),
    "sglang": Engine("vramcast.engines.sglang", (0, 3), (0, 5, 23), (0, 5, 23)),
    "tensorrt-llm": Engine("vramcast.engines.tensorrt_llm", (0, 5), (1, 2), (1, 1)),
    "llama.cpp": Engine("vramcast.engines.llamacpp", (1000,), (9999,), (7000,)),
    "ik_llama.cpp": Engine("vramcast.engines.llamacpp", (3400,), (4060,), (3750,)),
    "transformers": Engine("vramcast.engines.transformers", (4, 30), (5, 23), (4, 57)),
    "diffusers": Engine("vramcast.engines.diffusers", (0, 20), (0, 42), (0, 35)),
    "stable-diffusion.cpp": Engine("vramcast.engines.stable_diffusion_cpp", (134,), (243,), (211,)),
}
"""Serving engines by name; a module is imported when asked for. stable-diffusion.cpp counts its commits."""

PIPELINE_ENGINES: Final = ("diffusers", "stable-diffusion.cpp")
"""Engines that run diffusion pipelines; the others run language models."""


def answer(job: ServeJob | PipelineJob) -> ServeAnswer:
    """Memory, capacity and verdict of one serving plan.

    Raises: InvalidSpec, Unsupported or UnknownName with one sentence when the question cannot be answered.
    """
    ignored: tuple[str, ...] = ()
    if isinstance(job, ServeJob):
        job, ignored = applicable(job)
    deployment = deploy(job)
    changed, idle = _calibrated(job, deployment)
    programs = [rank.program for rank in deployment.ranks]
    ranks = sorted((_rank_answer(job, rank) for rank in deployment.ranks), key=lambda rank: -rank.needed_bytes)
    visible = job.cluster.gpu.visible_bytes
    capacity = capacity_of(job, deployment, safe_fraction(deployment, ranks[0].needed_bytes, visible))
    shortfall = _shortfall(job, deployment, capacity)
    return ServeAnswer(
        question=question(job),
        fits=ranks[0].needed_bytes <= visible and not shortfall,
        capacity_bytes=visible,
        ranks=tuple(ranks),
        num_parameters=_num_parameters(job),
        assumptions=_unique(chain(changed, deployment.assumptions, *(rank.assumptions for rank in programs))),
        warnings=_unique(
            chain(ignored, idle, _cautions(job), deployment.warnings, *(rank.warnings for rank in programs))
        ),
        capacity=capacity,
        startup=deployment.ranks[0].startup,
        shortfall=shortfall,
    )


def _calibrated(job: ServeJob | PipelineJob, deployment: Deployment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a calibration changed and what not, beside the same question without it; a pipeline has none."""
    if isinstance(job, PipelineJob) or job.calibration is None:
        return (), ()
    return effects(job, deployment, deploy(msgspec.structs.replace(job, calibration=None)))


def _num_parameters(job: ServeJob | PipelineJob) -> int:
    if isinstance(job, ServeJob):
        return count_parameters(job.model).total
    from vramcast.engines.diffusers.deploy import pipeline_elements

    return pipeline_elements(job.pipeline)


def deploy(job: ServeJob | PipelineJob) -> Deployment:
    """What the engine a job names makes of it."""
    if job.engine not in ENGINES:
        raise UnknownName.of("serving engine", job.engine, ENGINES)
    if (job.engine in PIPELINE_ENGINES) is not isinstance(job, PipelineJob):
        what = "diffusion pipelines" if job.engine in PIPELINE_ENGINES else "language models"
        raise InvalidSpec(f"{job.engine} runs {what}; {_subject(job)} is none")
    if job.plan.num_ranks > job.cluster.count:
        raise InvalidSpec(
            f"tp={job.plan.tp} x pp={job.plan.pp} x dp={job.plan.dp} needs {job.plan.num_ranks} GPUs, "
            f"{job.cluster.name} has {job.cluster.count}; use smaller degrees or more GPUs"
        )
    found: Deployment = import_module(ENGINES[job.engine].module).deploy(job)
    return found


def capacity_of(
    job: ServeJob | PipelineJob, deployment: Deployment, safe: float | None = None
) -> Capacity | None:
    """What the caches of all ranks hold together: the rank with the least decides, every data-parallel copy counts.

    A pipeline has none.
    """
    if isinstance(job, PipelineJob):
        return None
    caches = [rank.cache for rank in deployment.ranks if rank.cache is not None]
    if not caches:
        return None
    tightest = min(caches, key=lambda cache: cache.num_bytes / cache.sequence_bytes(job.context))
    copies = job.plan.dp
    sequences = ceil_div(job.requests.concurrency, copies)
    return Capacity(
        kv_bytes=tightest.num_bytes,
        tokens_by_count=tightest.reported_tokens,
        concurrency=copies * tightest.num_bytes / tightest.sequence_bytes(job.context),
        longest_context=longest_context(caches, sequences, most=_longest(job)),
        sequence_bytes=tightest.sequence_bytes(job.context),
        safe_fraction=safe,
    )


def longest_context(caches: Iterable[Cache], sequences: int, *, most: int) -> int:
    """Tokens that each of so many sequences can have in every cache; 0 when not even one fits [tokens]."""
    caches = tuple(caches)
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if all(cache.sequence_bytes(middle) * sequences <= cache.num_bytes for cache in caches):
            low = middle
        else:
            high = middle - 1
    return low


def _longest(job: ServeJob) -> int:
    return max(job.model.context or 0, job.context)


def safe_fraction(deployment: Deployment, needed_bytes: int, visible_bytes: int) -> float | None:
    """The highest memory fraction, in steps of 0.01, that leaves room for everything beside it.

    None where no fraction sizes the cache, or where nothing is left for one.

    Args:
        deployment: the plan at its own fraction
        needed_bytes: what the fullest rank needs at that fraction [bytes]
        visible_bytes: of the card
    """
    rank = deployment.ranks[0]
    if rank.budget is None or rank.cache is None or not rank.cache.num_bytes:
        return None
    room = (visible_bytes - needed_bytes) / rank.budget.of_bytes
    return max(0, min(100, floor(100 * (rank.budget.fraction + room) + 1e-9))) / 100


def _shortfall(job: ServeJob | PipelineJob, deployment: Deployment, capacity: Capacity | None) -> str:
    """Why the load does not go into the cache, or nothing."""
    if isinstance(job, PipelineJob) or capacity is None or capacity.concurrency >= job.requests.concurrency:
        return ""
    missing = -min(rank.startup.get("KV cache", 0) for rank in deployment.ranks)
    if missing > 0:
        startup = deployment.ranks[0].startup
        counted = {name: size for name, size in startup.items() if size > 0 and name != "CUDA graphs"}
        taken = ", ".join(f"{name} {format_bytes(size)}" for name, size in counted.items())
        return f"nothing is left for the cache: {taken}; {format_bytes(missing)} more than the engine may take"
    needed = capacity.sequence_bytes * job.requests.concurrency
    return (
        f"the cache of {format_bytes(capacity.kv_bytes)} holds {capacity.concurrency:.2f} sequences of {job.context:,} "
        f"tokens; {job.requests.concurrency} take {format_bytes(needed)}"
    )


def _cautions(job: ServeJob | PipelineJob) -> Iterable[str]:
    if isinstance(job, PipelineJob):
        return
    context = job.model.context
    if context is not None and job.context > context:
        yield f"context={job.context} is longer than the {context} positions {job.model.name} was trained with"
    if job.plan.num_ranks < job.cluster.count:
        yield (
            f"the plan uses {job.plan.num_ranks} of {job.cluster.count} GPUs; the others could hold "
            f"{job.cluster.count // job.plan.num_ranks - 1} more copies, or raise --tp"
        )


def _rank_answer(job: ServeJob | PipelineJob, rank: ServingRank) -> RankAnswer:
    return rank_answer(
        rank.program,
        outside=(context_tensor(job.cluster.gpu),),
        capacity_bytes=job.cluster.gpu.visible_bytes,
        engine=job.engine,
        purpose="serving",
        exact_bytes=rank.cache.num_bytes if rank.cache is not None else 0,
    )


def _subject(job: ServeJob | PipelineJob) -> str:
    return job.model.name if isinstance(job, ServeJob) else job.pipeline.name


def question(job: ServeJob | PipelineJob) -> dict[str, Any]:
    """The job as plain data; the model and the card by name."""
    version = ".".join(map(str, job.version))
    plain: dict[str, Any] = {
        "model": _subject(job), "gpus": job.cluster.name, "engine": f"{job.engine}@{version}"
    }
    plain["requests"] = _plain(job.requests) | ({"context": job.context} if isinstance(job, ServeJob) else {})
    plain["plan"] = _plain(job.plan)
    if job.engine_options:
        plain["engine_options"] = job.engine_options
    if isinstance(job, ServeJob) and job.calibration is not None:
        plain["calibration"] = job.calibration.source
    return plain


def _plain(noun: Any) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(noun).items() if value is not None}
    plain: dict[str, Any] = msgspec.to_builtins(fields)
    return plain


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))

