"""What SGLang chooses where a question leaves it open, by version and card.

[args] sgl-project/sglang python/sglang/srt/server_args.py `_handle_gpu_memory_settings`: what is set aside for
activations and graphs decides the static fraction
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.model import Model, MultiLatentAttention
from vramcast.domain.serving import ServeJob, Version
from vramcast.units import GIB, MIB

RESERVES_SINCE: Final[Version] = (0, 4, 9)
"""From then on the fraction follows from what is set aside; before from the tensor parallelism alone."""

FRACTIONS: Final[tuple[tuple[int, float], ...]] = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
"""Tensor-parallel ranks -> static fraction of older versions [args]."""


class Tier(NamedTuple):
    """Defaults of cards below a size."""

    below: int  # [bytes]
    chunk: int  # tokens of one prefill step
    graph_sequences: int  # largest batch with a graph, tensor parallelism below 4
    graph_sequences_wide: int  # the same, from 4 on


TIERS: Final[tuple[Tier, ...]] = (
    Tier(20 * GIB, 2048, 8, 8),
    Tier(35 * GIB, 4096, 48, 160),
    Tier(60 * GIB, 4096, 32, 160),
    Tier(90 * GIB, 8192, 256, 512),
    Tier(1 << 62, 16384, 512, 512),
)
"""Smallest first [args]."""

LARGE_CARD: Final = 60 * GIB
LARGE_RESERVE: Final = 10 * GIB
"""Least that is set aside on large cards [args]."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    fraction: float
    chunk: int
    graph_sequences: int
    page_tokens: int


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with."""
    plan, size = job.plan, job.cluster.gpu.visible_bytes
    tier = next(tier for tier in TIERS if size < tier.below)
    chunk = plan.batched_tokens or tier.chunk
    sequences = tier.graph_sequences if plan.tp < 4 else tier.graph_sequences_wide
    sequences = min(sequences, plan.max_sequences or sequences) if plan.graphs else 0
    fraction = plan.memory_fraction or default_fraction(job, chunk, sequences)
    return Settings(fraction, chunk, sequences, plan.block_tokens or 1)


def default_fraction(job: ServeJob, chunk: int, graph_sequences: int) -> float:
    """The static fraction where none is given [args]."""
    plan, size = job.plan, job.cluster.gpu.visible_bytes
    if job.version < RESERVES_SINCE:
        return next(fraction for ranks, fraction in FRACTIONS if plan.tp >= ranks)
    return max(0.05, (size - reserve_bytes(job.model, plan.tp * plan.pp, chunk, graph_sequences, size)) / size)


def reserve_bytes(model: Model, ranks: int, chunk: int, graph_sequences: int, size: int) -> int:
    """What is set aside for activations, graphs and communication [bytes]."""
    reserved = 512 + 1.5 * max(chunk, 2048) + ranks / 8 * 1024 + 2 * graph_sequences  # [MiB]
    latent = any(isinstance(run.layer.mixer, MultiLatentAttention) for run in model.main.runs)
    if latent:
        reserved += 1536
    found = round(reserved * MIB)
    return max(found, LARGE_RESERVE) if size > LARGE_CARD else found
