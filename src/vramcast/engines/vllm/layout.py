"""The cache of a deployment: what each pipeline stage keeps, in what groups, and how many blocks that makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from vramcast.domain.model import Attention, Model
from vramcast.domain.serving import ServeJob, Version
from vramcast.engines.serving.drafts import draft_mixers
from vramcast.engines.serving.rank import kv_dtype_of
from vramcast.engines.serving.stages import Stage
from vramcast.engines.vllm.compressed import compressed_groups, is_compressed
from vramcast.engines.vllm.groups import CacheSpec, Grouping, grouped
from vramcast.engines.vllm.options import STATE_WIDTHS
from vramcast.engines.vllm.pool import BlockPool
from vramcast.engines.vllm.settings import Settings, generates

LOGS_CONCURRENCY_SINCE: Final[Version] = (0, 21)
"""From then on the tokens logged are concurrency x context, before they counted blocks [kv_cache_utils.py]."""

STATE_OF_EVERY_BLOCK: Final = frozenset(("mamba", "mamba2", "falcon_mamba", "jamba", "nemotron_h"))
STATE_OF_EVERY_BLOCK_UNTIL: Final[Version] = (0, 27)
"""Families whose prefix caching kept the state after every block, before 0.27 [MambaModelConfig]."""

WIDE_STATES_SINCE: Final[dict[str, Version]] = {"qwen3_5": (0, 17), "nemotron_h": (0, 14)}
"""Beginning of families whose configurations ask for fp32 states -> since when that is read: `mamba_ssm_dtype`,
`mamba_ssm_cache_dtype` [vllm/model_executor/models/config.py]. Without the key Nemotron-H has fp32 since 0.20."""

CHUNKED_FAMILY: Final = "llama4"


def layout_of_cache(job: ServeJob, settings: Settings, stages: Sequence[Stage]) -> Grouping | None:
    """How the cache is laid out; None for networks that read everything at once and keep nothing."""
    if not generates(job.model):
        return None
    layers = [tuple(stage.layers(job.model)) for stage in stages]
    if is_compressed([layer for stage in layers for layer in stage]):
        return Grouping(*compressed_groups(layers))
    mixers = [
        chain((layer.mixer for layer in mine), draft_mixers(job) if stage.last else ())
        for stage, mine in zip(stages, layers, strict=True)
    ]
    return grouped(mixers, cache_spec(job, settings))


def cache_spec(job: ServeJob, settings: Settings) -> CacheSpec:
    """What decides the cache's layout."""
    plan = job.plan
    return CacheSpec(
        tp=plan.tp,
        kv_dtype=kv_dtype_of(job),
        block_tokens=settings.block_tokens,
        version=settings.version,
        context=job.context,
        speculative_tokens=plan.draft.tokens if plan.draft is not None else 0,
        states=_states(job.model, settings),
        conv_width=settings.width,
        state_width=_state_width(job.model, settings),
        chunk=_chunk(job.model),
        hybrid_manager=settings.options.hybrid_manager is not False,
        auto_dtype=plan.kv_dtype == "auto",
        windows=settings.v1,
    )


def _state_width(model: Model, settings: Settings) -> int:
    """Bytes of an element of a recurrent state: as activations, unless the network's configuration says fp32."""
    asked = settings.options.mamba_ssm_cache_dtype
    if asked != "auto":
        return STATE_WIDTHS[asked]
    wide = (since for family, since in WIDE_STATES_SINCE.items() if model.family.startswith(family))
    return STATE_WIDTHS["float32"] if any(settings.version >= since for since in wide) else settings.width


def _states(model: Model, settings: Settings) -> str:
    """What prefix caching keeps of recurrent states."""
    if not settings.prefix_caching:
        return "none"
    every = model.family in STATE_OF_EVERY_BLOCK and settings.version < STATE_OF_EVERY_BLOCK_UNTIL
    return "all" if every else "align"


def _chunk(model: Model) -> int:
    """Tokens of the chunks that Llama 4's local layers attend in."""
    if model.family != CHUNKED_FAMILY:
        return 0
    mixers = (layer.mixer for layer in model.main.layers)
    return max((mixer.window or 0 for mixer in mixers if isinstance(mixer, Attention)), default=0)


def pool_of(job: ServeJob, settings: Settings, layout: Grouping, *, stage: int, blocks: int) -> BlockPool:
    """The pool of one stage's ranks."""
    return BlockPool(
        blocks=blocks,
        block_bytes=layout.block_bytes[stage],
        groups=layout.groups,
        in_flight=settings.in_flight,
        max_model_len=job.context,
        logs_blocks=settings.version < LOGS_CONCURRENCY_SINCE,
        ranks_sharing=job.plan.dcp,
    )


def num_blocks(left: Sequence[int], layout: Grouping) -> int:
    """Blocks of every stage: as many as the one with the fewest has room for.

    Args:
        left: bytes for the cache on each stage
        layout: what a block takes on each stage
    """
    return min(max(0, room) // size for room, size in zip(left, layout.block_bytes, strict=True) if size)
