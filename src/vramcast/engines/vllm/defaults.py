"""What vLLM chooses where a question leaves it open, by version and card.

[args] vllm-project/vllm vllm/engine/arg_utils.py `get_batch_defaults`: usage context LLM and API server
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.serving import ServeJob, Version
from vramcast.units import GIB

V1_SINCE: Final[Version] = (0, 8)
"""First version whose default is the V1 engine."""

LARGE_CARD: Final = 70 * GIB
HUGE_CARD: Final = 160 * GIB


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    version: Version
    v1: bool
    memory_fraction: float
    max_sequences: int
    batched_tokens: int
    block_tokens: int


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with."""
    plan, gpu = job.plan, job.cluster.gpu
    v1 = bool(job.engine_options.get("v1", job.version >= V1_SINCE))
    sequences, tokens = _batch(gpu, v1=v1, version=job.version)
    batched = plan.batched_tokens or (tokens if v1 else max(2048, job.context))
    return Settings(
        version=job.version,
        v1=v1,
        memory_fraction=plan.memory_fraction or (0.92 if job.version >= (0, 23) else 0.9),
        max_sequences=min(plan.max_sequences or sequences, batched),
        batched_tokens=batched,
        block_tokens=plan.block_tokens or 16,
    )


def _batch(gpu: Gpu, *, v1: bool, version: Version) -> tuple[int, int]:
    """Default sequences and batched tokens of an API server [args]."""
    if not v1:
        return 256, 2048
    size = gpu.visible_bytes
    if size >= HUGE_CARD and version >= (0, 17):
        return 1024, 16384
    if size >= LARGE_CARD and not gpu.name.startswith("a100"):
        return 1024, 8192
    return 256, 2048
