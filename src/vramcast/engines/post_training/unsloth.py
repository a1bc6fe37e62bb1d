"""What Unsloth tells the vLLM that it starts: a share of what is free, and how many sequences run at once.

[zoo] unslothai/unsloth-zoo unsloth_zoo/vllm_utils.py `load_vllm`, `approximate_vllm_memory_usage`: eb68b541 (2025-09),
08df47a2 (2026-01), ce232d6c (2026-08); a standby takes what is asked, at least nine tenths of it since 2afbcc19
(2025.9.6), at least its tier since 65939946 (2025.11.1), no more and no less since fa82dcc2 (2026.2.1)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.version import Version
from vramcast.units import GIB

PACKED: Final = 16 / 5
"""By what weights in 4 bits are taken to be smaller."""


class Standby(NamedTuple):
    """The share of a card that an engine takes which gives its cache up while the trainer works."""

    since: Version
    tiers: tuple[tuple[float, float], ...]  # a tenth of the card from here on [GiB] -> share
    is_least: bool = True  # more may be asked; else nothing but the tier is taken


NEWER: Final = 0.95
"""Of a tier, with vLLM 0.11 and newer."""

STANDBY: Final = (
    Standby((2026, 2, 1), ((4.0, 0.925), (2.5, 0.9), (2.0, 0.825), (1.4, 0.8), (1.0, 0.775), (0.0, 0.75)), False),
    Standby((2025, 11, 1), ((4.0, 0.925), (2.5, 0.9), (2.0, 0.875), (1.4, 0.85), (1.0, 0.8), (0.0, 0.75))),
    Standby((2025, 9, 6), ((0.0, 0.9 / NEWER),)),
    Standby((0,), ((0.0, 0.0),)),
)
"""Newest first."""

SEQUENCES: Final = ((2, 8), (4, 16), (8, 32), (12, 48), (16, 64), (24, 80), (40, 96), (48, 112), (80, 128))
"""What is left for the cache, up to [GiB] -> `max_num_seqs`; 256 beyond."""

TOKENS: Final = ((4, 2048), (12, 4096), (24, 6144))
"""The same -> `max_num_batched_tokens`; 8,192 beyond."""


class Limits(NamedTuple):
    """What vLLM is started with."""

    fraction: float  # of the whole card
    max_sequences: int
    batched_tokens: int


def limits(job: PostTrainingJob, fraction: float) -> Limits:
    """Of a card on which nothing else is; `fraction` is what is asked, a share of what is free."""
    gpu, asked = job.cluster.gpu, fraction
    if job.rollout.sleeps:
        rule = next(rule for rule in STANDBY if job.version >= rule.since)
        tier = NEWER * next(share for tenth, share in rule.tiers if gpu.visible_bytes / GIB / 10 >= tenth)
        asked = max(fraction, tier) if rule.is_least else tier
    parameters, model = count_parameters(job.model).total, job.model
    ends = model.vocab * model.hidden * (1 if model.tied else 2)
    packed = PACKED if job.plan.peft is not None and job.plan.peft.base != "full" else 1
    left = asked * gpu.free_bytes - 2 * ((parameters - ends) / packed + ends)
    sequences, tokens = (next((count for most, count in table if left <= most * GIB), beyond)
                         for table, beyond in ((SEQUENCES, 256), (TOKENS, 8192)))
    return Limits(asked * gpu.free_bytes / gpu.visible_bytes, sequences, max(tokens, job.episodes.longest))
