"""Which loss a release of Unsloth runs, and over how many tokens at a time.

[Unsloth] unsloth/models/llama.py `CausalLM_fast_forward`: whole logits under one Triton kernel; cut cross entropy
(fa8e59eb, where the card has it) above 1,024 tokens (b9fe2588); chunks (806bee24) of any length (0528b4ce)
[Zoo] unsloth_zoo loss_utils.py `HAS_CUT_CROSS_ENTROPY`; fused_losses/cross_entropy_loss.py `get_chunk_size`;
fused_losses/fused_linear.py `_ce_impl`, `_flash_min_rows_auto`
"""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from vramcast.domain.job import Job
from vramcast.domain.version import Version
from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.units import GIB

WHOLE: Final = "liger"

CUTS_SINCE: Final[Version] = (2024, 11, 7)

WHOLE_UNTIL_TOKENS: Final = 1024
"""Up to here logits are made whole, from 2024.12.4 until 2025.10.10."""

CHUNKS_SINCE: Final[Version] = (2025, 8, 5)

FUSES_SINCE: Final[Version] = (2026, 10, 9)

SMALL_CARD: Final = 24.5 * GIB
"""Above, tiles need 4,096 tokens [Zoo, `_SMALL_CARD_BYTES`]."""

LONG: Final = 4096

OLDEST_CUTTING: Final = (7, 5)
OLDEST_TILING: Final = (8, 0)
"""Compute capabilities [Zoo, `HAS_CUT_CROSS_ENTROPY`, `_flash_ce_ok`]."""


class Chunking(NamedTuple):
    """How many chunks logits are split into."""

    since: Version
    logit_bytes: int  # counted for one logit [bytes]
    budget: int | None  # of one chunk; at most half of the free memory where `halves` [bytes]
    halves: bool = True
    up: bool = True  # rounds up to a multiple of four; else to the nearest


CHUNKING: Final = (
    Chunking((2026, 9, 3), 16, 4 * GIB),
    Chunking((2026, 7, 1), 4, 4 * GIB),
    Chunking((2025, 9, 8), 4, None, up=False),
    Chunking((0,), 4, GIB, halves=False, up=False),
)
"""[Zoo] `_get_chunk_multiplier`, `get_chunk_size`; newest first."""


def with_loss(job: Job, recipe: Recipe, version: Version) -> Recipe:
    """The recipe with the loss that this release runs unasked."""
    tokens = recipe.sizes.tokens
    card = _capability(job)
    if version >= FUSES_SINCE:
        tiled = tokens >= LONG or job.cluster.gpu.visible_bytes <= SMALL_CARD
        tiled = tiled and card >= OLDEST_TILING and not recipe.learns("head.output")
        return recipe._replace(loss="linear:unsloth_tiled" if tiled else "linear:unsloth")
    short = (2024, 12, 4) <= version < (2025, 10, 10) and tokens <= WHOLE_UNTIL_TOKENS
    if version < CUTS_SINCE or short or card < OLDEST_CUTTING:
        return recipe._replace(loss=WHOLE)
    if version < CHUNKS_SINCE:
        return recipe._replace(loss="linear:cut_cross_entropy")
    chunks = _chunks(job, recipe, version)
    return recipe._replace(loss="linear:unsloth_chunks", sizes=recipe.sizes._replace(loss_chunks=chunks))


def short_batches(job: Job, recipe: Recipe, version: Version) -> tuple[str, ...]:
    """What is to be said where a batch of fewer tokens makes more logits at once than this one does."""
    rule = next(rule for rule in CHUNKING if version >= rule.since)
    chunks = recipe.sizes.loss_chunks
    if recipe.loss != "linear:unsloth_chunks" or rule.up or chunks == 1:
        return ()
    whole = int(2 * _target(job, recipe, rule) // (recipe.model.vocab * rule.logit_bytes))
    return (
        f"shorter batches can take more: Unsloth splits the logits of {recipe.sizes.tokens} tokens in {chunks}, and "
        f"makes those of up to {whole} at once; --min-seq-len 1 asks for samples of all lengths",
    )


def _capability(job: Job) -> tuple[int, ...]:
    """The card's compute capability; that of no NVIDIA card is none too old."""
    digits = (job.cluster.gpu.compute_capability or "").split(".")
    return tuple(int(digit) for digit in digits) if all(digit.isdecimal() for digit in digits) else OLDEST_TILING


def _chunks(job: Job, recipe: Recipe, version: Version) -> int:
    """`get_chunk_size`; what is free of the card is counted as all but the weights."""
    rule = next(rule for rule in CHUNKING if version >= rule.since)
    exact = recipe.sizes.tokens * recipe.model.vocab * rule.logit_bytes / _target(job, recipe, rule)
    if rule.up and exact <= 1:
        return 1
    return max(4 * (ceil(exact / 4) if rule.up else round(exact / 4)), 1)


def _target(job: Job, recipe: Recipe, rule: Chunking) -> int:
    """What the logits of one chunk may take [bytes]."""
    held = sum(weight.num_bytes * weight.repeats for weight in weights(recipe))
    free = (job.cluster.gpu.visible_bytes - held) // 2
    return max(1, min(rule.budget or free, free) if rule.halves else rule.budget or free)
