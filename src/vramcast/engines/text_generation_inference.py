"""Text Generation Inference: a prefill is run first, and the cache takes all but a tenth of what the card has left.

[launcher] huggingface/text-generation-inference launcher/src/main.rs `compute_optimal`, `vram_maximum`, `Config::flop`,
`ComputeType::f16_flop`, `resolve_attention`, tags v2.0.0 to v3.3.7
[warm-up] server/text_generation_server/models/flash_causal_lm.py `warmup`, router client `warmup`: a batch of as many
tokens as a prefill may have, whose blocks are among those that are counted afterwards
[globals] server/text_generation_server/models/globals.py `TGI_WIGGLE_ROOM`, `BLOCK_SIZE`
[head] server/text_generation_server/layers/tensor_parallel.py `TensorParallelHead`: logits of a part of the vocabulary,
gathered into another tensor
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import MLP, Attention, Model, MoE
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor, extent, transient
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank, Version
from vramcast.domain.version import last_patch
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.rank import (
    WIDTHS,
    corrected,
    dtype_of,
    forward_step,
    job_formats,
    kv_dtype_of,
    layout_of,
    load_program,
)
from vramcast.engines.serving.requests import Known, refuse_encoders, refuse_other_caches, sees, typed_options
from vramcast.engines.serving.stages import (
    Pools,
    Stage,
    contents_of,
    even_stages,
    peak_reserved_bytes,
    reserved_bytes,
)
from vramcast.engines.vllm.process import captured_graphs, outside_allocator
from vramcast.errors import Note
from vramcast.states.storage import BITSANDBYTES
from vramcast.units import MIB, ceil_div

SOURCE: Final = "huggingface/text-generation-inference server/text_generation_server/models/flash_causal_lm.py"

OPTIONS: Final[dict[str, Known]] = {
    "wiggle-room": Known(float, least=0.01, most=0.999),  # TGI_WIGGLE_ROOM
    "largest-graph": Known(int, least=1, most=4096),  # of --cuda-graphs
}
"""Engine options and what their values may be."""

FREELY_SINCE: Final[Version] = (3, 0)
"""From then on the share is of the whole card, prefills are as long as the card computes best, and their logits are
those of the last tokens [warm-up] [launcher]."""

IN_PLACE_SINCE: Final[Version] = (2, 4)
"""From then on log-probabilities of a prefill are written over its logits, before beside them [warm-up]."""

ROOMS: Final[tuple[tuple[Version, float], ...]] = (
    ((3, 3), 0.90), ((3, 1), 0.93), ((3, 0), 0.95), ((2, 4), 0.90), ((2, 0), 0.95),
)
"""TGI_WIGGLE_ROOM by version: the share that blocks may take [globals]."""

LONGEST: Final = 4096
"""`max_total_tokens` of versions before 3.0 where nobody says it, and a prefill's tokens where the card or the network
is none that the launcher knows [launcher]."""

EDGE: Final = 50
"""Tokens by which a prefill of versions before 2.4 is longer than the longest prompt [launcher]."""

SEEING: Final = {"qwen2_vl": 10_000, "qwen2_5_vl": 10_000, "gemma3": 8_000}
"""Family -> the same of networks that see, from 3.1.1 on [launcher]."""
SEEING_SINCE: Final[Version] = (3, 1, 1)

COMPUTE: Final[dict[str, float]] = {
    "l4": 121e12, "l40": 181e12, "l40s": 363e12, "a10g": 125e12, "a40": 149e12, "a100-sxm4-40gb": 312e12,
    "a100-sxm4-80gb": 312e12, "a100-pcie-80gb": 312e12, "h100-sxm-80gb": 900e12, "h100-nvl-94gb": 900e12,
    "h200-sxm-141gb": 989e12,
}
"""Card, by the name that nvidia-smi prints, -> FLOP/s that the launcher reckons with; it knows no others [launcher]."""

LEAST_COMPUTED: Final = 100
ROOM_OF_LAUNCHER: Final = 0.95
"""Tokens below which the launcher takes its reckoning for an error, and its own share of the card [launcher]."""

GRAPHS: Final = (1, 2, 4, 8, 16, 32)
"""Batch sizes with a graph where nobody says others; none with bitsandbytes [launcher]."""

WORKSPACE: Final = 128 * MIB
"""FlashInfer's [server/text_generation_server/layers/attention/flashinfer.py `get_workspace`]."""

FLASHINFER_SM: Final = 80
BLOCK: Final = {True: 1, False: 16}
"""Tokens of a block with FlashInfer, which cards from Ampere on run, and with paged attention [globals]."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    fraction: float  # of the card, --cuda-memory-fraction
    room: float  # of that, which blocks may take
    tokens: int  # of a prefill
    graphs: tuple[int, ...]  # captured batch sizes
    block_tokens: int

    @property
    def largest(self) -> int:
        """The largest batch size with a graph; 0 without graphs."""
        return max(self.graphs, default=0)


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with.

    Raises: InvalidSpec or UnknownName for a choice that the server does not offer
    """
    plan, options = job.plan, typed_options(job, OPTIONS)
    stored = plan.weights or job.model.quantisation or ""
    graphs: tuple[int, ...] = GRAPHS if plan.graphs and stored not in BITSANDBYTES else ()
    if (largest := options.get("largest-graph")) is not None:
        graphs = (*(size for size in GRAPHS if size < int(largest)), int(largest))
    room = next(share for since, share in ROOMS if job.version >= since)
    return Settings(
        fraction=plan.memory_fraction or 1.0,
        room=float(options.get("wiggle-room", room)),
        tokens=plan.batched_tokens or prefill_tokens(job),
        graphs=graphs,
        block_tokens=BLOCK[(job.cluster.gpu.sm or 0) >= FLASHINFER_SM],
    )


def prefill_tokens(job: ServeJob) -> int:
    """`max_batch_prefill_tokens` where nobody says it: what the card computes in a second, if memory holds it."""
    model = job.model
    if job.version < FREELY_SINCE:
        longest = min(LONGEST, model.context or LONGEST)
        return longest if job.version >= IN_PLACE_SINCE else longest - 1 + EDGE
    seeing = SEEING.get(model.family, LONGEST) if job.version >= SEEING_SINCE else LONGEST
    tokens = seeing if sees(model) else (_computed(job) or LONGEST)
    tokens = min(tokens, model.context or tokens)
    return min(tokens, _held(job) or tokens)


class _Widths(NamedTuple):
    """What the launcher reads of a config.json: one attention and one feed-forward block for all layers."""

    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    active: int  # experts of a token, shared ones too
    experts: int


def _widths(model: Model) -> _Widths | None:
    layer = model.main.runs[-1].layer
    mixer, channel = layer.mixer, layer.channel
    if not isinstance(mixer, Attention):
        return None
    if isinstance(channel, MoE):
        shared = channel.shared_width // channel.expert.width
        return _Widths(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, channel.expert.width,
                       channel.top_k + shared, channel.num_experts)
    inner = channel.width if isinstance(channel, MLP) else 0
    return _Widths(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, inner, 1, 1)


def _computed(job: ServeJob) -> int | None:
    """Tokens that the launcher takes the cards to compute in a second; None for cards it does not know."""
    rate, widths, h = COMPUTE.get(job.cluster.gpu.name), _widths(job.model), job.model.hidden
    if rate is None or widths is None:
        return None
    attention = 2 * widths.head_dim * h * (3 * widths.heads + 2 * widths.kv_heads)
    flop = (attention + 6 * h * widths.inner * widths.active) * job.model.num_layers
    tokens = int(rate * job.plan.tp / flop)
    return tokens if tokens > LEAST_COMPUTED else None


def _held(job: ServeJob) -> int | None:
    """Tokens whose keys, values and feed-forward blocks the launcher takes the cards to hold beside 16-bit weights."""
    gpu, widths, model = job.cluster.gpu, _widths(job.model), job.model
    if widths is None or job.model.quantisation or job.plan.weights:
        return None
    given = int((gpu.smi_total_bytes or gpu.visible_bytes) * job.plan.tp * (job.plan.memory_fraction or 1.0)
                * ROOM_OF_LAUNCHER)
    attention = (widths.heads + 2 * widths.kv_heads) * widths.head_dim + widths.heads * widths.head_dim * model.hidden
    layer = attention + 3 * widths.inner * widths.experts * model.hidden
    weights = 2 * (layer * model.num_layers + 2 * model.hidden * model.vocab)
    token = 4 * widths.kv_heads * widths.head_dim * model.num_layers + 6 * widths.experts * (
        widths.inner + widths.inner // 2)
    return (given - weights) // token if given > weights else None


def deploy(job: ServeJob) -> Deployment:
    """The ranks of a deployment: --num-shard cards that share every layer.

    Engine options: `OPTIONS`.

    Raises: InvalidSpec for degrees that do not divide, Unsupported for networks whose cache is none of keys and values
    """
    check_degrees(job)
    refuse_encoders(job)
    refuse_other_caches(job)
    job = replace(job, version=last_patch(job.version))
    settings, stage = settings_of(job), even_stages(job.model.num_layers, 1)[0]
    weights = load_program(job, stage, layout_of(job, vocab_divisor=1), job_formats(job))
    contents = contents_of((layer.mixer for layer in job.model.main.layers), tp=job.plan.tp, kv_dtype=kv_dtype_of(job),
                           windows=False)
    tried = _blocks(_tried_tokens(job, settings) * contents.full_token_bytes, "of the warm-up")
    step, outside = _warm_up(job, settings, stage), tuple(outside_allocator(job.cluster.gpu, job.plan.tp))
    used = reserved_bytes((*weights, Alloc(_workspace()))) + peak_reserved_bytes(step)
    used += (job.cluster.gpu.context_bytes or 0) + sum(tensor.num_bytes for tensor in outside)
    left = _left(job, settings, used, tried.num_bytes)
    tokens = max(0, left) // contents.full_token_bytes // settings.block_tokens * settings.block_tokens
    cache = Pools(contents=contents, full_tokens=tokens, page_tokens=settings.block_tokens, logged="tokens")
    kept = (
        _workspace(), _blocks(cache.num_bytes, Note("{:,} tokens x {:,} B", tokens, contents.full_token_bytes)),
        *captured_graphs(job, stage, settings.graphs, source=f"{SOURCE} `cuda_graph_warmup`"),
    )
    program = RankProgram(
        role=stage.role, count=job.plan.tp,
        phases={
            Phase.LOAD: weights,
            Phase.WARM_UP: (Alloc(tried), *step, Free(tried)),
            Phase.SERVING: (*map(Alloc, kept), *_step(job, settings, stage)),
        },
        outside=outside,
    )
    rank = ServingRank(
        program=program, cache=cache,
        budget=Budget(settings.fraction, round(settings.room * job.cluster.gpu.visible_bytes)),
        startup={"weights": reserved_bytes(weights), "activation peak": extent(step).peak, "KV cache": left},
    )
    return Deployment(ranks=(rank,), assumptions=tuple(_assumptions(job, settings)))


def _tried_tokens(job: ServeJob, settings: Settings) -> int:
    """Tokens whose blocks the warm-up's own requests take: as many requests as a prefill has longest prompts, each as
    long as a sequence may be; from 3.0 on one that asks for one token more [warm-up]."""
    if job.version >= FREELY_SINCE:
        return settings.tokens + 1
    usual = settings.tokens - (0 if job.version >= IN_PLACE_SINCE else EDGE)
    return ceil_div(settings.tokens, max(1, job.requests.input_len or usual)) * job.context


def _left(job: ServeJob, settings: Settings, used: int, tried: int) -> int:
    """What blocks may take [bytes].

    Args:
        used: by all else after the warm-up, what PyTorch keeps included [bytes]
        tried: by the warm-up's own blocks, which count beside what the share leaves [bytes]
    """
    card, whole = job.cluster.gpu.free_bytes, job.cluster.gpu.visible_bytes
    if job.version >= FREELY_SINCE:
        return card - used - round((1 - settings.fraction * settings.room) * whole)
    return round((card - used - tried - (1 - settings.fraction) * whole) * settings.room) + tried


def _workspace() -> Tensor:
    return Tensor(name="workspace of attention", num_bytes=WORKSPACE, category=Category.WORKSPACES, owner="process",
                  source="server/text_generation_server/layers/attention/flashinfer.py")


def _blocks(num_bytes: int, formula: str) -> Tensor:
    return Tensor(name="blocks", num_bytes=num_bytes, category=Category.CACHE, source=SOURCE, formula=formula)


def _assumptions(job: ServeJob, settings: Settings) -> Iterator[str]:
    if job.plan.batched_tokens is None:
        yield Note(
            "prefills of {:,} tokens, as the launcher chooses them (--max-batch-prefill-tokens)", settings.tokens
        )
    yield Note("{:.0%} of the card for weights and blocks (TGI_WIGGLE_ROOM)", settings.room)


def _warm_up(job: ServeJob, settings: Settings, stage: Stage) -> Program:
    """The longest prefill that may come, with log-probabilities of every token in versions before 3.0."""
    if job.version >= FREELY_SINCE:
        return _step(job, settings, stage)
    return _step(job, settings, stage, rows=settings.tokens, copies=1 if job.version >= IN_PLACE_SINCE else 2)


def _step(job: ServeJob, settings: Settings, stage: Stage, *, rows: int | None = None, copies: int = 1) -> Program:
    """The longest prefill and its logits: of the last token of every sequence, unless log-probabilities are asked for.

    Args:
        rows: tokens whose logits are made
        copies: of the logits alive at once, beside the part of one rank that is gathered [head]
    """
    model, plan, width = job.model, job.plan, WIDTHS[dtype_of(job.model, job.plan.dtype)]
    rows = rows or max(settings.largest, plan.max_sequences or 1)
    step = forward_step(job, stage, tokens=settings.tokens, source=SOURCE)
    whole = [("logits", 1), ("log-probabilities", 1)][:copies]
    parts = [("logits of one rank", plan.tp)] if plan.tp > 1 else []
    logits = (Tensor(
        name=name, num_bytes=rows * ceil_div(model.vocab, divided) * width, category=Category.ACTIVATIONS, owner="step",
        formula=Note("{:,} tokens x {:,} x {} B", rows, ceil_div(model.vocab, divided), width), source=SOURCE,
    ) for name, divided in (*parts, *whole))
    return step + corrected(job, transient(*logits))
