"""How vLLM divides the layers of a network into groups of one page size.

[groups] vllm-project/vllm vllm/v1/core/kv_cache_utils.py `_get_kv_cache_groups_uniform_page_size`: the size of a group
is the smallest number of layers of a kind, or the largest where that is less than 1.5 times the smallest; the last
group of a kind is padded
[hybrid] vllm/model_executor/models/config.py `HybridAttentionMambaModelConfig.verify_and_update_config`: attention
blocks grow until a page holds a recurrent state
[mamba] vllm/v1/kv_cache_interface.py `MambaSpec.max_memory_usage_bytes`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.engines.vllm.pool import LayerGroup
from vramcast.states.cache import state_bytes, token_bytes
from vramcast.units import ceil_div, round_up

GROUP_RATIO: Final = 1.5
HYBRID_MANAGER_SINCE: Final = (0, 11)
"""Before, sliding windows were kept at full length (0.10 has the manager, but not as a default)."""

STATE_ALIGNMENT: Final = 16
"""Tokens by which attention blocks grow [hybrid]."""

Recurrent = Mamba | LinearAttention


class Kind(NamedTuple):
    """Layers with one kind of cache."""

    kind: str
    token_bytes: int  # of one layer; 0 for states
    window: int = 0
    state_bytes: int = 0


class Grouping(NamedTuple):
    """The groups of a network and the bytes of one block over a group."""

    groups: tuple[LayerGroup, ...]
    block_bytes: int


class CacheSpec(NamedTuple):
    """What decides the layout beside the layers."""

    tp: int
    kv_dtype: str
    block_tokens: int
    version: tuple[int, ...]
    speculative_tokens: int = 0
    prefix_caching: bool = True
    conv_width: int = 2


def grouped(mixers: Iterable[Mixer | None], spec: CacheSpec, *, chunk: int = 0) -> Grouping | None:
    """The groups of the layers that keep something; None where none does.

    Args:
        mixers: of every layer of the main stack (and of drafts that share the pool)
        spec: parallelism, dtype and version
        chunk: tokens of Llama 4's chunked layers, which have a window but are no sliding ones
    """
    kinds = Counter(kind for mixer in mixers if (kind := kind_of(mixer, spec, chunk)) is not None)
    if not kinds:
        return None
    if spec.version < HYBRID_MANAGER_SINCE:
        kinds = _unified(kinds)
    page, block_tokens = _page(kinds, spec)
    if len({kind.kind for kind in kinds}) == 1:
        return _one_group(kinds, block_tokens)
    size = _group_size(kinds.values())
    groups = [
        _group(kind, page, block_tokens, spec) for kind, layers in kinds.items() for _ in range(ceil_div(layers, size))
    ]
    return Grouping(tuple(groups), page * size)


def kind_of(mixer: Mixer | None, spec: CacheSpec, chunk: int = 0) -> Kind | None:
    """What a layer keeps; None for layers that keep nothing of their own."""
    if isinstance(mixer, (Mamba, LinearAttention)):
        return Kind("state", 0, state_bytes=state_bytes(mixer, tp=spec.tp, conv_width=spec.conv_width))
    if not isinstance(mixer, (Attention, MultiLatentAttention)):
        return None
    per_token = token_bytes(mixer, tp=spec.tp, k_dtype=spec.kv_dtype)
    if not per_token:
        return None
    window = mixer.window if isinstance(mixer, Attention) else None
    if window is None:
        return Kind("full attention", per_token)
    return Kind("chunked" if window == chunk else "sliding window", per_token, window)


def _unified(kinds: Counter[Kind]) -> Counter[Kind]:
    """Windows kept at full length."""
    found: Counter[Kind] = Counter()
    for kind, layers in kinds.items():
        found[Kind("full attention", kind.token_bytes) if kind.window else kind] += layers
    return found


def _page(kinds: Iterable[Kind], spec: CacheSpec) -> tuple[int, int]:
    """Bytes of one block of one layer, and tokens of a block of the layers with the most bytes a token."""
    most = max((kind.token_bytes for kind in kinds), default=0)
    state = max((kind.state_bytes for kind in kinds), default=0)
    if not most:
        return state, spec.block_tokens
    tokens = spec.block_tokens
    if state > most * tokens:
        tokens = round_up(ceil_div(state, most), STATE_ALIGNMENT)
    return most * tokens, tokens


def _one_group(kinds: Counter[Kind], block_tokens: int) -> Grouping:
    """Layers of one kind share a group, however wide each is."""
    kind = next(iter(kinds))
    if kind.kind == "state":
        total = sum(other.state_bytes * layers for other, layers in kinds.items())
        return Grouping((LayerGroup(kind="state", block_tokens=block_tokens),), total)
    total = sum(other.token_bytes * layers for other, layers in kinds.items())
    windows = {other.window for other in kinds}
    kept = LayerGroup(
        kind=kind.kind if len(windows) == 1 else "full attention", block_tokens=block_tokens, window=max(windows)
    )
    return Grouping((kept,), total * block_tokens)


def _group_size(counts: Iterable[int]) -> int:
    """Layers of a group [groups]."""
    sizes = tuple(counts)
    return max(sizes) if max(sizes) < GROUP_RATIO * min(sizes) else min(sizes)


def _group(kind: Kind, page: int, block_tokens: int, spec: CacheSpec) -> LayerGroup:
    if kind.kind == "state":
        # with prefix caching the state before the last block is kept too [mamba, mode "align"]
        kept = (2 if spec.prefix_caching else 1) + spec.speculative_tokens
        return LayerGroup(kind="state", block_tokens=block_tokens, state_blocks=kept)
    return LayerGroup(kind=kind.kind, block_tokens=page // kind.token_bytes, window=kind.window)
