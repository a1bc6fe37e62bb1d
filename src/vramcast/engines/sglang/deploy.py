"""One SGLang deployment: weights, pools, a prefill chunk, graphs.

[pool] sgl-project/sglang python/sglang/srt/mem_cache/kv_cache_configurator.py `_profile_available_bytes` (before
0.5.20 model_executor/model_runner.py `profile_max_num_token`): the pools get what the driver shows free after the load
less (1 - fraction) of what was free before it; ranks of all stages take the fewest tokens of any
[images] `mm_runtime_reservation_gb`: newer versions keep the cache of image embeddings out of the pools
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Model
from vramcast.domain.program import Alloc, Category, Program, Tensor
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServePlan, ServingRank, Version
from vramcast.domain.version import last_patch
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.pools import Pools, fewest_tokens
from vramcast.engines.serving.rank import (
    EAGLE,
    WIDTHS,
    attending_apart,
    corrected,
    corrected_tensor,
    dtype_of,
    expert_degrees,
    gathered,
    job_formats,
    layout_of,
    load_program,
)
from vramcast.engines.serving.requests import refuse_encoders, sees
from vramcast.engines.serving.stages import (
    Stage,
    even_stages,
    logits,
    reserved_bytes,
    transient,
    widest_moment,
    without_draft,
)
from vramcast.engines.sglang.pools import (
    Sized,
    attention_workspace,
    communication,
    graphs,
    halves,
    padding_bytes,
    request_table,
    running_requests,
    sized,
)
from vramcast.engines.sglang.settings import DRAFT_COUNTED_SINCE, Settings, settings_of
from vramcast.errors import Note, joined
from vramcast.units import MIB

SOURCE: Final = "sgl-project/sglang python/sglang/srt/mem_cache/kv_cache_configurator.py"

VOCAB_MULTIPLE: Final = 64

TABLE_WIDTH: Final = 2
"""Bytes of an element of a draft's tables: they are made in 16 bits."""

WIDE_ROTARY_SINCE: Final[Version] = (0, 4)
"""From then on rotary tables stay in fp32 [python/sglang/srt/layers/rotary_embedding.py]."""

IMAGES_SINCE: Final[Version] = (0, 5, 20)
IMAGE_CACHE: Final = 100 * MIB
"""SGLANG_VLM_CACHE_SIZE_MB [images]."""


class _Worker(NamedTuple):
    """What one pipeline stage's ranks find when they start."""

    stage: Stage
    weights: Program
    loaded: int  # by the driver, of what is there while the pools are sized [bytes]
    outside: tuple[Tensor, ...]
    before: int  # free before the load [bytes]
    left: int  # for the pools [bytes]
    sized: Sized


def deploy(job: ServeJob) -> Deployment:
    """The ranks of an SGLang deployment.

    Engine options: `settings.OPTIONS`.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks that SGLang does not serve
    """
    check_degrees(job)
    refuse_encoders(job)
    job = replace(job, version=last_patch(job.version))
    settings = settings_of(job)
    workers = [_worker(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    tokens = fewest_tokens(worker.sized.pools for worker in workers)
    running = running_requests(tokens, job.context, settings.max_running)
    ranks = tuple(_rank(job, settings, worker, worker.sized.pools.shortened(tokens), running) for worker in workers)
    given = job.plan.memory_fraction is not None
    return Deployment(
        ranks=ranks,
        assumptions=(Note(
            "mem-fraction-static {:.3f}, as asked" if given else
            "mem-fraction-static {:.3f}, SGLang's own choice for the card and the arguments", settings.fraction
        ),),
        warnings=() if settings.max_running is not None else _warnings(job, running),
    )


def _warnings(job: ServeJob, running: int) -> tuple[str, ...]:
    each = -(-job.requests.concurrency // job.plan.dp)
    if each <= running:
        return ()
    return (Note("SGLang runs at most {} requests at once here, the others wait; raise --max-sequences", running),)


def _worker(job: ServeJob, settings: Settings, stage: Stage) -> _Worker:
    plan = job.plan
    layout, formats = layout_of(job, vocab_divisor=VOCAB_MULTIPLE), job_formats(job)
    rotary = 4 if job.version >= WIDE_ROTARY_SINCE else None
    weights = load_program(job, stage, layout, formats, rotary_width=rotary)
    counted = job.version >= DRAFT_COUNTED_SINCE
    loaded = reserved_bytes(weights if counted else without_draft(weights))
    # what a process sees free before it loads anything: the card less its context and its communicators
    outside = tuple(corrected_tensor(job, tensor) for tensor in communication(job))
    before = job.cluster.gpu.free_bytes - (job.cluster.gpu.context_bytes or 0)
    before -= sum(tensor.num_bytes for tensor in outside)
    left = round(settings.fraction * before) - loaded
    if counted and stage.last:
        left -= unused_draft_bytes(job.model, plan, apart=layout.apart)
    if job.version >= IMAGES_SINCE and sees(job.model):
        left -= IMAGE_CACHE
    left = left if plan.cache_bytes is None else plan.cache_bytes
    return _Worker(stage, weights, loaded, outside, before, left, sized(job, settings, stage, left))


def _rank(job: ServeJob, settings: Settings, worker: _Worker, pools: Pools, running: int) -> ServingRank:
    stage, plan = worker.stage, job.plan
    proposed = plan.draft.tokens if plan.draft is not None else 0
    kept: tuple[Tensor, ...] = (
        Tensor(name="token pools", num_bytes=pools.num_bytes, category=Category.CACHE, source=SOURCE,
               formula=joined(", ", (Note("{:,} " + name, count) for name, count in pools.reported_tokens.items()))),
        *_beside_pools(worker.sized, pools),
        corrected_tensor(job, graphs(job, settings)),
        request_table(running, job.context, proposed),
        attention_workspace(),
    )
    serving = (*map(Alloc, kept), *_step(job, settings, stage))
    program = RankProgram(
        role=stage.role,
        count=plan.tp * plan.dp,
        phases={Phase.LOAD: worker.weights, Phase.SERVING: serving},
        outside=worker.outside,
    )
    return ServingRank(
        program=program,
        cache=pools,
        budget=Budget(settings.fraction, worker.before) if plan.cache_bytes is None else None,
        startup={"weights": worker.loaded, "KV cache": worker.left, **halves(job, settings, stage, pools)},
    )


def _beside_pools(sizes: Sized, pools: Pools) -> tuple[Tensor, ...]:
    """What no request fills, and what a draft keeps apart from the target's pools."""
    slots = pools.full_tokens + pools.page_tokens
    tensors = (
        Tensor(name="padding of the pools", num_bytes=padding_bytes(pools), category=Category.CACHE, source=SOURCE),
        Tensor(name="draft pool", num_bytes=slots * sizes.draft_token_bytes, category=Category.DRAFT, owner="draft",
               formula=Note("{:,} tokens x {:,} B", slots, sizes.draft_token_bytes), source=SOURCE),
        Tensor(name="states of proposed tokens", num_bytes=sizes.beside_bytes, category=Category.DRAFT, owner="draft",
               source=f"{SOURCE} `_handle_max_mamba_cache`"),
    )
    return tuple(tensor for tensor in tensors if tensor.num_bytes)


def _step(job: ServeJob, settings: Settings, stage: Stage) -> Program:
    """One prefill chunk, then the logits of as many sequences as graphs are captured for."""
    model, plan = job.model, job.plan
    width = WIDTHS[dtype_of(model, plan.dtype)]
    _, experts_divided = expert_degrees(job)
    step = transient(*widest_moment(
        model, stage, tokens=settings.chunk, tp=plan.tp, experts_divided=experts_divided, width=width, source=SOURCE,
        gathered=gathered(job),
    ))
    if stage.last:
        rows = max(1, settings.graph_sequences)
        step += transient(*logits(model, sequences=rows, width=width, source=SOURCE, copies=attending_apart(job)))
    return corrected(job, step)


def unused_draft_bytes(model: Model, plan: ServePlan, *, apart: int = 1) -> int:
    """Embedding and head of a draft that the target's take the place of: there while the pools are sized [bytes].

    Source: github.com/sgl-project/sglang/issues/36452; EAGLE-3 drafts use a head of their own
    """
    draft, tp = plan.draft, plan.tp
    if draft is None or not (draft.kind in EAGLE or draft.kind == "mtp"):
        return 0
    table = TABLE_WIDTH * model.vocab * model.hidden
    embedding, head = table // tp if apart == 1 else table, table // (tp * apart)
    return embedding + (head if draft.kind != "eagle3" else 0)
