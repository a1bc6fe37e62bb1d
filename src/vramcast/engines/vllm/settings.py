"""What vLLM chooses where a question leaves it open, by version and card.

[args] vllm-project/vllm vllm/engine/arg_utils.py `EngineArgs.get_batch_defaults`
[cache] vllm/config/cache.py `CacheConfig.gpu_memory_utilization`
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.rank import WIDTHS, dtype_of
from vramcast.units import GIB

V1_SINCE: Final[Version] = (0, 8)
"""First version whose default is the V1 engine."""

LARGE_CARD: Final = 70 * GIB
HUGE_CARD: Final = 160 * GIB

FRACTION_SINCE: Final[tuple[tuple[Version, float], ...]] = (((0, 23), 0.92), ((0, 0), 0.90))
"""Version -> default gpu_memory_utilization [cache]."""

ASYNC_SINCE: Final[Version] = (0, 30)
"""From then on two batches can be in flight: the scheduler runs one step ahead [vllm/config/scheduler.py]."""

V0_TOKENS: Final = 2048
"""Least batched tokens of the V0 engine, which otherwise takes a whole prompt at once."""

V0_CHUNKS_ABOVE: Final = 32768
"""Longer contexts made it prefill in chunks of `V0_TOKENS` [vllm/engine/arg_utils.py, 0.6 to 0.8]."""


class Settings(NamedTuple):
    """One deployment's settings, every default filled in."""

    version: Version
    v1: bool
    memory_fraction: float
    max_sequences: int
    batched_tokens: int
    block_tokens: int
    width: int  # of an activation [bytes]
    batches_in_flight: int
    eager: bool  # no CUDA graphs

    @property
    def graphs_in_budget(self) -> bool:
        """Whether the memory of CUDA graphs is taken off the cache."""
        return self.version >= (0, 21)


def settings_of(job: ServeJob) -> Settings:
    """The settings a job runs with."""
    plan, version = job.plan, job.version
    v1 = bool(job.engine_options.get("v1", version >= V1_SINCE))
    sequences, tokens = default_batch(job.cluster.gpu, v1=v1, version=version, context=job.context)
    batched = plan.batched_tokens or tokens
    return Settings(
        version=version,
        v1=v1,
        memory_fraction=plan.memory_fraction or next(value for since, value in FRACTION_SINCE if version >= since),
        max_sequences=min(plan.max_sequences or sequences, batched),
        batched_tokens=batched,
        block_tokens=plan.block_tokens or 16,
        width=WIDTHS[dtype_of(job.model, plan.dtype)],
        batches_in_flight=max(2 if v1 and version >= ASYNC_SINCE else 1, plan.pp),
        eager=not plan.graphs,
    )


def default_batch(gpu: Gpu, *, v1: bool, version: Version, context: int) -> tuple[int, int]:
    """Sequences and batched tokens of an API server [args]."""
    if not v1:
        return 256, V0_TOKENS if context > V0_CHUNKS_ABOVE else max(V0_TOKENS, context)
    if gpu.visible_bytes >= HUGE_CARD and version >= (0, 17):
        return 1024, 16384
    if gpu.visible_bytes >= LARGE_CARD and not gpu.name.startswith("a100"):
        return 1024, 8192
    return 256, 2048
