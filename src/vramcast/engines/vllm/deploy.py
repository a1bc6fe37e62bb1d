"""One vLLM deployment: weights, profiled step, pool and its groups, graphs, per pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention, Model, MoE
from vramcast.domain.program import Alloc, Category, Program, Tensor, extent, live_at_end, transient
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank, Version
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.rank import (
    corrected,
    corrected_tensor,
    draft_mixers,
    job_formats,
    kv_dtype_of,
    layout_of,
    load_program,
)
from vramcast.engines.serving.requests import generates
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import loaded
from vramcast.engines.vllm.groups import BlockPool, CacheSpec, Grouping, compressed_groups, grouped, is_compressed
from vramcast.engines.vllm.images import CROSSED, unknown_images
from vramcast.engines.vllm.process import (
    attention_workspace,
    before_profile,
    expected_bytes,
    graphs,
    more_slots,
    non_torch,
    warm_up,
)
from vramcast.engines.vllm.profile import profiled_step, token_counts, unpacked_bytes
from vramcast.engines.vllm.settings import (
    OF_TOWERS,
    STATE_WIDTHS,
    Settings,
    attention_backend,
    is_recurrent,
    options_of,
    packing_of,
    settings_of,
)
from vramcast.errors import Note, Unsupported

LOGS_CONCURRENCY_SINCE: Final[Version] = (0, 21)
"""From then on the tokens logged are concurrency x context, before they counted blocks [kv_cache_utils.py]."""

STATE_OF_EVERY_BLOCK: Final = frozenset(("mamba", "mamba2", "falcon_mamba", "jamba", "nemotron_h"))
STATE_OF_EVERY_BLOCK_UNTIL: Final[Version] = (0, 27)
"""Families whose prefix caching kept the state after every block, before 0.27 [MambaModelConfig]."""

WIDE_STATES_SINCE: Final[dict[str, Version]] = {"qwen3_5": (0, 17), "nemotron_h": (0, 14)}
"""Beginning of families whose configurations ask for fp32 states -> since when that is read: `mamba_ssm_dtype`,
`mamba_ssm_cache_dtype` [vllm/model_executor/models/config.py]. Without the key Nemotron-H has fp32 since 0.20."""

CHUNKED_FAMILY: Final = "llama4"


def layout_of_cache(job: ServeJob, settings: Settings, stages: Sequence[Stage]) -> Grouping | None:
    """How the cache is laid out; None for networks that read everything at once and keep nothing."""
    if not generates(job.model):
        return None
    layers = [tuple(stage.layers(job.model)) for stage in stages]
    if is_compressed([layer for stage in layers for layer in stage]):
        return Grouping(*compressed_groups(layers))
    mixers = [
        chain((layer.mixer for layer in mine), draft_mixers(job) if stage.last else ())
        for stage, mine in zip(stages, layers, strict=True)
    ]
    return grouped(mixers, cache_spec(job, settings))


def cache_spec(job: ServeJob, settings: Settings) -> CacheSpec:
    """What decides the cache's layout."""
    plan = job.plan
    return CacheSpec(
        tp=plan.tp,
        kv_dtype=kv_dtype_of(job),
        block_tokens=settings.block_tokens,
        version=settings.version,
        context=job.context,
        speculative_tokens=plan.draft.tokens if plan.draft is not None else 0,
        states=_states(job.model, settings),
        conv_width=settings.width,
        state_width=_state_width(job.model, settings),
        chunk=_chunk(job.model),
        hybrid_manager=settings.options.hybrid_manager is not False,
        auto_dtype=plan.kv_dtype == "auto",
        windows=settings.v1,
    )


def _state_width(model: Model, settings: Settings) -> int:
    """Bytes of an element of a recurrent state: as activations, unless the network's configuration says fp32."""
    asked = settings.options.mamba_ssm_cache_dtype
    if asked != "auto":
        return STATE_WIDTHS[asked]
    wide = (since for family, since in WIDE_STATES_SINCE.items() if model.family.startswith(family))
    return STATE_WIDTHS["float32"] if any(settings.version >= since for since in wide) else settings.width


def _states(model: Model, settings: Settings) -> str:
    """What prefix caching keeps of recurrent states."""
    if not settings.prefix_caching:
        return "none"
    every = model.family in STATE_OF_EVERY_BLOCK and settings.version < STATE_OF_EVERY_BLOCK_UNTIL
    return "all" if every else "align"


def _chunk(model: Model) -> int:
    """Tokens of the chunks that Llama 4's local layers attend in."""
    if model.family != CHUNKED_FAMILY:
        return 0
    mixers = (layer.mixer for layer in model.main.layers)
    return max((mixer.window or 0 for mixer in mixers if isinstance(mixer, Attention)), default=0)


def pool_of(job: ServeJob, settings: Settings, layout: Grouping, *, stage: int, blocks: int) -> BlockPool:
    """The pool of one stage's ranks."""
    return BlockPool(
        blocks=blocks,
        block_bytes=layout.block_bytes[stage],
        groups=layout.groups,
        in_flight=settings.in_flight,
        max_model_len=job.context,
        logs_blocks=settings.version < LOGS_CONCURRENCY_SINCE,
        ranks_sharing=job.plan.dcp,
    )


def num_blocks(left: Sequence[int], layout: Grouping) -> int:
    """Blocks of every stage: as many as the one with the fewest has room for.

    Args:
        left: bytes for the cache on each stage
        layout: what a block takes on each stage
    """
    return min(max(0, room) // size for room, size in zip(left, layout.block_bytes, strict=True) if size)


SOURCE: Final = "vllm-project/vllm vllm/v1/worker/gpu_worker.py `determine_available_memory`"

VOCAB_MULTIPLE: Final = 64
"""vLLM pads embeddings to a multiple of this [vllm/model_executor/layers/vocab_parallel_embedding.py]."""

EIGHT_BIT: Final = ("int8", "fp8", "fp8-channel")
"""Formats whose products take activations in 8 bits with a copy of their own."""

COUNTS_EVERYTHING_SINCE: Final = (0, 27)
"""From then on the budget counts all that was taken since the worker began, before that weights and what was not
PyTorch's [vllm/utils/mem_utils.py `memory_profiling`]."""


SLOTS_COUNTED_SINCE: Final = (0, 8)
"""Before, the V0 engine made slots for adapters after it had measured its weights [vllm/worker/model_runner.py]."""


class _Worker(Struct, frozen=True):
    """What one pipeline stage's workers find when they start."""

    stage: Stage
    load: Program
    weights: int  # as the log has them [bytes]
    step: Program  # profiled
    outside: tuple[Tensor, ...]  # not torch's: what the profile sees, then what was there before
    counts: int  # of tokens, where the log counts them with what is not torch's [bytes]
    graphs: Tensor
    attention: Tensor | None  # scratch of its kernels
    expected: int  # what the profile thinks that graphs will take [bytes]
    warm_up: tuple[Tensor, ...]
    left: int  # for the cache [bytes]


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a vLLM deployment.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks vLLM does not serve
    """
    if options_of(job).language_model_only:
        left = {name: value for name, value in job.engine_options.items() if name not in OF_TOWERS}
        job = replace(job, model=replace(job.model, stacks=(job.model.main,)), engine_options=left)
    check_degrees(job)
    settings = settings_of(job)
    _check_served(job.model, settings)
    stages = even_stages(job.model.num_layers, job.plan.pp)
    workers = [_worker(job, settings, stage) for stage in stages]
    layout = layout_of_cache(job, settings, stages)
    return Deployment(
        ranks=tuple(_ranks(job, settings, workers, layout)), assumptions=_assumptions(job, settings),
        cautions=tuple(unknown_images(job.model, settings)),
    )


def _check_served(model: Model, settings: Settings) -> None:
    if len(model.stacks) > 1 and any(layer.cross_attention for layer in model.main.layers):
        raise Unsupported("{} reads an encoder in every layer; use engine transformers", model.name)
    if model.family == CROSSED and settings.version >= CROSSED_UNTIL:
        raise Unsupported("vLLM has no {} since 0.11, which removed its V0 engine; use vllm@0.10", model.name)
    if not settings.v1 and is_recurrent(model):
        raise Unsupported(
            "the V0 engine keeps the recurrent states of {} outside its blocks; use vllm@0.10", model.name
        )


CROSSED_UNTIL: Final[Version] = (0, 11)
"""First version without Llama 3.2 Vision [vllm/model_executor/models/registry.py `_PREVIOUSLY_SUPPORTED_MODELS`]."""


def _assumptions(job: ServeJob, settings: Settings) -> tuple[str, ...]:
    plan = job.plan
    found = []
    sequences, tokens = settings.max_sequences, settings.batched_tokens
    if plan.max_sequences is None and plan.batched_tokens is None:
        found.append(Note("{} sequences and {:,} tokens a step, vLLM's default", sequences, tokens))
    elif plan.max_sequences is None:
        found.append(Note("{} sequences, vLLM's default", sequences))
    elif plan.batched_tokens is None:
        found.append(Note("{:,} tokens a step, vLLM's default", tokens))
    if plan.memory_fraction is None and plan.cache_bytes is None:
        found.append(Note("gpu-memory-utilization {:g}, vLLM's default", settings.memory_fraction))
    if settings.options.chunked_prefill is False and settings.chunks:
        found.append(Note("prompts are cut into chunks all the same: vLLM's V1 engine asks nobody before 0.11.1"))
    elif settings.options.chunked_prefill is None and not settings.v1 and tokens < job.context and plan.batched_tokens:
        found.append(Note("--enable-chunked-prefill, without which vLLM refuses steps shorter than the context"))
    elif not settings.chunks and settings.v1 and generates(job.model):
        found.append(Note("prompts are not cut into chunks: the time is that of steps that may end within one"))
    if settings.attention != attention_backend(job, None):
        found.append(Note("attention by {}: the time is that of vLLM's own choice", settings.attention))
    return tuple(found)


def _worker(job: ServeJob, settings: Settings, stage: Stage) -> _Worker:
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    layout, formats = layout_of(job, vocab_divisor=VOCAB_MULTIPLE), job_formats(job)
    whole = settings.options.mm_encoder_tp_mode == "data"
    packing = packing_of(model, gpu, settings.version, adapters=plan.lora_slots > 0)
    slots = corrected(job, loaded(more_slots(job, settings, stage)))
    load = (*load_program(job, stage, layout, formats, packing=packing, whole_towers=whole), *slots)
    kept = loaded(token_counts(model, settings)) if stage.last and generates(model) else ()
    profiled = profiled_step(
        job, settings, stage, eight_bit=formats.quantised in EIGHT_BIT, quantised=formats.experts or formats.quantised
    )
    step = corrected(job, profiled)
    outside = (corrected_tensor(job, non_torch(plan, gpu, settings)), before_profile(plan, gpu, settings))
    unpacked = unpacked_bytes(model, settings, stage, tp=plan.tp, quantised=formats.quantised)
    captured = corrected_tensor(job, graphs(model, stage, settings, gpu, plan=plan, unpacked=unpacked))
    expected = expected_bytes(model, stage, settings, gpu, plan=plan)
    weights = _loaded_bytes(load, adapters=settings.v1 or settings.version >= SLOTS_COUNTED_SINCE)
    taken = weights + extent(step).peak + outside[0].num_bytes
    taken += expected if settings.graphs_in_budget else 0
    counts = extent(kept).peak if settings.version >= COUNTS_EVERYTHING_SINCE else 0
    budget = int(settings.memory_fraction * gpu.visible_bytes) - counts
    experts = any(isinstance(run.layer.channel, MoE) for run in stage.runs(model))
    return _Worker(
        stage=stage,
        load=(*load, *kept),
        weights=weights,
        step=step,
        outside=outside,
        counts=counts,
        graphs=captured,
        attention=attention_workspace(settings),
        expected=expected,
        warm_up=warm_up(settings, model.vocab, experts=experts) if stage.last and generates(model) else (),
        left=plan.cache_bytes if plan.cache_bytes is not None else budget - taken,
    )


def _loaded_bytes(program: Program, *, adapters: bool) -> int:
    """What the log calls weights, with slots for adapters or without."""
    return sum(
        tensor.num_bytes * count
        for tensor, count in live_at_end(program).items()
        if adapters or tensor.category is not Category.ADAPTERS
    )


def _ranks(
    job: ServeJob, settings: Settings, workers: Sequence[_Worker], layout: Grouping | None
) -> Iterator[ServingRank]:
    blocks = num_blocks([worker.left for worker in workers], layout) if layout is not None else 0
    visible = job.cluster.gpu.visible_bytes
    for index, worker in enumerate(workers):
        cache = pool_of(job, settings, layout, stage=index, blocks=blocks) if layout is not None else None
        logged = worker.expected if settings.graphs_logged and settings.graphs_in_budget else 0
        yield ServingRank(
            program=_program(job, worker, cache),
            cache=cache,
            budget=Budget(settings.memory_fraction, visible) if job.plan.cache_bytes is None else None,
            startup={
                "weights": worker.weights,
                "activation peak": extent(worker.step).peak + logged,
                "non-torch": worker.outside[0].num_bytes + worker.counts,
                "CUDA graphs": worker.graphs.num_bytes,
                "CUDA graphs, estimated": worker.expected,
                "KV cache": worker.left,
            },
        )


def _program(job: ServeJob, worker: _Worker, cache: BlockPool | None) -> RankProgram:
    kept = Tensor(
        name="block pool", num_bytes=cache.num_bytes if cache else 0, category=Category.CACHE, source=SOURCE,
        formula=Note("{:,} blocks x {:,} B", cache.blocks, cache.block_bytes) if cache else "",
    )
    warmed = transient(*worker.warm_up)
    # one after the other they would share blocks: the same sampler runs in both
    highest = max(worker.step, warmed, key=lambda program: extent(program).peak)
    beside = (kept, worker.graphs, worker.attention)
    serving = (*(Alloc(tensor) for tensor in beside if tensor is not None and tensor.num_bytes), *highest)
    return RankProgram(
        role=worker.stage.role,
        count=job.plan.tp * job.plan.dp,
        phases={Phase.LOAD: worker.load, Phase.SERVING: serving},
        outside=worker.outside,
    )
