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

from vramcast.domain.device import Gpu
from vramcast.domain.job import Phase
from vramcast.domain.model import MLP, Attention, Model, MoE
from vramcast.domain.program import Alloc, Basis, Category, Program, Tensor, extent
from vramcast.domain.rank import RankProgram
from vramcast.domain.serving import Budget, Deployment, ServeJob, ServingRank, Version
from vramcast.domain.version import last_patch
from vramcast.engines.serving.checks import check_degrees
from vramcast.engines.serving.pools import Pools, contents_of
from vramcast.engines.serving.rank import WIDTHS, corrected, dtype_of, job_formats, kv_dtype_of, layout_of, load_program
from vramcast.engines.serving.requests import Known, refuse_encoders, sees, typed_options
from vramcast.engines.serving.stages import (
    Stage,
    even_stages,
    has_fabric,
    reserved_bytes,
    transient,
    widest_moment,
)
from vramcast.errors import Unsupported
from vramcast.states.storage import BITSANDBYTES
from vramcast.units import GIB, MIB

SOURCE: Final = "huggingface/text-generation-inference server/text_generation_server/models/flash_causal_lm.py"
LAUNCHER: Final = "huggingface/text-generation-inference launcher/src/main.rs"

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

NODE_BYTES: Final = round(0.27 * MIB)
"""What the driver holds for one layer of one captured batch size: 13.8 MiB a layer for 51 sizes in 15 start-up logs of
vLLM 0.19 on H100 [vramcast/engines/vllm/process.py]."""

WORKSPACE: Final = 128 * MIB
"""FlashInfer's [server/text_generation_server/layers/attention/flashinfer.py `get_workspace`]."""

FLASHINFER_SM: Final = 80
BLOCK: Final = {True: 1, False: 16}
"""Tokens of a block with FlashInfer, which cards from Ampere on run, and with paged attention [globals]."""

ALONE_GIB: Final = 0.10
LINKED_GIB: Final = 0.54
UNLINKED_GIB: Final = 0.21
"""Memory outside PyTorch's allocator of a rank alone, and more of two that share layers over NVLink and over PCIe: as
start-up logs of vLLM 0.6 to 0.11, whose NCCL and kernels these are [vramcast/engines/vllm/process.py]."""


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
    graphs = GRAPHS if plan.graphs and stored not in BITSANDBYTES else ()
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
    if any(not isinstance(run.layer.mixer, Attention) for run in job.model.main.runs):
        raise Unsupported(
            f"{job.model.name} has layers whose cache is not that of attention, which is not modelled for tgi; "
            "use --engine vllm"
        )
    job = replace(job, version=last_patch(job.version))
    settings, stage = settings_of(job), even_stages(job.model.num_layers, 1)[0]
    weights = load_program(job, stage, layout_of(job, vocab_divisor=1), job_formats(job))
    step, outside = _step(job, settings, stage), tuple(_outside(job.cluster.gpu, job.plan.tp))
    used = reserved_bytes(weights) + extent(step).peak + WORKSPACE + sum(tensor.num_bytes for tensor in outside)
    used += job.cluster.gpu.context_bytes or 0
    cache, left = _cache(job, settings, used)
    kept = (
        Tensor(name="workspace of attention", num_bytes=WORKSPACE, category=Category.WORKSPACES, owner="process",
               source="server/text_generation_server/layers/attention/flashinfer.py"),
        Tensor(name="blocks", num_bytes=cache.num_bytes, category=Category.CACHE, source=SOURCE,
               formula=f"{cache.full_tokens:,} tokens x {cache.contents.full_token_bytes:,} B"),
        *_graphs(job, settings, stage),
    )
    program = RankProgram(
        role=stage.role, count=job.plan.tp,
        phases={Phase.LOAD: weights, Phase.WARM_UP: step, Phase.SERVING: (*map(Alloc, kept), *step)}, outside=outside,
    )
    rank = ServingRank(
        program=program, cache=cache,
        budget=Budget(settings.fraction, round(settings.room * job.cluster.gpu.visible_bytes)),
        startup={"weights": reserved_bytes(weights), "activation peak": extent(step).peak, "KV cache": left},
    )
    return Deployment(ranks=(rank,), assumptions=tuple(_assumptions(job, settings)))


def _assumptions(job: ServeJob, settings: Settings) -> Iterator[str]:
    if job.plan.batched_tokens is None:
        yield f"prefills of {settings.tokens:,} tokens, as the launcher chooses them (--max-batch-prefill-tokens)"
    yield f"{settings.room:.0%} of the card for weights and blocks (TGI_WIGGLE_ROOM)"


def _step(job: ServeJob, settings: Settings, stage: Stage) -> Program:
    """The longest prefill, and its logits: of the last token, in older versions of every one."""
    model, plan, width = job.model, job.plan, WIDTHS[dtype_of(job.model, job.plan.dtype)]
    step = transient(*widest_moment(
        model, stage, tokens=settings.tokens, tp=plan.tp, experts_divided=plan.tp, width=width, source=SOURCE,
    ))
    rows, copies = settings.tokens, 1 if job.version >= IN_PLACE_SINCE else 2
    if job.version >= FREELY_SINCE:
        rows, copies = max(settings.largest, job.plan.max_sequences or 1), 1
    made = copies + (1 / plan.tp if plan.tp > 1 else 0)
    logits = Tensor(
        name="logits", num_bytes=round(rows * model.vocab * made) * width, category=Category.ACTIVATIONS, owner="step",
        formula=f"{rows:,} tokens x {model.vocab:,} x {width} B, {made:g} times", source=SOURCE,
    )
    return corrected(job, step + transient(logits))


def _cache(job: ServeJob, settings: Settings, used: int) -> tuple[Pools, int]:
    """Blocks that fill what is left, and how much that is [bytes]."""
    contents = contents_of((layer.mixer for layer in job.model.main.layers), tp=job.plan.tp, kv_dtype=kv_dtype_of(job),
                           windows=False)
    card, token = job.cluster.gpu.free_bytes, contents.full_token_bytes
    whole = job.cluster.gpu.visible_bytes
    if job.version >= FREELY_SINCE:
        left = card - used - round((1 - settings.fraction * settings.room) * whole)
    else:  # what the warm-up's own tokens take is there already
        own = settings.tokens * token
        left = round((card - used - own - (1 - settings.fraction) * whole) * settings.room) + own
    tokens = max(0, left) // token // settings.block_tokens * settings.block_tokens
    return Pools(contents=contents, full_tokens=tokens, page_tokens=settings.block_tokens, logged="tokens"), left


def _graphs(job: ServeJob, settings: Settings, stage: Stage) -> Iterator[Tensor]:
    """What captured graphs hold: the tensors of the largest, which the others share, and the driver's nodes."""
    if not settings.graphs:
        return
    width = WIDTHS[dtype_of(job.model, job.plan.dtype)]
    step = sum(tensor.num_bytes for tensor in widest_moment(
        job.model, stage, tokens=settings.largest, tp=job.plan.tp, experts_divided=job.plan.tp, width=width,
        source=SOURCE,
    )) + settings.largest * job.model.vocab * width
    nodes = len(settings.graphs) * job.model.num_layers * NODE_BYTES
    yield Tensor(
        name="captured graphs", num_bytes=step + nodes, category=Category.GRAPHS, stream="graphs",
        basis=Basis.ASSUMED, source=f"{SOURCE} `cuda_graph_warmup`",
        formula=f"a step of {settings.largest} sequences; {len(settings.graphs)} sizes x {job.model.num_layers} layers "
                f"x {NODE_BYTES:,} B",
    )


def _outside(gpu: Gpu, tp: int) -> Iterator[Tensor]:
    gib, formula = ALONE_GIB, "one rank"
    if tp > 1:
        gib, formula = gib + (LINKED_GIB if has_fabric(gpu) else UNLINKED_GIB), f"{tp} ranks"
    yield Tensor(
        name="kernels and communicators", num_bytes=round(gib * GIB), category=Category.COMMUNICATION, owner="process",
        basis=Basis.ASSUMED, formula=formula, source="start-up logs of vLLM 0.6 to 0.11; docs/serving.md",
    )
