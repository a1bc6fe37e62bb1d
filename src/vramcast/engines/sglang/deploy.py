"""One SGLang deployment: weights, pools, a prefill chunk, graphs.

[pool] sgl-project/sglang python/sglang/srt/model_executor/model_runner.py `profile_max_num_token`: the cache gets what
is free after the load less (1 - fraction) of what was free before it
[swa] `set_num_token_hybrid`: windows have a pool of their own, 0.8 times as many tokens as full attention
[mamba] `handle_max_mamba_cache`: recurrent states get 0.9 times what keys and values get
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from vramcast.domain.job import Phase
from vramcast.domain.model import Model
from vramcast.domain.program import Alloc, Basis, Category, Tensor
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServePlan, ServingRank
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.corrected import corrected, corrected_tensor
from vramcast.engines.serving.drafts import EAGLE, draft_mixers
from vramcast.engines.serving.forward import logits, transient, widest_moment
from vramcast.engines.serving.links import has_fabric
from vramcast.engines.serving.pools import Contents, Pools, contents_of
from vramcast.engines.serving.rank import WIDTHS, dtype_of, job_formats, kv_dtype_of, layout_of, load_program
from vramcast.engines.serving.stages import Stage, even_stages
from vramcast.engines.serving.weights import total
from vramcast.engines.sglang.settings import Settings, settings_of
from vramcast.units import GIB, MIB

SOURCE: Final = "sgl-project/sglang python/sglang/srt/model_executor/model_runner.py"

WINDOW_RATIO: Final = 0.8
"""`--swa-full-tokens-ratio`: tokens in the windows' pool for each of full attention [swa]."""

STATE_RATIO: Final = 0.9
"""`--mamba-full-memory-ratio`: bytes of recurrent states for each of keys and values [mamba]."""

GRAPH_BYTES: Final = 2 * MIB
"""CUDA graphs of one batch size, as the reserve counts them [server_args.py]."""

VOCAB_MULTIPLE: Final = 64

COMMUNICATION_GIB: Final = {True: 1.5, False: 0.2}
"""Whether the cards share a fabric -> taken before a rank looks at its free memory [GiB]; one log each."""

TABLE_WIDTH: Final = 2
"""Bytes of an element of a draft's tables: they are made in 16 bits."""


def deploy(job: ServeJob) -> Deployment:
    """The ranks of an SGLang deployment.

    Raises: InvalidSpec for degrees that do not divide
    """
    check_degrees(job)
    settings = settings_of(job)
    ranks = [_rank(job, settings, stage) for stage in even_stages(job.model.num_layers, job.plan.pp)]
    fraction = f"mem-fraction-static {settings.fraction:.3f}"
    given = "as asked" if job.plan.memory_fraction is not None else "SGLang's own choice for the card and the arguments"
    return Deployment(ranks=tuple(ranks), assumptions=(f"{fraction}, {given}",))


def _rank(job: ServeJob, settings: Settings, stage: Stage) -> ServingRank:
    model, plan = job.model, job.plan
    layout, formats = layout_of(job, vocab_divisor=VOCAB_MULTIPLE), job_formats(job)
    weights = load_program(job, stage, layout, formats)
    held = _unused_draft_tables(job, stage)
    # what a process sees free before it loads anything: the card less its context and its communicators
    outside = tuple(corrected_tensor(job, tensor) for tensor in _communication(job))
    before = job.cluster.gpu.visible_bytes - (job.cluster.gpu.context_bytes or 0)
    before -= sum(tensor.num_bytes for tensor in outside)
    left = round(settings.fraction * before) - total(weights) - held.num_bytes
    cache = _pools(job, settings, stage, max(0, left) if plan.cache_bytes is None else plan.cache_bytes)
    width = WIDTHS[dtype_of(model, plan.dtype)]
    step = transient(*widest_moment(
        model, stage, tokens=settings.chunk, tp=plan.tp, experts_divided=layout.etp, width=width, source=SOURCE,
    ))
    if stage.last:
        step += transient(*logits(model, sequences=max(1, settings.graph_sequences), width=width, source=SOURCE))
    step = corrected(job, step)
    kept = Tensor(name="token pools", num_bytes=cache.num_bytes, category=Category.CACHE, source=SOURCE)
    graphs = Tensor(
        name="captured graphs", num_bytes=settings.graph_sequences * GRAPH_BYTES, category=Category.GRAPHS,
        stream="graphs", basis=Basis.ASSUMED, source="sgl-project/sglang python/sglang/srt/server_args.py",
        formula=f"{settings.graph_sequences} sequences x {GRAPH_BYTES // MIB} MiB",
    )
    program = RankProgram(
        role=stage.role,
        count=plan.tp * plan.dp,
        phases={Phase.LOAD: weights, Phase.SERVING: (Alloc(kept), Alloc(corrected_tensor(job, graphs)), *step)},
        outside=outside,
    )
    return ServingRank(
        program=program,
        cache=cache,
        budget=Budget(settings.fraction, before),
        startup={"weights": total(weights), "KV cache": left},
    )


def _unused_draft_tables(job: ServeJob, stage: Stage) -> Tensor:
    """Embedding and head of a draft, made before the target's take their place: there while the pools are sized."""
    model = job.model
    return Tensor(
        name="unused draft tables", num_bytes=unused_draft_bytes(model, job.plan) if stage.last else 0,
        category=Category.DRAFT, owner="draft", formula=f"2 x {model.vocab:,} x {model.hidden:,} x {TABLE_WIDTH} B",
        source="github.com/sgl-project/sglang/issues/36452",
    )


def unused_draft_bytes(model: Model, plan: ServePlan) -> int:
    """Of a draft whose embedding and head are the target's [bytes].

    Source: github.com/sgl-project/sglang/issues/36452 (5.08 GiB for a vocabulary of 248,320 x 5,120 on one rank)
    """
    draft = plan.draft
    if draft is None or not (draft.kind in EAGLE or draft.kind == "mtp"):
        return 0
    return 2 * TABLE_WIDTH * model.vocab * model.hidden // plan.tp


def _communication(job: ServeJob) -> tuple[Tensor, ...]:
    if job.plan.tp * job.plan.pp == 1:
        return ()
    gib = COMMUNICATION_GIB[has_fabric(job.cluster.gpu)]
    return (Tensor(
        name="communicators and custom all-reduce", num_bytes=round(gib * GIB), category=Category.COMMUNICATION,
        owner="process", basis=Basis.MEASURED, source="start-up logs on 4 x H100 (NVLink) and 4 x 24 GB cards (PCIe)",
    ),)


def _pools(job: ServeJob, settings: Settings, stage: Stage, num_bytes: int) -> Pools:
    """The pools that share the cache's bytes [swa, mamba]."""
    mixers = chain((layer.mixer for layer in stage.layers(job.model)), draft_mixers(job) if stage.last else ())
    contents = contents_of(mixers, tp=job.plan.tp, kv_dtype=kv_dtype_of(job))
    if not contents.full_token_bytes:  # nothing but windows: they are kept at full length
        again = (layer.mixer for layer in stage.layers(job.model))
        contents = contents_of(again, tp=job.plan.tp, kv_dtype=kv_dtype_of(job), windows=False)
    state_share = STATE_RATIO / (1 + STATE_RATIO) if contents.state_bytes else 0.0
    if not contents.full_token_bytes:
        state_share = 1.0
    page = settings.page_tokens
    tokens = _full_tokens(contents, round((1 - state_share) * num_bytes)) // page * page
    return Pools(
        contents=contents,
        full_tokens=tokens,
        window_tokens=int(WINDOW_RATIO * tokens) // page * page if contents.window_token_bytes else 0,
        states=int(state_share * num_bytes) // contents.state_bytes if contents.state_bytes else 0,
        page_tokens=page,
        in_flight=settings.chunk,
        logged="tokens",
    )


def _full_tokens(contents: Contents, num_bytes: int) -> int:
    """Tokens of full attention, each bringing its share of window tokens."""
    per_token = contents.full_token_bytes + WINDOW_RATIO * contents.window_token_bytes
    return int(num_bytes / per_token) if per_token else 0
