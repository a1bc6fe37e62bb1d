"""One vLLM deployment: weights, profiled step, pool, graphs, per pipeline stage."""

from __future__ import annotations

from itertools import chain
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Phase
from vramcast.domain.model import Attention, Head, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor, extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Deployment, ServeJob, ServingRank
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.drafts import draft_mixers
from vramcast.engines.serving.rank import job_formats, kv_dtype_of, layout_of, load_program
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import total
from vramcast.engines.vllm.groups import CacheSpec, grouped
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

CHUNKED_FAMILY: Final = "llama4"


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a vLLM deployment.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks vLLM does not serve
    """
    check_degrees(job)
    if len(job.model.stacks) > 1 and any(layer.cross_attention for layer in job.model.main.layers):
        raise Unsupported(f"{job.model.name} reads an encoder in every layer; use engine transformers")
    settings = settings_of(job)
    found = [_rank(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    return Deployment(ranks=_levelled(found))


def _levelled(ranks: list[ServingRank]) -> tuple[ServingRank, ...]:
    """All ranks have as many blocks as the one with the fewest."""
    blocks = min((rank.cache.blocks for rank in ranks if isinstance(rank.cache, BlockPool)), default=0)
    return tuple(
        replace(rank, cache=replace(rank.cache, blocks=blocks)) if isinstance(rank.cache, BlockPool) else rank
        for rank in ranks
    )


def _rank(job: ServeJob, settings: Settings, stage: Stage) -> ServingRank:
    model, plan = job.model, job.plan
    layout, formats = layout_of(job, vocab_divisor=VOCAB_MULTIPLE), job_formats(job)
    weights = load_program(job, stage, layout, formats)
    step = profiled_step(
        model, settings, stage, tp=plan.tp, experts_divided=layout.etp, eight_bit=formats.quantised in EIGHT_BIT
    )
    beside = non_torch(plan, job.cluster.gpu, settings)
    layers = tuple(stage.layers(model))
    captured = graphs(len(layers), sum(isinstance(layer.channel, MoE) for layer in layers), settings)
    taken = total(weights) + extent(step).peak + beside.num_bytes
    taken += captured.num_bytes if settings.graphs_in_budget else 0
    budget = int(settings.memory_fraction * job.cluster.gpu.visible_bytes)
    left = plan.cache_bytes if plan.cache_bytes is not None else budget - taken
    cache = _pool(job, settings, stage, left)
    experts = any(isinstance(layer.channel, MoE) for layer in layers)
    late = warm_up(settings, model.vocab, experts=experts) if stage.last and generates(model) else ()
    before = before_profile(plan, job.cluster.gpu, settings)
    program = _program(stage, job, weights, step, cache, (captured, *late), (beside, before))
    startup = {
        "weights": total(weights),
        "activation peak": extent(step).peak,
        "non-torch": beside.num_bytes,
        "CUDA graphs": captured.num_bytes,
        "KV cache": left,
    }
    unplanned = max(0, sum(tensor.num_bytes for tensor in late) - extent(step).peak) + before.num_bytes
    return ServingRank(
        program=program,
        cache=cache,
        beside_budget_bytes=unplanned + (0 if settings.graphs_in_budget else captured.num_bytes),
        startup=startup,
    )


def _program(
    stage: Stage, job: ServeJob, weights: Program, step: Program, cache: BlockPool | None, late: tuple[Tensor, ...],
    outside: tuple[Tensor, ...],
) -> RankProgram:
    kept = Tensor(
        name="block pool", num_bytes=cache.num_bytes if cache else 0, category=Category.CACHE, source=SOURCE,
        formula=f"{cache.blocks:,} blocks x {cache.block_bytes:,} B" if cache else "",
    )
    captured, *sampled = late
    serving = (Alloc(kept), Alloc(captured), *map(Alloc, sampled), *map(Free, sampled), *step)
    return RankProgram(
        role=stage.role,
        count=job.plan.tp * job.plan.dp,
        phases={Phase.LOAD: weights, Phase.SERVING: serving},
        outside=outside,
    )


def _pool(job: ServeJob, settings: Settings, stage: Stage, num_bytes: int) -> BlockPool | None:
    """The cache of a rank; None for networks that read everything at once and keep nothing."""
    model = job.model
    if not generates(model):
        return None
    spec = cache_spec(job, settings)
    mixers = chain((layer.mixer for layer in stage.layers(model)), draft_mixers(job) if stage.last else ())
    layout = grouped(mixers, spec, chunk=_chunk(model))
    if layout is None:
        return None
    return BlockPool(
        blocks=max(0, num_bytes) // layout.block_bytes,
        block_bytes=layout.block_bytes,
        groups=layout.groups,
        in_flight=settings.batched_tokens * settings.batches_in_flight,
        max_model_len=job.context,
        logs_blocks=settings.version < (0, 20),
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
