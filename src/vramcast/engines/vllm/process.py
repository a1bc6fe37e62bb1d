"""What a vLLM process takes beside weights, activations and cache: communication, kernels, graphs, slots for adapters.

What cannot be derived is measured: the tables hold what start-up logs print, with the runs they come from.

[sizes] vllm-project/vllm vllm/config/vllm.py `_set_cudagraph_sizes`, for V0 vllm/worker/model_runner.py
[estimate] vllm/v1/worker/gpu_model_runner.py `profile_cudagraph_memory`: the largest capture and a few more, scaled
[lora] vllm/config/compilation.py `cudagraph_specialize_lora`: once with adapters and once without
[worker] vllm-project/vllm vllm/v1/worker/gpu_worker.py `determine_available_memory`: `non_torch` is what the driver
says is in use beyond PyTorch's memory since the worker began, so the CUDA context is outside it
[embedding] vllm-project/vllm vllm/lora/layers/vocal_parallel_embedding.py, logits_processor.py `create_lora_weights`,
for the networks whose class lists them as `embedding_modules`
[experts] vllm/lora/layers/fused_moe.py `FusedMoEWithLoRA`
[extra] vllm/config/lora.py `lora_extra_vocab_size`, to 0.11: rows of embedding and head for tokens an adapter adds

What a process of an engine holds beside its own tensors where no log of that engine says it: as vLLM's logs have it.

Both start the same NCCL, the same kernels of attention and the same graphs of CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from vramcast.domain.device import Gpu
from vramcast.domain.model import Model, MoE
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import ServeJob, ServePlan, Version
from vramcast.engines.serving.rank import WIDTHS, dtype_of, expert_degrees
from vramcast.engines.serving.stages import Stage, has_fabric, inner_width, widest_moment
from vramcast.engines.vllm.profile import drawn
from vramcast.engines.vllm.settings import Settings
from vramcast.errors import Note
from vramcast.units import GIB, MIB, ceil_div


def outside_allocator(gpu: Gpu, tp: int) -> Iterator[Tensor]:
    """Kernels and communicators outside PyTorch's memory and the CUDA context of one rank."""
    alone, linked = ALONE[-1], LINKED[-1]
    more = 0.0 if tp == 1 else linked.linked if has_fabric(gpu) else linked.unlinked
    yield Tensor(
        name="kernels and communicators", num_bytes=round((alone.gib + more) * GIB), category=Category.COMMUNICATION,
        owner="process", basis=Basis.ASSUMED, formula=f"tensor parallelism {tp}", source=f"vLLM's: {linked.source}",
    )


def captured_graphs(job: ServeJob, stage: Stage, sizes: Sequence[int], *, source: str) -> Iterator[Tensor]:
    """What graphs of those batch sizes hold: tensors of the largest, which the others share, and the driver's nodes."""
    if not sizes:
        return
    width, row = WIDTHS[dtype_of(job.model, job.plan.dtype)], TAKEN[0]
    step = sum(tensor.num_bytes for tensor in widest_moment(
        job.model, stage, tokens=max(sizes), tp=job.plan.tp, experts_divided=job.plan.tp, width=width, source=source,
    )) + max(sizes) * job.model.vocab * width
    node = round(row.per_layer / row.sizes * MIB)
    yield Tensor(
        name="captured graphs", num_bytes=step + len(sizes) * job.model.num_layers * node, category=Category.GRAPHS,
        stream="graphs", basis=Basis.ASSUMED, source=Note("{}; nodes as in vLLM's {}", source, row.source),
        formula=Note("a step of {}; {} sizes x {} layers x {:,} B", max(sizes), len(sizes), job.model.num_layers, node),
    )


class Graphs(Struct, frozen=True):
    """Captured graphs of all batch sizes: so much, and more for layers, their widths and for experts [MiB]."""

    since: Version
    base: float
    per_layer: float
    per_hidden: float  # for 1,024 channels of the residual stream: buffers of the widest layer
    per_inner: float  # for 1,024 channels of a feed-forward block of one rank
    per_expert_layer: float  # such layers capture more kernels
    sizes: int  # batch sizes captured in these runs
    first: float  # share that the first size takes alone
    adapters: float  # times as much with slots for adapters
    source: str


TAKEN: Final[tuple[Graphs, ...]] = (
    Graphs(
        (0, 12), 162, 13.8, 49.6, 8.5, 25, 51, 0.2, 3.0,
        "15 start-up logs of 0.19 on H100, 16 to 80 dense layers, within 7 %, 4 with experts; adapters: as in 0.11.2",
    ),
    Graphs(
        (0, 11, 1), 113, 9.7, 34.7, 6, 17.5, 51, 0.2, 3.0,
        "as 0.10; adapters: captured once with and once without them, twice the kernels with: one log of 0.11.2 on L4",
    ),
    Graphs((0, 8), 113, 9.7, 34.7, 6, 17.5, 51, 0.2, 2.0, "those of 0.19 less a third: one log of 0.10.2"),
    Graphs((0, 0), 0, 5.6, 0, 0, 6, 35, 0.0, 3.5, "5 start-up logs of 0.7 to 0.9 on T4, four of them with adapters"),
)
"""Version -> what the driver has less when all are captured; the last row is the V0 engine's."""

ESTIMATED: Final = Graphs(
    (0, 18), -89, 12.8, 97.6, 6.2, 25, 51, 0.2, 3.0, "15 start-up logs of 0.19 on H100, half of them within 7 %"
)
"""What the profile expects them to take [estimate]."""

PACKED_SIZES: Final = 2
"""Captures of so few sizes are of one token each, which is multiplied with packed matrices."""

LARGEST: Final = 512
LARGEST_BLACKWELL: Final = 1024
BLACKWELL_SINCE: Final[Version] = (0, 31)
GPT_OSS_LARGEST: Final[tuple[tuple[Version, int], ...]] = (((0, 11, 1), 1024), ((0, 11), 992), ((0, 0), 1024))
"""Largest batch with a graph; of data-centre Blackwell; of gpt-oss by version, in sixteens from 256 on
[vllm/model_executor/models/config.py `GptOssForCausalLMConfig`, wheels 0.11.0, 0.11.2, 0.19.0]."""

V0_LARGEST: Final = 256
SIXTEENS_SINCE: Final[Version] = (0, 11, 1)
"""Before, sizes went up in eights to the end."""

TWICE_SINCE: Final[Version] = (0, 10)
"""From then on no size is above twice the sequences [sizes]."""


def captured_sizes(settings: Settings, model: Model, gpu: Gpu) -> int:
    """Batch sizes with a graph: 1, 2, 4, eights, from 256 on sixteens [sizes]."""
    if settings.eager:
        return 0
    if settings.options.graph_sizes is not None:
        return settings.options.graph_sizes
    return sum(1 for _ in _sizes(settings, model, gpu))


def _sizes(settings: Settings, model: Model, gpu: Gpu) -> Iterator[int]:
    oss = settings.v1 and model.family == "gpt_oss"
    most = next(most for since, most in GPT_OSS_LARGEST if settings.version >= since) if oss else LARGEST
    if settings.version >= BLACKWELL_SINCE and gpu.sm in (100, 103):
        most = max(most, LARGEST_BLACKWELL)
    if not settings.v1:
        most = V0_LARGEST
    asked = settings.options.largest_graph
    most = most if asked is None else asked
    step = 16 if oss or (settings.v1 and settings.version >= SIXTEENS_SINCE) else 8
    largest = min(most, settings.batched_tokens)
    if settings.version >= TWICE_SINCE and asked is None:
        largest = min(largest, 2 * settings.max_sequences)
    if not settings.v1:  # the sequences themselves, rounded up
        largest = min(largest, max(4, -(-settings.max_sequences // 8) * 8) if settings.max_sequences > 2 else 2)
    for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, step)):
        if size <= largest:
            yield size


def graphs(model: Model, stage: Stage, settings: Settings, gpu: Gpu, *, plan: ServePlan, unpacked: int) -> Tensor:
    """CUDA graphs of every captured batch size.

    Args:
        plan: parallelism and slots for adapters
        unpacked: largest matrix that kernels unpack for a product of several tokens [bytes]
    """
    row = next(row for row in TAKEN if settings.version >= row.since) if settings.v1 else TAKEN[-1]
    sizes = captured_sizes(settings, model, gpu)
    held = unpacked if sizes > PACKED_SIZES else 0
    return Tensor(
        name="captured graphs", num_bytes=_captured(row, model, stage, sizes=sizes, plan=plan) + held,
        category=Category.GRAPHS, stream="graphs", basis=Basis.MEASURED,
        formula=Note(
            "{} batch sizes; {} MiB + {} MiB a layer for {}", sizes, row.base, row.per_layer, row.sizes
        ), source=row.source,
    )


def expected_bytes(model: Model, stage: Stage, settings: Settings, gpu: Gpu, *, plan: ServePlan) -> int:
    """What the profile of a version that captures a few graphs ahead expects all of them to take [estimate]."""
    return _captured(ESTIMATED, model, stage, sizes=captured_sizes(settings, model, gpu), plan=plan)


def _captured(row: Graphs, model: Model, stage: Stage, *, sizes: int, plan: ServePlan) -> int:
    channels = [run.layer.channel for run in stage.runs(model)]
    layers = sum(run.count for run in stage.runs(model))
    expert_layers = sum(run.count for run in stage.runs(model) if isinstance(run.layer.channel, MoE))
    inner = max((inner_width(channel, plan.tp) for channel in channels), default=0)
    whole = row.base + row.per_layer * layers + row.per_expert_layer * expert_layers
    whole = max(0.0, whole + (row.per_hidden * model.hidden + row.per_inner * inner) / 1024)
    share = row.first + (1 - row.first) * sizes / row.sizes if sizes else 0.0
    return round(whole * share * (row.adapters if plan.lora_slots else 1) * MIB)


FLASHINFER_WORKSPACE: Final[tuple[tuple[Version, int], ...]] = (((0, 12), 394), ((0, 0), 256))
FLASHINFER_LATENT: Final = 128
"""Version -> scratch of FlashInfer's kernels, and of those for latent attention, taken with the first step after the
cache [MiB] [vllm/v1/attention/backends/flashinfer.py VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE, mla/flashinfer_mla.py]."""


def attention_workspace(settings: Settings) -> Tensor | None:
    """Scratch of the attention kernels, which no budget knows."""
    if not settings.attention.startswith("FLASHINFER"):
        return None
    plain = next(mib for since, mib in FLASHINFER_WORKSPACE if settings.version >= since)
    mib = FLASHINFER_LATENT if settings.attention.endswith("_MLA") else plain
    return Tensor(
        name="attention workspace", num_bytes=mib * MIB, category=Category.WORKSPACES, owner="process",
        formula=f"{mib} MiB", source="vllm-project/vllm vllm/v1/attention/backends/flashinfer.py",
    )


WORKER: Final = "vllm-project/vllm vllm/v1/worker/gpu_worker.py"


class Alone(Struct, frozen=True):
    """Memory outside PyTorch's allocator of one rank that talks to no other: kernels' modules, handles [GiB]."""

    since: Version
    archs: tuple[str, ...]  # of cards; none: the others
    gib: float
    source: str


ALONE: Final[tuple[Alone, ...]] = (
    Alone((0, 12), ("Hopper",), 0.25, "49 logs of 0.19 on H100: 0.24 to 0.26, one 0.46"),
    Alone((0, 0), ("Turing", "Volta", "Pascal"), 0.04, "5 logs of 0.7 to 0.9 on T4: 0.01 to 0.05"),
    Alone((0, 0), ("Hopper",), 0.13, "2 logs of 0.11 on H100: 0.13"),
    Alone((0, 0), (), 0.10, "7 logs of 0.6 to 0.31 on cards of 16 to 80 GB: 0.03 to 0.15, one 0.28"),
)


class Linked(Struct, frozen=True):
    """The same with ranks that share layers, or hand them on [GiB]."""

    since: Version
    pipeline: float  # a pipeline stage of one rank
    linked: float  # tensor parallelism over NVLink, two ranks: NCCL and custom all-reduce
    per_doubling: float  # for each doubling of the ranks
    unlinked: float  # tensor parallelism over PCIe
    before_linked: float  # taken over NVLink before the profile begins, so that no budget knows it
    before_pipeline: float
    source: str


LINKED: Final[tuple[Linked, ...]] = (
    Linked((0, 12), 0.07, 2.07, 0.07, 0.30, 1.02, 0.92, "10 logs of 0.19 on H100; 0.2 to 0.3 over PCIe"),
    Linked((0, 0), 0.07, 0.54, 0.07, 0.21, 0.0, 0.0, "start-up logs of 0.6 to 0.11 on H100 and L40S"),
)

SAMPLER_WARM_UP_SINCE: Final[Version] = (0, 9)
"""From then on the sampler is warmed up after the cache is taken [vllm/v1/worker/gpu_worker.py]."""

FREED_BYTES: Final = 10
"""Bytes per sequence and vocabulary entry that blocks of experts and kernels hold, freed or not, while the sampler is
warmed up. From runs of 0.19 at fraction 0.95 on H100: one with 1.7 GiB left over ran out of memory (201,088 entries),
one with 2.4 GiB served (102,400 entries); dense ones served with 0.8."""

FREED_SINCE: Final[Version] = (0, 12)
"""Under 0.11 gpt-oss-120b serves at fraction 0.95 on the same card, which such blocks would not leave room for."""


def non_torch(plan: ServePlan, gpu: Gpu, settings: Settings) -> Tensor:
    """What the profile finds in use beside PyTorch's memory."""
    alone = next(row for row in ALONE if settings.version >= row.since and (not row.archs or gpu.arch in row.archs))
    row = next(row for row in LINKED if settings.version >= row.since)
    gib, source = alone.gib, alone.source
    if plan.tp > 1:
        linked = row.linked + row.per_doubling * (plan.tp.bit_length() - 2)
        gib, source = (linked if has_fabric(gpu) else row.unlinked), row.source
    elif plan.pp > 1:
        gib, source = row.pipeline, row.source
    return _outside("not torch's", gib, f"tp={plan.tp}, pp={plan.pp}, {gpu.link or 'PCIe'}", source)


def before_profile(plan: ServePlan, gpu: Gpu, settings: Settings) -> Tensor:
    """Communicators set up before the worker's first look at the card."""
    row = next(row for row in LINKED if settings.version >= row.since)
    gib = (row.before_linked if plan.tp > 1 else row.before_pipeline if plan.pp > 1 else 0.0) * has_fabric(gpu)
    return _outside("communicators before the profile", gib, f"tp={plan.tp}, {gpu.link or 'PCIe'}", row.source)


def _outside(name: str, gib: float, formula: str, source: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=round(gib * GIB), category=Category.COMMUNICATION, owner="process", basis=Basis.MEASURED,
        formula=formula, source=source,
    )


def warm_up(settings: Settings, vocab: int, *, experts: bool) -> tuple[Tensor, ...]:
    """The sampler once more, now that the cache is taken: its buffers no longer come out of the profile's share."""
    if not settings.v1 or settings.version < SAMPLER_WARM_UP_SINCE:
        return ()
    sequences, freed = settings.max_sequences, experts and settings.version >= FREED_SINCE
    slack = Tensor(
        name="kernels and freed blocks", num_bytes=FREED_BYTES * sequences * vocab if freed else 0,
        category=Category.ACTIVATIONS, owner="sampler", basis=Basis.MEASURED,
        formula=Note("{} B x {:,} sequences x {:,}", FREED_BYTES, sequences, vocab),
        source="start-up logs of 0.19 on H100 at fraction 0.95",
    )
    return slack, *(
        Tensor(
            name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS, owner="sampler", formula=formula,
            source=f"{WORKER} `compile_or_warm_up_model`",
        )
        for name, num_bytes, formula in drawn(vocab, settings, sequences=sequences)
    )


EMBEDDINGS_ADAPTED: Final = frozenset(
    ("llama", "mistral", "mixtral", "granite", "cohere", "cohere2", "minicpm", "jamba", "nemotron_h", "phimoe")
)
"""Families whose classes list embedding and head [embedding]."""

EMBEDDINGS_ADAPTED_LATER: Final = frozenset(("qwen3", "qwen3_moe"))
EMBEDDINGS_ADAPTED_LATER_SINCE: Final[Version] = (0, 19)

EXPERTS_SINCE: Final[Version] = (0, 12)
EXTRA_TOKENS: Final = 256
EXTRA_TOKENS_UNTIL: Final[Version] = (0, 12)

WIDTH: Final = 2
"""Bytes of an adapter's element."""


def more_slots(job: ServeJob, settings: Settings, stage: Stage) -> Iterator[tuple[Tensor, int]]:
    """Adapter memory beside the slots of dense projections, with how many equal tensors there are."""
    if not job.plan.lora_slots:
        return
    rank, h, vocab = job.plan.lora_rank, job.model.hidden, job.model.vocab
    extra = EXTRA_TOKENS if settings.version < EXTRA_TOKENS_UNTIL else 0
    if _adapts_embeddings(job.model.family, settings.version):
        per_table = rank * (vocab + extra + h) + extra * h
        if stage.first:
            yield _slot(job, "embedding", per_table, Note("rank {} x ({:,} + {:,})", rank, vocab + extra, h)), 1
        if stage.last:
            yield _slot(job, "head", per_table, Note("rank {} x ({:,} + {:,})", rank, vocab + extra, h)), 1
    if settings.version >= EXPERTS_SINCE:
        yield from _experts(job, stage)


def _adapts_embeddings(family: str, version: Version) -> bool:
    later = family in EMBEDDINGS_ADAPTED_LATER and version >= EMBEDDINGS_ADAPTED_LATER_SINCE
    return family in EMBEDDINGS_ADAPTED or later


def _experts(job: ServeJob, stage: Stage) -> Iterator[tuple[Tensor, int]]:
    (ep, etp), rank = expert_degrees(job), job.plan.lora_rank
    for run in stage.runs(job.model):
        moe = run.layer.channel
        if not isinstance(moe, MoE):
            continue
        local, inner = ceil_div(moe.num_experts, ep), ceil_div(moe.expert.width, etp)
        h, matrices = moe.latent_width or job.model.hidden, 3 if moe.expert.gated else 2
        formula = Note("{} experts x rank {} x {} x ({:,} + {:,})", local, rank, matrices, h, inner)
        yield _slot(job, "moe.experts", local * rank * matrices * (h + inner), formula), run.count


def _slot(job: ServeJob, name: str, elements: int, formula: str) -> Tensor:
    slots = job.plan.lora_slots
    return Tensor(
        name=name, num_bytes=slots * elements * WIDTH, category=Category.ADAPTERS, owner="slots",
        formula=Note("{} slots x {} x {} B", slots, formula, WIDTH), source="vllm-project/vllm vllm/lora/layers/",
    )
