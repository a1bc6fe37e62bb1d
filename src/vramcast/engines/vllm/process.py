"""What a vLLM process takes beside weights, activations and cache: communication, kernels' own memory, warm-up.

What cannot be derived is measured: the tables hold what start-up logs print, with the runs they come from.
[worker] vllm-project/vllm vllm/v1/worker/gpu_worker.py `determine_available_memory`: `non_torch` is what the driver
says is in use beyond PyTorch's memory since the worker began, so the CUDA context is outside it
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.program import Basis, Category, Tensor
from vramcast.domain.serving import ServePlan, Version
from vramcast.engines.serving.links import has_fabric
from vramcast.engines.vllm.sampler import drawn
from vramcast.engines.vllm.settings import Settings
from vramcast.units import GIB

WORKER: Final = "vllm-project/vllm vllm/v1/worker/gpu_worker.py"


class Alone(NamedTuple):
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


class Linked(NamedTuple):
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
        formula=f"{FREED_BYTES} B x {sequences:,} sequences x {vocab:,}",
        source="start-up logs of 0.19 on H100 at fraction 0.95",
    )
    return slack, *(
        Tensor(
            name=name, num_bytes=num_bytes, category=Category.ACTIVATIONS, owner="sampler", formula=formula,
            source=f"{WORKER} `compile_or_warm_up_model`",
        )
        for name, num_bytes, formula in drawn(vocab, settings, sequences=sequences)
    )
