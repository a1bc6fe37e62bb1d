"""One vLLM deployment: weights, profiled step, pool, graphs, per pipeline stage."""

from __future__ import annotations

from itertools import chain
from typing import Final, NamedTuple

from vramcast.domain.job import Phase
from vramcast.domain.model import Attention, Head, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor, extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.corrected import corrected, corrected_tensor
from vramcast.engines.serving.drafts import draft_mixers
from vramcast.engines.serving.rank import job_formats, kv_dtype_of, layout_of, load_program
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import total
from vramcast.engines.vllm.groups import CacheSpec, Grouping, grouped
from vramcast.engines.vllm.pool import BlockPool
from vramcast.engines.vllm.process import before_profile, graphs, non_torch, warm_up
from vramcast.engines.vllm.profile import profiled_step
from vramcast.engines.vllm.settings import Settings, settings_of
from vramcast.errors import Unsupported

SOURCE: Final = "vllm-project/vllm vllm/v1/worker/gpu_worker.py `determine_available_memory`"

VOCAB_MULTIPLE: Final = 64
"""vLLM pads embeddings to a multiple of this [vllm/model_executor/layers/vocab_parallel_embedding.py]."""

STATE_PREFIXES_SINCE: Final = (0, 20)
"""From then on prefix caching, and the second block it keeps per state, is the default for recurrent layers too."""

EIGHT_BIT: Final = ("int8", "fp8", "fp8-channel")
"""Formats whose products take activations in 8 bits with a copy of their own."""

LOGS_CONCURRENCY_SINCE: Final = (0, 20)
"""From then on the tokens logged are concurrency x context, before they counted blocks [kv_cache_utils.py]."""

CHUNKED_FAMILY: Final = "llama4"


class _Worker(NamedTuple):
    """What one pipeline stage's workers find when they start."""

    stage: Stage
    weights: Program
    step: Program  # profiled
    outside: tuple[Tensor, ...]  # not torch's: what the profile sees, then what was there before
    graphs: Tensor
    warm_up: tuple[Tensor, ...]
    left: int  # for the cache [bytes]
    layout: Grouping | None  # of the cache


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a vLLM deployment.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks vLLM does not serve
    """
    check_degrees(job)
    if len(job.model.stacks) > 1 and any(layer.cross_attention for layer in job.model.main.layers):
        raise Unsupported(f"{job.model.name} reads an encoder in every layer; use engine transformers")
    settings = settings_of(job)
    workers = [_worker(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    # all stages have as many blocks as the one with the fewest
    blocks = min((max(0, w.left) // w.layout.block_bytes for w in workers if w.layout is not None), default=0)
    return Deployment(ranks=tuple(_rank(job, settings, worker, blocks) for worker in workers))


def _worker(job: ServeJob, settings: Settings, stage: Stage) -> _Worker:
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    layout, formats = layout_of(job, vocab_divisor=VOCAB_MULTIPLE), job_formats(job)
    weights = load_program(job, stage, layout, formats)
    profiled = profiled_step(
        model, settings, stage, tp=plan.tp, experts_divided=layout.etp, eight_bit=formats.quantised in EIGHT_BIT
    )
    step = corrected(job, profiled)
    outside = (corrected_tensor(job, non_torch(plan, gpu, settings)), before_profile(plan, gpu, settings))
    layers = tuple(stage.layers(model))
    expert_layers = sum(isinstance(layer.channel, MoE) for layer in layers)
    captured = corrected_tensor(job, graphs(len(layers), expert_layers, settings, model.family))
    taken = total(weights) + extent(step).peak + outside[0].num_bytes
    taken += captured.num_bytes if settings.graphs_in_budget else 0
    budget = int(settings.memory_fraction * gpu.visible_bytes)
    return _Worker(
        stage=stage,
        weights=weights,
        step=step,
        outside=outside,
        graphs=captured,
        warm_up=warm_up(settings, model.vocab, experts=expert_layers > 0) if stage.last and generates(model) else (),
        left=plan.cache_bytes if plan.cache_bytes is not None else budget - taken,
        layout=_layout(job, settings, stage),
    )


def _rank(job: ServeJob, settings: Settings, worker: _Worker, blocks: int) -> ServingRank:
    cache = _pool(job, settings, worker.layout, blocks)
    visible = job.cluster.gpu.visible_bytes
    return ServingRank(
        program=_program(job, worker, cache),
        cache=cache,
        budget=Budget(settings.memory_fraction, visible) if job.plan.cache_bytes is None else None,
        startup={
            "weights": total(worker.weights),
            "activation peak": extent(worker.step).peak,
            "non-torch": worker.outside[0].num_bytes,
            "CUDA graphs": worker.graphs.num_bytes,
            "KV cache": worker.left,
        },
    )


def _program(job: ServeJob, worker: _Worker, cache: BlockPool | None) -> RankProgram:
    kept = Tensor(
        name="block pool", num_bytes=cache.num_bytes if cache else 0, category=Category.CACHE, source=SOURCE,
        formula=f"{cache.blocks:,} blocks x {cache.block_bytes:,} B" if cache else "",
    )
    warm_up: Program = (*map(Alloc, worker.warm_up), *map(Free, worker.warm_up))
    # one after the other they would share blocks: the same sampler runs in both
    highest = max(worker.step, warm_up, key=lambda program: extent(program).peak)
    serving = (Alloc(kept), Alloc(worker.graphs), *highest)
    return RankProgram(
        role=worker.stage.role,
        count=job.plan.tp * job.plan.dp,
        phases={Phase.LOAD: worker.weights, Phase.SERVING: serving},
        outside=worker.outside,
    )


def _layout(job: ServeJob, settings: Settings, stage: Stage) -> Grouping | None:
    """How the cache of a stage is laid out; None for networks that read everything at once and keep nothing."""
    if not generates(job.model):
        return None
    mixers = chain((layer.mixer for layer in stage.layers(job.model)), draft_mixers(job) if stage.last else ())
    return grouped(mixers, cache_spec(job, settings), chunk=_chunk(job.model))


def _pool(job: ServeJob, settings: Settings, layout: Grouping | None, blocks: int) -> BlockPool | None:
    if layout is None:
        return None
    return BlockPool(
        blocks=blocks,
        block_bytes=layout.block_bytes,
        groups=layout.groups,
        in_flight=settings.batched_tokens * settings.batches_in_flight,
        max_model_len=job.context,
        logs_blocks=settings.version < LOGS_CONCURRENCY_SINCE,
        ranks_sharing=job.plan.dcp,
    )


def generates(model: Model) -> bool:
    """Whether answers are written token by token."""
    return model.head is Head.LM and model.main.causal


def cache_spec(job: ServeJob, settings: Settings) -> CacheSpec:
    """What decides the cache's layout."""
    plan = job.plan
    prefixes = plan.prefix_caching if plan.prefix_caching is not None else settings.version >= STATE_PREFIXES_SINCE
    return CacheSpec(
        tp=plan.tp,
        kv_dtype=kv_dtype_of(job),
        block_tokens=settings.block_tokens,
        version=settings.version if settings.v1 else (0, 0),
        speculative_tokens=plan.draft.tokens if plan.draft is not None else 0,
        prefix_caching=prefixes,
        conv_width=settings.width,
    )


def _chunk(model: Model) -> int:
    """Tokens of the chunks that Llama 4's local layers attend in."""
    if model.family != CHUNKED_FAMILY:
        return 0
    mixers = (layer.mixer for layer in model.main.layers)
    return max((mixer.window or 0 for mixer in mixers if isinstance(mixer, Attention)), default=0)
