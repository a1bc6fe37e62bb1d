"""How vLLM divides the layers of a network into groups of one page size.

[groups] vllm-project/vllm vllm/v1/core/kv_cache_utils.py `_get_kv_cache_groups_uniform_page_size`, since 0.33
kv_cache_planning.py: the size of a group is the smallest number of layers of a kind, or the largest where that is
little more; the last groups of a kind are padded
[stages] `get_kv_cache_configs`: groups are made of all pipeline stages' layers, then each stage keeps its own
[hybrid] vllm/model_executor/models/config.py `HybridAttentionMambaModelConfig.verify_and_update_config`: attention
blocks grow until a page holds a recurrent state
[mamba] vllm/v1/kv_cache_interface.py `MambaSpec.max_memory_usage_bytes`
[state_dtype] vllm/model_executor/layers/mamba/mamba_utils.py `MambaStateDtypeCalculator`
[sparse] vllm/v1/attention/backends/mla/flashmla_sparse.py: an FP8 row keeps its rotary part in 16 bits, with scales
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.domain.serving import Version
from vramcast.engines.vllm.pool import LayerGroup
from vramcast.states.cache import state_bytes, token_bytes
from vramcast.units import ceil_div, round_up

GROUP_RATIO: Final[tuple[tuple[Version, float], ...]] = (((0, 18), 1.5), ((0, 12), 1.25), ((0, 0), 1.0))
"""Version -> how many times the smallest kind the largest may be and still give the size of a group [groups]."""

HYBRID_MANAGER_SINCE: Final[Version] = (0, 9, 1)
"""Before, sliding windows were kept at full length [vllm/config/vllm.py `disable_hybrid_kv_cache_manager`]."""

CHUNKS_AT_FULL_LENGTH: Final[tuple[Version, Version]] = ((0, 10, 1), (0, 14))
"""In these versions chunked layers were kept at full length [vllm/envs.py]."""

STATE_ALIGNMENT: Final = 16
LATENT_ALIGNMENT: Final = 64
"""Tokens by which attention blocks grow, and those of latent attention [hybrid]."""

KERNEL_CHUNK: Final = 256
"""Tokens a Mamba-2 kernel reads at once, the default of `chunk_size`: blocks are multiples of it in mode "all"."""

SPARSE_FP8_BY_DEFAULT_BEFORE: Final[Version] = (0, 12)
"""Until then sparse latent attention cached in FP8 unless told otherwise [DeepseekV32ForCausalLM config]."""

DELTA: Final = "kimi_delta"
DELTA_WIDTH: Final = 4
"""Kimi delta attention keeps its states in fp32 whatever else is asked for [state_dtype `kda_state_dtype`]."""

FP8: Final = ("fp8", "fp8_e4m3", "fp8_e5m2")


class Kind(NamedTuple):
    """Layers with one kind of cache."""

    kind: str
    token_bytes: int  # of one layer; 0 for states
    window: int = 0
    state_bytes: int = 0
    latent: bool = False


class Grouping(NamedTuple):
    """The groups of a network, and the bytes of one block over a group on each pipeline stage."""

    groups: tuple[LayerGroup, ...]
    block_bytes: tuple[int, ...]


class CacheSpec(NamedTuple):
    """What decides the layout beside the layers."""

    tp: int
    kv_dtype: str
    block_tokens: int
    version: Version
    context: int = 4096
    speculative_tokens: int = 0
    states: str = "none"  # what prefix caching keeps of recurrent states: "none", "align" or "all"
    conv_width: int = 2
    state_width: int = 4  # of an element of a recurrent state [bytes]
    chunk: int = 0  # tokens of Llama 4's chunked layers, which have a window but are no sliding ones
    hybrid_manager: bool = True
    auto_dtype: bool = True  # the cache's dtype was not asked for
    windows: bool = True  # False: the V0 engine, which keeps every token


def grouped(stages: Sequence[Iterable[Mixer | None]], spec: CacheSpec) -> Grouping | None:
    """The groups of the layers that keep something; None where none does.

    Args:
        stages: mixers of every pipeline stage's layers, drafts that share the pool among them
        spec: parallelism, dtype and version
    """
    places: dict[Kind, list[int]] = {}
    for stage, mixers in enumerate(stages):
        for mixer in mixers:
            kind = kind_of(mixer, spec)
            if kind is not None:
                places.setdefault(kind, []).append(stage)
    if not places:
        return None
    places = _at_full_length(places, spec)
    page, block_tokens = _page(places, spec)
    if len({(kind.kind, kind.window) for kind in places}) == 1 and not _padded(places):
        return _one_group(places, spec, block_tokens, len(stages))
    size = _group_size([len(layers) for layers in places.values()], spec.version)
    groups, widest = [], [0] * len(stages)
    for kind, layers in places.items():
        count = ceil_div(len(layers), size)
        groups += [_group(kind, page, block_tokens, spec)] * count
        for first in range(count):
            mine = layers[first::count]
            widest = [max(most, mine.count(stage)) for stage, most in enumerate(widest)]
    return Grouping(tuple(groups), tuple(page * layers for layers in widest))


def kind_of(mixer: Mixer | None, spec: CacheSpec) -> Kind | None:
    """What a layer keeps; None for layers that keep nothing of their own."""
    if isinstance(mixer, (Mamba, LinearAttention)):
        width = DELTA_WIDTH if isinstance(mixer, LinearAttention) and mixer.variant == DELTA else spec.state_width
        size = state_bytes(mixer, tp=spec.tp, conv_width=spec.conv_width, state_width=width)
        return Kind("state", 0, state_bytes=size)
    if isinstance(mixer, MultiLatentAttention):
        return Kind("full attention", _latent_bytes(mixer, spec), latent=True)
    if not isinstance(mixer, Attention):
        return None
    per_token = token_bytes(mixer, tp=spec.tp, k_dtype=spec.kv_dtype)
    if not per_token:
        return None
    if mixer.window is None:
        return Kind("full attention", per_token)
    return Kind("chunked" if mixer.window == spec.chunk else "sliding window", per_token, mixer.window)


def _latent_bytes(mixer: MultiLatentAttention, spec: CacheSpec) -> int:
    """One token of a latent layer; sparse ones have an FP8 layout of their own [sparse]."""
    plain = token_bytes(mixer, tp=spec.tp, k_dtype=spec.kv_dtype)
    by_default = spec.auto_dtype and spec.version < SPARSE_FP8_BY_DEFAULT_BEFORE
    if not mixer.indexer_dim or not (spec.kv_dtype in FP8 or by_default):
        return plain
    index = plain - token_bytes(_without_index(mixer), tp=spec.tp, k_dtype=spec.kv_dtype)
    return mixer.kv_lora_rank + 4 * ceil_div(mixer.kv_lora_rank, 128) + 2 * mixer.qk_rope_dim + index


def _without_index(mixer: MultiLatentAttention) -> MultiLatentAttention:
    from msgspec.structs import replace

    return replace(mixer, indexer_dim=0)


def _at_full_length(places: dict[Kind, list[int]], spec: CacheSpec) -> dict[Kind, list[int]]:
    """Windows kept at full length, where the version or the user has it so."""
    before, after = CHUNKS_AT_FULL_LENGTH
    off = spec.version < HYBRID_MANAGER_SINCE or not spec.hybrid_manager
    chunks = before <= spec.version < after and any(kind.kind == "chunked" for kind in places)
    mixed = any(kind.kind == "full attention" for kind in places)
    if spec.windows and not (mixed and (off or chunks)):
        return places  # one kind of window needs no manager
    found: dict[Kind, list[int]] = {}
    for kind, layers in places.items():
        unified = Kind("full attention", kind.token_bytes, latent=kind.latent) if kind.window else kind
        found[unified] = sorted(found.get(unified, []) + layers)
    return found


def _padded(kinds: Iterable[Kind]) -> bool:
    """Whether layers of one kind must share pages of one size: states of different sizes."""
    return len({kind.state_bytes for kind in kinds if kind.kind == "state"}) > 1


def _page(kinds: Iterable[Kind], spec: CacheSpec) -> tuple[int, int]:
    """Bytes of one block of one layer, and tokens of a block of the layers with the most bytes a token."""
    kinds = tuple(kinds)
    most = max((kind.token_bytes for kind in kinds), default=0)
    state = max((kind.state_bytes for kind in kinds), default=0)
    if not most:
        return state, spec.block_tokens
    tokens = spec.block_tokens
    if state:
        step = LATENT_ALIGNMENT if any(kind.latent for kind in kinds) else STATE_ALIGNMENT
        step = max(step, KERNEL_CHUNK) if spec.states == "all" else step
        tokens = max(tokens, round_up(ceil_div(state, most), step))
    return most * tokens, tokens


def _one_group(places: dict[Kind, list[int]], spec: CacheSpec, block_tokens: int, stages: int) -> Grouping:
    """Layers that need the same slots share a group, however wide each is."""
    kind = next(iter(places))
    if kind.kind == "state":
        group = _group(kind, kind.state_bytes, block_tokens, spec)
        per_layer = {kind: kind.state_bytes for kind in places}
    else:
        group = LayerGroup(kind=kind.kind, block_tokens=block_tokens, window=kind.window)
        per_layer = {kind: kind.token_bytes * block_tokens for kind in places}
    sizes = tuple(
        sum(per_layer[kind] * layers.count(stage) for kind, layers in places.items()) for stage in range(stages)
    )
    return Grouping((group,), sizes)


def _group_size(sizes: Sequence[int], version: Version) -> int:
    """Layers of a group [groups]."""
    ratio = next(ratio for since, ratio in GROUP_RATIO if version >= since)
    return max(sizes) if max(sizes) < ratio * min(sizes) else min(sizes)


def _group(kind: Kind, page: int, block_tokens: int, spec: CacheSpec) -> LayerGroup:
    if kind.kind == "state":
        return _states(block_tokens, spec)
    smallest = kind.token_bytes * spec.block_tokens
    # pages of another kind are filled with more tokens, or padded where that leaves a rest
    tokens = page // kind.token_bytes if page % smallest == 0 else block_tokens
    return LayerGroup(kind=kind.kind, block_tokens=tokens, window=kind.window)


def _states(block_tokens: int, spec: CacheSpec) -> LayerGroup:
    """Recurrent states: one a sequence, with the one before it for prefix caching, or one for every block [mamba]."""
    if spec.states == "all":
        return LayerGroup(kind="full attention", block_tokens=block_tokens)
    if spec.states == "align":
        return LayerGroup(kind="state", block_tokens=block_tokens, state_blocks=2 + spec.speculative_tokens)
    return LayerGroup(kind="state", block_tokens=spec.context, state_blocks=1 + spec.speculative_tokens)
