"""LMDeploy: once the weights are there, a share of what the card has left holds the cache, and the rest runs the steps.

[blocks] InternLM/lmdeploy src/turbomind/models/llama/BlockManager.cc `GetBlockCount`, v0.2.1 to v0.13.0; from v0.15.0
src/turbomind/turbomind.cc `CreateEngine`
[layout] src/turbomind/kernels/attention/block.h: quantised keys and values have a scale and a zero of 16 bits a head
[pytorch] lmdeploy/pytorch/engine/executor/base.py `_get_runtime_size`: logits of a prefill are kept free first
[graphs] lmdeploy/pytorch/backends/cuda/graph_runner.py
[config] lmdeploy/messages.py `TurbomindEngineConfig`, `PytorchEngineConfig`; lmdeploy/utils.py `get_max_batch_size`;
lmdeploy/turbomind/supported_models.py `SUPPORTED_ARCHS`, without which the PyTorch engine runs
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention
from vramcast.domain.program import Alloc, Category, Tensor, extent
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank, Version
from vramcast.domain.version import last_patch
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.rank import forward_step, job_formats, kv_dtype_of, layout_of, load_program
from vramcast.engines.serving.requests import Known, refuse_encoders, refuse_other_caches, typed_options
from vramcast.engines.serving.stages import Pools, Stage, contents_of, even_stages, reserved_bytes
from vramcast.engines.serving.weights import total
from vramcast.engines.vllm.process import captured_graphs, outside_allocator
from vramcast.errors import Note

TURBOMIND: Final = "turbomind"
PYTORCH: Final = "pytorch"

OPTIONS: Final[dict[str, Known]] = {"backend": Known(str, choices=(TURBOMIND, PYTORCH))}
"""Engine options and what their values may be."""

FIRST: Final[Version] = (0,)
LAST: Final[Version] = (1 << 16,)
ALL: Final = (FIRST, LAST)

SOURCES: Final = {
    TURBOMIND: "InternLM/lmdeploy src/turbomind/models/llama/BlockManager.cc `GetBlockCount`",
    PYTORCH: "InternLM/lmdeploy lmdeploy/pytorch/engine/executor/base.py `_get_runtime_size`",
}

FRACTION: Final = 0.8
"""`cache_max_entry_count` [config]."""

PREFILL: Final = 8192
OLD_PREFILL: Final = 4096
ONE_PREFILL_SINCE: Final[Version] = (0, 13)
"""`max_prefill_token_num`, and that of the PyTorch engine before [config]."""

BATCHES: Final = (("a100", 384), ("a800", 384), ("h100", 1024), ("h800", 1024), ("l20y", 1024), ("h200", 1024))
USUAL_BATCH: Final = 128
BATCH_BY_CARD_SINCE: Final[Version] = (0, 6)
"""Beginning of a card's name -> `max_batch_size` since then, and that of all others [config]."""

BLOCK: Final = 64
"""`cache_block_seq_len` [config]."""

QUANTISED: Final = ("int8", "int4")
PARAMETER_BYTES: Final = 8
"""Of a quantised head's keys and values: two numbers of 16 bits each [layout]."""

FAMILIES: Final[dict[str, tuple[Version, Version]]] = {
    **dict.fromkeys(("llama", "code_llama", "yi", "internlm2", "qwen2", "mixtral", "llava", "internvl_chat"), ALL),
    **dict.fromkeys(("mistral", "baichuan", "chatglm", "internlm", "qwen"), (FIRST, (0, 14))),
    "qwen2_moe": ((0, 6, 3), LAST), "internlm3": ((0, 7), LAST), "qwen3": ((0, 7, 3), LAST),
    "qwen3_moe": ((0, 7, 3), LAST), "internvl": ((0, 9), LAST), "qwen2_vl": ((0, 9, 2), LAST),
    "qwen2_5_vl": ((0, 9, 2), LAST), "gpt_oss": ((0, 10), LAST),
}
"""Family -> releases whose TurboMind runs it, the last one left out; the PyTorch engine runs the others [config]."""

GRAPHS: Final = "InternLM/lmdeploy lmdeploy/pytorch/backends/cuda/graph_runner.py `_get_capture_batch_size_impl`"
GRAPHS_STEP: Final = 256
"""Batch sizes with a graph: powers of two up to that, then in steps of it, and the largest [graphs]."""

LEAST_BLOCKS: Final = 16
"""Blocks that a prefill is shortened for [pytorch]."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    backend: str
    fraction: float
    tokens: int  # of a prefill
    sequences: int
    block_tokens: int


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: InvalidSpec or UnknownName for a choice that LMDeploy does not offer
    """
    plan, options = job.plan, typed_options(job, OPTIONS)
    since, until = FAMILIES.get(job.model.family, (LAST, LAST))
    usual = TURBOMIND if since <= last_patch(job.version) < until else PYTORCH
    backend = str(options.get("backend", usual))
    known = BATCHES if last_patch(job.version) >= BATCH_BY_CARD_SINCE else ()
    name, old = job.cluster.gpu.name, backend == PYTORCH and job.version < ONE_PREFILL_SINCE
    return Settings(
        backend=backend,
        fraction=plan.memory_fraction or FRACTION,
        tokens=plan.batched_tokens or (OLD_PREFILL if old else PREFILL),
        sequences=plan.max_sequences or next((size for start, size in known if name.startswith(start)), USUAL_BATCH),
        block_tokens=plan.block_tokens or BLOCK,
    )


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a deployment.

    Engine options: `OPTIONS`.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks whose cache is none of keys and values
    """
    check_degrees(job)
    refuse_encoders(job)
    refuse_other_caches(job)
    settings, stage = settings_of(job), even_stages(job.model.num_layers, 1)[0]
    weights = load_program(job, stage, layout_of(job, vocab_divisor=1), job_formats(job))
    # the longest prefill beside one token of every sequence, and the logits of all sequences
    step = forward_step(job, stage, tokens=settings.tokens + settings.sequences, sequences=settings.sequences,
                        source=SOURCES[settings.backend])
    outside = tuple(outside_allocator(job.cluster.gpu, job.plan.tp))
    loaded = total(weights) if settings.backend == TURBOMIND else reserved_bytes(weights)
    free = job.cluster.gpu.free_bytes - loaded - (job.cluster.gpu.context_bytes or 0)
    free -= sum(tensor.num_bytes for tensor in outside)
    cache, left = _cache(job, settings, free)
    kept = Tensor(name="blocks", num_bytes=cache.num_bytes, category=Category.CACHE, source=SOURCES[settings.backend],
                  formula=Note("{:,} tokens x {:,} B", cache.full_tokens, cache.contents.full_token_bytes))
    program = RankProgram(
        role=stage.role, count=job.plan.tp * job.plan.dp,
        phases={Phase.LOAD: weights, Phase.SERVING: (Alloc(kept), *map(Alloc, _graphs(job, settings, stage)), *step)},
        outside=outside,
    )
    rank = ServingRank(
        program=program, cache=cache, budget=Budget(settings.fraction, max(1, free)),
        startup={"weights": loaded, "activation peak": extent(step).peak, "KV cache": left},
    )
    return Deployment(ranks=(rank,), assumptions=tuple(_assumptions(job, settings)))


def _assumptions(job: ServeJob, settings: Settings) -> Iterator[str]:
    if "backend" not in job.engine_options:
        name = "TurboMind" if settings.backend == TURBOMIND else "PyTorch"
        yield Note("the {} engine (--backend), as LMDeploy chooses", name)
    if job.plan.memory_fraction is None:
        yield Note("{:.0%} of what is free beside the weights for the cache (--cache-max-entry-count)", FRACTION)


def _graphs(job: ServeJob, settings: Settings, stage: Stage) -> Iterator[Tensor]:
    """Those of the PyTorch engine, unless it is eager [graphs]."""
    if settings.backend == PYTORCH and job.plan.graphs:
        most = settings.sequences
        powers = [1 << power for power in range(9) if 1 << power <= most]
        sizes = (*powers, *range(2 * GRAPHS_STEP, most + 1, GRAPHS_STEP))
        yield from captured_graphs(job, stage, tuple({*sizes, most}), source=GRAPHS)


def _cache(job: ServeJob, settings: Settings, free: int) -> tuple[Pools, int]:
    """The cache as the engine sizes it, and how much it may be [bytes]."""
    contents = contents_of((layer.mixer for layer in job.model.main.layers), tp=job.plan.tp, kv_dtype=kv_dtype_of(job),
                           windows=False)
    if kv_dtype_of(job) in QUANTISED:
        heads = sum(max(1, layer.mixer.num_kv_heads // job.plan.tp) for layer in job.model.main.layers
                    if isinstance(layer.mixer, Attention))
        contents = type(contents)(full_token_bytes=contents.full_token_bytes + heads * PARAMETER_BYTES)
    block = settings.block_tokens * contents.full_token_bytes
    left, tokens = round(settings.fraction * free), settings.tokens
    while settings.backend == PYTORCH and tokens:
        kept_free = (tokens + 2 * settings.sequences) * job.model.vocab * 2
        left, tokens = round(settings.fraction * (free - kept_free)), tokens // 2
        if left >= LEAST_BLOCKS * block:
            break
    blocks = max(0, left) // block
    return Pools(contents=contents, full_tokens=blocks * settings.block_tokens, page_tokens=settings.block_tokens,
                 logged="tokens"), left
