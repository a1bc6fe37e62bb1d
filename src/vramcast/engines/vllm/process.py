"""What a vLLM process takes beside weights, activations and cache: communication, kernels' own memory, CUDA graphs.

All of it is measured: the tables hold what start-up logs print, with the runs they come from.
[worker] vllm-project/vllm vllm/v1/worker/gpu_worker.py `determine_available_memory`: `non_torch` is what the driver
says is in use beyond PyTorch's memory since the worker began, so the CUDA context is outside it
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import ServePlan, Version
from vramcast.engines.serving.links import has_fabric
from vramcast.engines.vllm.settings import Settings
from vramcast.units import GIB, MIB

WORKER: Final = "vllm-project/vllm vllm/v1/worker/gpu_worker.py"


class NonTorch(NamedTuple):
    """Memory outside PyTorch's allocator on one rank [GiB]."""

    since: Version
    alone: float  # one rank
    pipeline: float  # a pipeline stage of one rank
    linked: float  # tensor parallelism over NVLink, two ranks: NCCL and custom all-reduce
    per_rank: float  # for each doubling of the ranks
    before: float  # taken over NVLink before the profile begins, so that no budget knows it
    unlinked: float  # tensor parallelism over PCIe
    source: str


NON_TORCH: Final[tuple[NonTorch, ...]] = (
    NonTorch((0, 12), 0.25, 0.07, 2.07, 0.07, 1.02, 0.30, "57 logs of 0.19 on H100; 0.2 to 0.3 over PCIe"),
    NonTorch((0, 8), 0.13, 0.07, 0.54, 0.07, 0.0, 0.21, "start-up logs of 0.10 and 0.11 on H100 and L40S"),
    NonTorch((0, 0), 0.09, 0.07, 0.54, 0.07, 0.0, 0.20, "start-up logs of 0.6 to 0.9: 0.01 to 0.28 on one card"),
)


class Graphs(NamedTuple):
    """Captured graphs of all batch sizes: so much, and more for each layer; layers of experts capture more kernels."""

    base: float  # [MiB]
    per_layer: float  # [MiB]
    per_expert_layer: float  # [MiB]
    sizes: int  # batch sizes captured in these runs
    first: float  # share that the first size takes alone
    source: str


GRAPHS: Final = Graphs(328, 18.7, 20, 51, 0.2, "27 start-up logs of 0.19 on H100, 24 to 80 layers, most within 25 %")

LARGEST_CAPTURE: Final = {"gpt_oss": 1024}
"""Family -> largest batch with a graph, where it is not 512 [vllm/model_executor/models/config.py]."""

SAMPLER_WARM_UP_SINCE: Final[Version] = (0, 9)
"""From then on the sampler is warmed up after the cache is taken [vllm/v1/worker/gpu_worker.py]."""


def non_torch(plan: ServePlan, gpu: Gpu, settings: Settings) -> Tensor:
    """What the profile finds in use beside PyTorch's memory."""
    row = next(row for row in NON_TORCH if settings.version >= row.since)
    if plan.tp > 1:
        gib = row.linked + row.per_rank * (plan.tp.bit_length() - 2) if has_fabric(gpu) else row.unlinked
    else:
        gib = row.pipeline if plan.pp > 1 else row.alone
    return Tensor(
        name="not torch's", num_bytes=round(gib * GIB), category=Category.COMMUNICATION, owner="process",
        basis=Basis.MEASURED, formula=f"tp={plan.tp}, pp={plan.pp}, {gpu.link or 'PCIe'}", source=row.source,
    )


def captured_sizes(settings: Settings, family: str) -> int:
    """Batch sizes with a graph: 1, 2, 4, eights, from 256 on sixteens [vllm/config/vllm.py `_set_cudagraph_sizes`]."""
    if settings.eager:
        return 0
    most = LARGEST_CAPTURE.get(family, 512)
    largest = min(most, (2 if settings.v1 else 1) * settings.max_sequences)
    return sum(size <= largest for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)))


def before_profile(plan: ServePlan, gpu: Gpu, settings: Settings) -> Tensor:
    """Communicators set up before the worker's first look at the card."""
    row = next(row for row in NON_TORCH if settings.version >= row.since)
    gib = row.before if plan.tp > 1 and has_fabric(gpu) else 0.0
    return Tensor(
        name="communicators before the profile", num_bytes=round(gib * GIB), category=Category.COMMUNICATION,
        owner="process", basis=Basis.MEASURED, formula=f"tp={plan.tp}, {gpu.link or 'PCIe'}", source=row.source,
    )


def graphs(layers: int, expert_layers: int, settings: Settings, family: str) -> Tensor:
    """CUDA graphs of every captured batch size."""
    sizes = captured_sizes(settings, family)
    whole = GRAPHS.base + GRAPHS.per_layer * layers + GRAPHS.per_expert_layer * expert_layers
    mib = whole * (GRAPHS.first + (1 - GRAPHS.first) * sizes / GRAPHS.sizes) if sizes else 0.0
    return Tensor(
        name="captured graphs", num_bytes=round(mib * MIB), category=Category.GRAPHS, stream="graphs",
        basis=Basis.MEASURED,
        formula=f"{sizes} batch sizes; {GRAPHS.base} MiB + {layers} layers x {GRAPHS.per_layer} MiB for {GRAPHS.sizes}",
        source=GRAPHS.source,
    )


FREED_BYTES: Final = 10
"""Bytes per sequence and vocabulary entry that blocks of experts and kernels hold, freed or not, while the sampler is
warmed up. From runs of 0.19 at fraction 0.95 on H100: one with 1.7 GiB left over ran out of memory (201,088 entries),
one with 2.4 GiB served (102,400 entries); dense ones served with 0.8."""


def warm_up(settings: Settings, vocab: int, *, experts: bool) -> tuple[Tensor, ...]:
    """The sampler once more, now that the cache is taken: its buffers no longer come out of the profile's share."""
    if not settings.v1 or settings.version < SAMPLER_WARM_UP_SINCE:
        return ()
    elements = settings.max_sequences * vocab
    per = f"{settings.max_sequences:,} sequences x {vocab:,}"
    sizes = (("logits", settings.width), ("logits in fp32", 4), ("probabilities", 4), ("exponential noise", 4))
    slack = Tensor(
        name="kernels and freed blocks", num_bytes=FREED_BYTES * elements if experts else 0,
        category=Category.ACTIVATIONS, owner="sampler", basis=Basis.MEASURED, formula=f"{FREED_BYTES} B x {per}",
        source="start-up logs of 0.19 on H100 at fraction 0.95",
    )
    return slack, *(
        Tensor(
            name=name, num_bytes=elements * width, category=Category.ACTIVATIONS, owner="sampler",
            formula=f"{per} x {width} B", source=f"{WORKER} `compile_or_warm_up_model`",
        )
        for name, width in sizes
    )
