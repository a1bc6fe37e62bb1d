"""One serving question answered: engine -> rank programs and caches -> peaks, capacity, verdict."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from itertools import chain
from math import floor
from typing import Any

import msgspec
import msgspec.structs
from msgspec import Struct

from vramcast import engines, estimate
from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import Capacity, LoadMemory, RankAnswer, ServeAnswer, Served
from vramcast.domain.job import Phase
from vramcast.domain.program import extent
from vramcast.domain.serving import Cache, Deployment, PipelineJob, ServeJob, ServingRank
from vramcast.domain.verdict import claimed_bytes, usable_bytes
from vramcast.domain.version import named, newer
from vramcast.engines.serving.checks import ported_caution, refuse_ignored, refuse_ignored_of_pipeline, unequal_caution
from vramcast.engines.serving.requests import length_caution
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, UnknownName, joined
from vramcast.estimate.corrections import applicable, effects
from vramcast.estimate.cost import asked_of, with_cost
from vramcast.estimate.interval import serving_traits
from vramcast.estimate.ranks import around_process, rank_answer
from vramcast.estimate.running import load_memory, waiting_caution
from vramcast.estimate.speed import timed
from vramcast.units import ceil_div, format_bytes


class Verdict(Struct, frozen=True):
    """An answer in short: what a search compares."""

    fits: bool
    needed_bytes: int  # device bytes of the fullest card, allocator included, whether it fits or not
    high_bytes: int  # upper end of its 90 % interval
    loaded_bytes: int  # of weights on the fullest rank, once they are loaded
    shortfall: str  # why the load does not go into the cache
    capacity: Capacity | None
    load: LoadMemory | None = None  # what the load itself needs

    def leaves(self, visible_bytes: int, headroom: float | None) -> bool:
        """Whether the plan fits and leaves so much of a card free; None: its 90 % interval fits."""
        claimed = claimed_bytes(needed_bytes=self.needed_bytes, high_bytes=self.high_bytes, headroom=headroom)
        return self.fits and claimed <= usable_bytes(visible_bytes, headroom)


def answer(job: ServeJob | PipelineJob, *, with_changes: bool = True) -> ServeAnswer:
    """Memory, capacity and verdict of one serving plan.

    Args:
        job: the question
        with_changes: of a plan that does not fit, whether to compute what would make it fit: most of the work

    Raises: InvalidSpec, Unsupported or UnknownName with one sentence when the question cannot be answered.
    """
    ignored: tuple[str, ...] = ()
    if isinstance(job, ServeJob):
        job, ignored = applicable(job)
        if job.traffic is not None:
            estimate.traffic.check(job)
    asked: ServeJob | PipelineJob = job
    moved: tuple[Note, ...] = ()
    if isinstance(job, ServeJob):
        job, moved = as_placed(job)
        asked = msgspec.structs.replace(asked, requests=job.requests)  # a context made shorter, asked again, stays so
    deployment = deploy(job)
    changed, idle = _calibrated(job, deployment)
    programs = [rank.program for rank in deployment.ranks]
    answered = [_rank_answer(job, rank) for rank in deployment.ranks]
    ranks = sorted(answered, key=lambda rank: -rank.needed_bytes)
    visible = job.cluster.gpu.visible_bytes
    short = _in_short(job, deployment, answered)
    capacity, fits = short.capacity, short.fits
    if capacity is not None and deployment.fitting_context is not None and ranks[0].needed_bytes > visible:
        capacity = msgspec.structs.replace(capacity, longest_context=deployment.fitting_context())
    speed = timed(job, held=sequences_held(job, deployment)) if isinstance(job, ServeJob) else None
    requests, supposed, unserved = _served(job, deployment, fits=fits)
    found = ServeAnswer(
        question=_with_fraction(question(asked), deployment),
        fits=fits,
        capacity_bytes=visible,
        ranks=tuple(ranks),
        num_parameters=count_parameters(job.model).total if isinstance(job, ServeJob) else (
            engines.diffusers.pipeline_elements(job.pipeline)),
        assumptions=_unique(
            chain(
                job.model.notes if isinstance(job, ServeJob) else (), changed, deployment.assumptions,
                *(rank.assumptions for rank in programs),
                speed.assumptions if speed else (),
                supposed,
            )
        ),
        cautions=(*moved, *unserved, *_foremost(job), *deployment.cautions),
        warnings=_unique(
            chain(
                ignored, idle, _cautions(job), deployment.warnings, deployment.advice(),
                *(rank.warnings for rank in programs),
            )
        ),
        ignored=newer(job.engine, job.version, SERVING[job.engine].newest),
        changes=() if fits or not with_changes or isinstance(job, PipelineJob) else (
            estimate.serving_changes.serving_changes(job, short, verdict=verdict)),
        capacity=capacity,
        startup=deployment.ranks[0].startup,
        speed=speed.speed if speed else None,
        shortfall=short.shortfall,
        load=short.load,
        served=requests,
    )
    return with_cost(found, job.cluster, copies=requests.replicas if requests else 1)


def as_placed(job: ServeJob) -> tuple[ServeJob, tuple[Note, ...]]:
    """The job as an engine that moves what does not fit runs it, and what was moved."""
    if job.engine in SERVING and SERVING[job.engine].is_ggml:
        placed: tuple[ServeJob, tuple[Note, ...]] = import_module(SERVING[job.engine].module).fitted(job)
        return placed
    return job, ()


def _served(
    job: ServeJob | PipelineJob, deployment: Deployment, *, fits: bool
) -> tuple[Served | None, tuple[str, ...], tuple[str, ...]]:
    """What users get where requests come by themselves, what was assumed, and that a plan without room serves none."""
    if isinstance(job, PipelineJob) or job.traffic is None:
        return None, (), ()
    if not fits:
        return None, (), ("requests that come by themselves get no latencies: the plan does not fit",)
    return *estimate.traffic.served(job, deployment), ()


def sequences_held(job: ServeJob, deployment: Deployment) -> float | None:
    """By the fullest cache, where that is part of the load; None where not even one, or where nobody sets it aside."""
    held = min((rank.cache.num_bytes / each for rank in deployment.ranks if rank.cache is not None and not rank.grows
                and (each := rank.cache.sequence_bytes(job.context))), default=0.0)
    return held if 1 <= held < job.requests.concurrency / job.plan.dp else None


def _calibrated(job: ServeJob | PipelineJob, deployment: Deployment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a calibration changed and what not, beside the same question without it; a pipeline has none."""
    if isinstance(job, PipelineJob) or job.calibration is None:
        return (), ()
    return effects(job, deployment, deploy(msgspec.structs.replace(job, calibration=None)))


def verdict(job: ServeJob) -> Verdict:
    """What `answer` says of a plan, as far as plans are compared by it.

    Raises: as `answer`
    """
    job, _ = applicable(job)
    deployment = deploy(job)
    return _in_short(job, deployment, [_rank_answer(job, rank) for rank in deployment.ranks])


def _in_short(job: ServeJob | PipelineJob, deployment: Deployment, ranks: list[RankAnswer]) -> Verdict:
    fullest = max(ranks, key=lambda rank: rank.needed_bytes)
    needed = fullest.needed_bytes
    capacity = _capacity(job, deployment, ranks, needed)
    shortfall = _shortfall(job, deployment, capacity)
    return Verdict(
        fits=needed <= job.cluster.gpu.visible_bytes and not shortfall,
        needed_bytes=needed,
        loaded_bytes=max(extent(rank.program.phases.get(Phase.LOAD, ())).net for rank in deployment.ranks),
        shortfall=shortfall,
        capacity=capacity,
        load=None if isinstance(job, PipelineJob) else load_memory(job, zip(deployment.ranks, ranks, strict=True)),
        high_bytes=fullest.high_bytes,
    )


def _capacity(
    job: ServeJob | PipelineJob, deployment: Deployment, ranks: list[RankAnswer], needed_bytes: int
) -> Capacity | None:
    """What the caches hold, with the holes that an allocator without a pool leaves between them."""
    grows = any(rank.grows for rank in deployment.ranks)
    holes = max(map(_holes, ranks), default=1.0) if grows else 1.0
    safe = safe_fraction(deployment, needed_bytes, job.cluster.gpu.visible_bytes)
    return capacity_of(job, deployment, safe, holes)


def deploy(job: ServeJob | PipelineJob) -> Deployment:
    """What the engine a job names makes of it."""
    if job.engine not in SERVING:
        raise UnknownName.of("serving engine", job.engine, SERVING)
    if SERVING[job.engine].runs_pipelines is not isinstance(job, PipelineJob):
        what = "diffusion pipelines" if SERVING[job.engine].runs_pipelines else "language models"
        raise InvalidSpec("{} runs {}; {} is none", job.engine, what, _subject(job))
    if job.plan.num_ranks > job.cluster.count:
        raise InvalidSpec(
            "tp={} x pp={} x dp={} needs {} GPUs, {} has {}; use smaller degrees or more GPUs",
            job.plan.tp, job.plan.pp, job.plan.dp, job.plan.num_ranks, job.cluster.name, job.cluster.count
        )
    if isinstance(job, ServeJob):
        refuse_ignored(job)
    else:
        refuse_ignored_of_pipeline(job)
    found: Deployment = import_module(SERVING[job.engine].module).deploy(job)
    return found


def _holes(rank: RankAnswer) -> float:
    """Reserved over allocated bytes of what requests take of a card that has no pool for them."""
    load, steady = rank.phases["load"], rank.peak
    taken = steady.allocated_bytes - load.allocated_bytes
    if rank.gives_back_cache or taken <= 0:
        return 1.0
    return max(1.0, (steady.reserved_bytes - load.reserved_bytes) / taken)


def capacity_of(
    job: ServeJob | PipelineJob, deployment: Deployment, safe: float | None = None, holes: float = 1.0
) -> Capacity | None:
    """What the caches of all ranks hold together: the rank with the least decides, every data-parallel copy counts.

    A pipeline has none. Stages whose layers keep nothing of a sequence hold any number of them.

    Args:
        job: the question
        deployment: the engine's answer to it
        safe: the highest safe memory fraction
        holes: what a sequence takes of the card over what it takes of the cache
    """
    if isinstance(job, PipelineJob):
        return None
    there = (rank.cache for rank in deployment.ranks)
    caches = [cache for cache in there if cache is not None and cache.sequence_bytes(job.context)]
    if not caches:
        return None
    tightest = min(caches, key=lambda cache: cache.num_bytes / cache.sequence_bytes(job.context))
    copies = job.plan.dp
    sequences = ceil_div(job.requests.concurrency, copies)
    return Capacity(
        kv_bytes=tightest.num_bytes,
        tokens_by_count={name: int(tokens / holes) for name, tokens in tightest.reported_tokens.items()},
        concurrency=copies * tightest.num_bytes / tightest.sequence_bytes(job.context) / holes,
        longest_context=longest_context(caches, sequences * holes, most=max(job.model.context or 0, job.context)),
        sequence_bytes=int(tightest.sequence_bytes(job.context) * holes),
        safe_fraction=safe,
    )


def longest_context(caches: Iterable[Cache], sequences: float, *, most: int) -> int:
    """Tokens that each of so many sequences can have in every cache; 0 when not even one fits [tokens].

    Caches fill almost in proportion to length, so the search guesses by proportion, and halves every third time.
    """
    caches = tuple(caches)

    def filled(tokens: int) -> float:
        return max(cache.sequence_bytes(tokens) * sequences / max(1, cache.num_bytes) for cache in caches)

    low, high, below, above, turn = 0, most, 0.0, filled(most), 0
    if above <= 1:
        return most
    while high - low > 1:
        share = (1 - below) / (above - below) if turn % 3 < 2 else 0.5
        middle = min(high - 1, max(low + 1, low + int((high - low) * share)))
        found, turn = filled(middle), turn + 1
        if found <= 1:
            low, below = middle, found
        else:
            high, above = middle, found
    return low


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
    if capacity.concurrency >= 1 and _holds_load(job, deployment):
        return ""
    missing = -min(rank.startup.get("KV cache", 0) for rank in deployment.ranks)
    if missing > 0:
        taken = joined(", ", (
            Note(name + " {}", format_bytes(size)) for name, size in _counted(deployment.ranks[0]).items()
        ))
        return Note("nothing is left for the cache: {}; {} more than the engine may take", taken, format_bytes(missing))
    needed = capacity.sequence_bytes * job.requests.concurrency
    if capacity.concurrency >= 1 and not any(rank.grows for rank in deployment.ranks):
        said = Note(
            "starts, but holds {:,.1f} of {} sequences of {:,} tokens: they take {}, the cache has {}",
            capacity.concurrency, job.requests.concurrency, job.context, format_bytes(needed),
            format_bytes(capacity.kv_bytes),
        )
    else:
        said = Note(
            "the cache of {} holds {:.2f} sequences of {:,} tokens; {} take {}",
            format_bytes(capacity.kv_bytes), capacity.concurrency, job.context, job.requests.concurrency,
            format_bytes(needed),
        )
    if not capacity.longest_context:
        return said
    return joined("; ", (said, Note("the longest context that fits is {:,}", capacity.longest_context)))


def _holds_load(job: ServeJob, deployment: Deployment) -> bool:
    """Whether a pool holds the sequences in flight at the lengths that are asked for, where the context is a limit.

    One sequence as long as that has to fit as well, or the engine does not start.
    """
    asked = job.requests
    if asked.input_len is None or asked.output_len is None or any(rank.grows for rank in deployment.ranks):
        return False
    sequences = ceil_div(asked.concurrency, job.plan.dp)
    caches = (rank.cache for rank in deployment.ranks)
    tokens = asked.input_len + asked.output_len
    return all(sequences * cache.sequence_bytes(tokens) <= cache.num_bytes for cache in caches if cache is not None)


def _counted(rank: ServingRank) -> dict[str, int]:
    """What the engine takes off its budget before the cache: graphs only where the sum leaves room for them."""
    startup = {name: size for name, size in rank.startup.items() if size > 0 and name != "KV cache"}
    graphs = startup.pop("CUDA graphs", 0)
    graphs = startup.pop("CUDA graphs, estimated", graphs)
    if rank.budget is not None and graphs:
        budget = int(rank.budget.fraction * rank.budget.of_bytes)
        if budget - sum(startup.values()) - rank.startup.get("KV cache", 0) >= graphs:
            startup["CUDA graphs"] = graphs
    return startup


def _cautions(job: ServeJob | PipelineJob) -> Iterable[str]:
    if isinstance(job, PipelineJob):
        return
    if job.plan.num_ranks < job.cluster.count:
        yield Note(
            "the plan uses {} of {} GPUs; the others could hold {} more copies, or raise --tp",
            job.plan.num_ranks, job.cluster.count, job.cluster.count // job.plan.num_ranks - 1
        )


def _foremost(job: ServeJob | PipelineJob) -> tuple[str, ...]:
    """What changes how the answer is to be read."""
    if isinstance(job, PipelineJob):
        return ()
    found = (waiting_caution(job), length_caution(job), ported_caution(job), unequal_caution(job))
    return tuple(text for text in found if text is not None)


def _rank_answer(job: ServeJob | PipelineJob, rank: ServingRank) -> RankAnswer:
    return rank_answer(
        rank.program,
        outside=around_process(job.cluster.gpu),
        capacity_bytes=job.cluster.gpu.visible_bytes,
        traits=serving_traits(job),
        purpose="serving",
        exact_bytes=_exact_bytes(rank) + job.cluster.gpu.held_bytes,
    )


def _exact_bytes(rank: ServingRank) -> int:
    """What cannot be missed: a cache of a given size, and of an engine that gives its cache what is left of a share of
    the card that whole share, since larger weights leave a smaller cache [bytes]."""
    if rank.cache is None or rank.grows:
        return 0
    share = int(rank.budget.fraction * rank.budget.of_bytes) if rank.budget is not None and rank.cache.num_bytes else 0
    return max(rank.cache.num_bytes, share)


def _subject(job: ServeJob | PipelineJob) -> str:
    return job.model.name if isinstance(job, ServeJob) else job.pipeline.name


def question(job: ServeJob | PipelineJob) -> dict[str, Any]:
    """The job as plain data; the model and the card by name."""
    plain = asked_of(_subject(job), job.cluster, named(job.engine, job.version))
    plain["requests"] = job.requests.as_plain() | ({"context": job.context} if isinstance(job, ServeJob) else {})
    plain["plan"] = job.plan.as_plain()
    if job.engine_options:
        plain["engine_options"] = job.engine_options
    if isinstance(job, ServeJob) and job.traffic is not None:
        traffic = job.traffic.as_plain()
        arrivals = traffic.pop("arrivals", ())
        plain["traffic"] = traffic | ({"arrivals": len(arrivals)} if arrivals else {})
    if isinstance(job, ServeJob) and job.calibration is not None:
        plain["calibration"] = job.calibration.source
    return plain


def _with_fraction(asked: dict[str, Any], deployment: Deployment) -> dict[str, Any]:
    """The question with the memory fraction that the engine took by itself; as it is where none sizes the cache."""
    budget = deployment.ranks[0].budget
    if budget is None or "memory_fraction" in asked["plan"]:
        return asked
    return asked | {"plan": asked["plan"] | {"memory_fraction": budget.fraction}}


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))

