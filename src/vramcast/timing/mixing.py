"""The part of a layer that mixes tokens: softmax(QK)V over the cache, or a scan with its state.

Symbols:  B sequences   S new tokens   K tokens attended to   A heads   G key/value heads   D head width   N state width
[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1: in decoding the up-projections are absorbed: every head attends
over the one compressed vector; in prefill keys and values are expanded.
[DSA] DeepSeek-V3.2: the indexer scores every cached token, attention reads the 2,048 best (`index_topk` of the config).
[FA] Dao, arXiv:2307.08691: a causal mask halves the work of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.states.cache import local_kv_heads, state_bytes, token_bytes
from vramcast.timing.work import Placement, Setting, Step, Work
from vramcast.units import ceil_div

INDEXED_TOKENS: Final = 2048
"""Tokens that sparse attention reads [DSA]."""

CHUNK: Final = 64
"""Tokens of a chunk in linear-attention kernels [fla-org/flash-linear-attention]."""


def mixing(mixer: Mixer | None, setting: Setting) -> Iterator[Work]:
    """What mixes tokens in one layer, projections left out."""
    match mixer:
        case Attention():
            yield from _attention(mixer, setting)
        case MultiLatentAttention():
            yield from _latent(mixer, setting.step, setting.placement)
        case Mamba() | LinearAttention():
            yield _scan(mixer, setting.step, setting.placement)


def attended(step: Step, window: int | None) -> float:
    """Tokens that one new token attends to, on average over the step."""
    if step.tokens == 1:
        return min(step.cached + 1, window or step.cached + 1)
    if window is None or step.cached + step.tokens <= window:
        return step.cached + (step.tokens + 1) / 2
    # the first tokens see fewer than a window
    filling = max(0, min(window - step.cached, step.tokens))
    return (filling * (step.cached + (filling + 1) / 2) + (step.tokens - filling) * window) / step.tokens


def _attention(mixer: Attention, setting: Setting) -> Iterator[Work]:
    step, placement, execution = setting.step, setting.placement, setting.execution
    heads, kv_heads = ceil_div(mixer.num_heads, placement.tp), local_kv_heads(mixer.num_kv_heads, placement.tp)
    widths = mixer.head_dim + (mixer.v_head_dim or mixer.head_dim)
    keys = attended(step, mixer.window)
    kept = min(step.cached + step.tokens, mixer.window or step.cached + step.tokens)
    per_token = token_bytes(mixer, tp=placement.tp, k_dtype=placement.k_dtype, v_dtype=placement.v_dtype)
    cache = step.sequences * kept * per_token / placement.dcp
    limit = execution.sequence_bytes_per_s
    copies = heads / kv_heads if execution.copies_cache else 1.0
    if execution.copies_cache:
        # concatenation reads and writes everything, the repetition reads it and writes a copy for every query head
        grown = step.sequences * (step.cached + step.tokens) * per_token
        yield Work("attention.cache", cache_bytes=(2 + (1 + copies if copies > 1 else 0)) * grown, kernels=4)
    else:
        yield Work("attention.cache", cache_bytes=step.rows * per_token)
    yield Work(
        "attention.scores",
        flops=2 * step.rows * keys * heads * widths / placement.dcp,
        cache_bytes=cache * copies,
        activation_bytes=2 * step.rows * heads * mixer.head_dim * placement.width,
        bytes_per_s=limit * step.sequences if limit and step.decodes else None,
    )


def _latent(mixer: MultiLatentAttention, step: Step, placement: Placement) -> Iterator[Work]:
    heads = ceil_div(mixer.num_heads, placement.tp)
    keys, kept = attended(step, None), step.cached + step.tokens
    indexed = bool(mixer.indexer_heads)
    per_token = token_bytes(mixer, tp=placement.tp, k_dtype=placement.k_dtype)
    index_bytes = mixer.indexer_dim + 4 * ceil_div(mixer.indexer_dim, 128) if indexed else 0
    if indexed:
        flops = 2 * step.rows * keys * mixer.indexer_heads * mixer.indexer_dim
        yield Work("indexer.scores", flops=flops, cache_bytes=step.sequences * kept * index_bytes)
        keys = min(keys, INDEXED_TOKENS)
        kept = min(kept, INDEXED_TOKENS) if step.decodes else kept
    absorbed = 2 * mixer.kv_lora_rank + mixer.qk_rope_dim
    expanded = mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim
    yield Work("attention.cache", cache_bytes=step.rows * per_token)
    yield Work(
        "attention.scores",
        flops=2 * step.rows * keys * heads * (absorbed if step.decodes else expanded) / placement.dcp,
        cache_bytes=step.sequences * kept * (per_token - index_bytes) / placement.dcp,
        activation_bytes=2 * step.rows * heads * mixer.v_head_dim * placement.width,
    )


def _scan(mixer: Mamba | LinearAttention, step: Step, placement: Placement) -> Work:
    """The state is read and written once a step, or once a chunk of a prompt."""
    if isinstance(mixer, Mamba):
        inner = ceil_div(mixer.inner_dim, placement.tp)
        flops = 6.0 * step.rows * inner * mixer.state_dim
    else:
        inner = ceil_div(mixer.num_v_heads, placement.tp) * mixer.v_head_dim
        within = 0 if step.decodes else CHUNK
        flops = 2.0 * step.rows * inner * (3 * mixer.k_head_dim + 2 * within)
    state = state_bytes(mixer, tp=placement.tp, conv_width=placement.width)
    visits = 2 * step.sequences * max(1, ceil_div(step.tokens, CHUNK))
    return Work(
        "scan", flops=flops, cache_bytes=visits * state, activation_bytes=3 * step.rows * inner * placement.width,
        kernels=3,
    )
