"""vLLM's paged cache: layers in groups of one page size that share one pool of blocks.

[groups] vllm-project/vllm vllm/v1/core/kv_cache_utils.py `get_kv_cache_groups`, `unify_kv_cache_spec_page_size`;
vllm-project/vllm vllm/v1/core/kv_cache_utils.py `_get_kv_cache_groups_uniform_page_size`, since 0.33
kv_cache_planning.py: the size of a group is the smallest number of layers of a kind, or the largest where that is
little more; the last groups of a kind are padded; vllm/v1/core/kv_cache_utils.py
`_get_kv_cache_groups_uniform_groups`, `_approximate_gcd`
[specs] vllm/v1/kv_cache_interface.py `max_memory_usage_bytes`: a window keeps window - 1 tokens and those in flight
[stages] `get_kv_cache_configs`: groups are made of all pipeline stages' layers, then each stage keeps its own
[hybrid] vllm/model_executor/models/config.py `HybridAttentionMambaModelConfig.verify_and_update_config`: attention
blocks grow until a page holds a recurrent state
[mamba] vllm/v1/kv_cache_interface.py `MambaSpec.max_memory_usage_bytes`
[state_dtype] vllm/model_executor/layers/mamba/mamba_utils.py `MambaStateDtypeCalculator`
[sparse] vllm/v1/attention/backends/mla/flashmla_sparse.py: an FP8 row keeps its rotary part in 16 bits, with scales
[layers] vllm-project/vllm vllm/models/deepseek_v4/attention.py, compressor.py `get_kv_cache_spec`,
vllm/v1/attention/backends/mla/sparse_swa.py: one entry a token or for every 4 or 128 of them, an index key where it is
4, fp32 states of what is not yet compressed, and a window of plain keys in every layer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.domain.serving import Version
from vramcast.states.storage import state_bytes, token_bytes
from vramcast.units import FP32, ceil_div, round_up


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Layers whose blocks are handed out together."""

    kind: str  # "full attention", "sliding window", "chunked", "state"
    block_tokens: int  # tokens of one of its blocks
    window: int = 0  # tokens a window looks back, or of one chunk
    state_blocks: int = 1  # of a recurrent state: more with speculative tokens and prefix caching

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks one sequence of so many tokens holds at most."""
        match self.kind:
            case "state":
                return self.state_blocks
            case "sliding window":
                return ceil_div(min(self.window - 1 + in_flight, tokens), self.block_tokens) + 1
            case "chunked":
                return ceil_div(min(self.window + in_flight, tokens), self.block_tokens)
            case _:
                return ceil_div(tokens, self.block_tokens)


class BlockPool(Struct, frozen=True, kw_only=True):
    """The pool of one rank."""

    blocks: int  # of the pool
    block_bytes: int  # one block in all layers of a group
    groups: tuple[LayerGroup, ...]
    in_flight: int  # tokens that steps under way can write
    max_model_len: int
    logs_blocks: bool = True  # the figure logged counts blocks; later versions log concurrency x context
    ranks_sharing: int = 1  # decode context parallelism: ranks that hold a part of each sequence

    @property
    def num_bytes(self) -> int:
        """The whole pool."""
        return self.blocks * self.block_bytes

    def sequence_blocks(self, tokens: int) -> int:
        """Blocks one sequence holds at its longest."""
        share = ceil_div(tokens, self.ranks_sharing)
        return sum(group.blocks(share, self.in_flight) for group in self.groups)

    def sequence_bytes(self, tokens: int) -> int:
        """What one sequence of so many tokens takes [bytes]."""
        return self.sequence_blocks(tokens) * self.block_bytes

    @property
    def reported_tokens(self) -> dict[str, int]:
        """Both ways vLLM has counted; hybrid models make them differ. The one logged comes first."""
        block_tokens = min(group.block_tokens for group in self.groups)
        by_blocks = self.blocks // len(self.groups) * block_tokens * self.ranks_sharing
        concurrency = self.blocks / self.sequence_blocks(self.max_model_len)
        counts = {"blocks per group": by_blocks, "concurrency x context": int(concurrency * self.max_model_len)}
        return counts if self.logs_blocks else dict(reversed(counts.items()))


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


class Kind(Struct, frozen=True):
    """Layers with one kind of cache."""

    kind: str
    token_bytes: int  # of one layer; 0 for states
    window: int = 0
    state_bytes: int = 0
    latent: bool = False


class Grouping(Struct, frozen=True):
    """The groups of a network, and the bytes of one block over a group on each pipeline stage."""

    groups: tuple[LayerGroup, ...]
    block_bytes: tuple[int, ...]


class CacheSpec(Struct, frozen=True):
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
    index = plain - token_bytes(replace(mixer, indexer_dim=0), tp=spec.tp, k_dtype=spec.kv_dtype)
    return mixer.kv_lora_rank + 4 * ceil_div(mixer.kv_lora_rank, 128) + 2 * mixer.qk_rope_dim + index


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


BLOCK_TOKENS: Final = 256
WINDOW_BLOCK: Final = 64
ALIGNMENT: Final = 576
"""Bytes that pages are padded to: FlashMLA's rows."""

SCALES: Final = 8
"""Bytes of fp8 scales in a cached row."""

STATE_BLOCKS: Final = {4: 4, 128: 8}
"""Compression -> tokens of a block of its compressor's states."""


class Rates(Struct, frozen=True):
    """How one layer shortens its cache."""

    compression: int  # tokens of one entry; 0: none is kept
    index_width: int  # of an index key; 0: none


class Column(Struct, frozen=True):
    """Layers of one kind with equal pages."""

    page: int  # [bytes]
    stages: tuple[int, ...]  # of its layers


def is_compressed(layers: Sequence[Layer]) -> bool:
    """Whether any layer compresses its cache."""
    return any(rates_of(layer).compression for layer in layers)


def rates_of(layer: Layer) -> Rates:
    """The compression of a layer, read off the weights of its compressor."""
    shapes = {parameter.path: parameter.shape for parameter in layer.extra}
    compressor, indexer = shapes.get("compressor.positions"), shapes.get("indexer.norm.weight")
    return Rates(compressor[0] if compressor else 0, indexer[-1] if indexer else 0)


def compressed_groups(stages: Sequence[Sequence[Layer]]) -> tuple[tuple[LayerGroup, ...], tuple[int, ...]]:
    """Groups of the network, and the bytes of one block on each pipeline stage.

    Args:
        stages: layers of every stage
    """
    layers = [(layer, index) for index, stage in enumerate(stages) for layer in stage]
    first = layers[0][0].mixer
    assert isinstance(first, Attention)
    width = first.head_dim
    row = width + round(width * first.rope_fraction) + SCALES  # the rotary part stays in 16 bits
    kept = [(rates_of(layer), index) for layer, index in layers]
    full = _full(kept, row)
    pages = sorted(column.page for column in full)
    rest = [(_window(first), _padded_columns([Column(_aligned(WINDOW_BLOCK * row), tuple(s for _, s in kept))], pages))]
    rest += [(_state_group(rate), _padded_columns(_uncompressed(kept, rate, width), pages)) for rate in STATE_BLOCKS]
    columns = [full, *(found for _, found in rest if found)]
    size = _tuples([max(len(column.stages) for column in found) for found in columns])
    groups = [LayerGroup(kind="full attention", block_tokens=BLOCK_TOKENS)]
    widest = [0] * len(stages)
    for group, found in [(groups[0], full), *((group, found) for group, found in rest if found)]:
        count = ceil_div(max(len(column.stages) for column in found), size)
        groups += [group] * (count if group is not groups[0] else 0)
        for column in found:
            for part in range(count):
                mine = column.stages[part::count]
                widest = [max(most, mine.count(stage)) for stage, most in enumerate(widest)]
    return tuple(groups), tuple(sum(pages) * layers_ for layers_ in widest)


def _full(kept: Sequence[tuple[Rates, int]], row: int) -> list[Column]:
    """Compressed entries of each rate, and index keys."""
    found = [
        Column(_aligned(BLOCK_TOKENS // rate * row), tuple(stage for rates, stage in kept if rates.compression == rate))
        for rate in STATE_BLOCKS
    ]
    indexed = [(rates, stage) for rates, stage in kept if rates.index_width]
    if indexed:
        rates = indexed[0][0]
        key = rates.index_width + FP32 * ceil_div(rates.index_width, 128)
        page = _aligned(BLOCK_TOKENS // rates.compression * key)
        found.append(Column(page, tuple(stage for _, stage in indexed)))
    return [column for column in found if column.stages]


def _uncompressed(kept: Sequence[tuple[Rates, int]], rate: int, width: int) -> list[Column]:
    """What the compressors of one rate have not yet compressed: values and scores, twice over where windows overlap."""
    mine = [(rates, stage) for rates, stage in kept if rates.compression == rate]
    copies = 2 * (2 if rate == 4 else 1)
    widths = {width, *(rates.index_width for rates, _ in mine if rates.index_width)}
    stages = tuple(stage for _, stage in mine)
    return [Column(_aligned(STATE_BLOCKS[rate] * copies * each * FP32), stages) for each in sorted(widths) if stages]


def _state_group(rate: int) -> LayerGroup:
    return LayerGroup(
        kind="sliding window", block_tokens=STATE_BLOCKS[rate], window=rate * (2 if rate == 4 else 1)
    )


def _window(mixer: Attention) -> LayerGroup:
    return LayerGroup(kind="sliding window", block_tokens=WINDOW_BLOCK, window=mixer.window or 0)


def _padded_columns(columns: Sequence[Column], pages: Sequence[int]) -> list[Column]:
    """Pages as large as the next of the compressed entries'."""
    return [
        replace(column, page=min((page for page in pages if page >= column.page), default=column.page))
        for column in columns
    ]


def _aligned(num_bytes: int) -> int:
    return round_up(num_bytes, ALIGNMENT)


def _tuples(lengths: Sequence[int]) -> int:
    """Layers of a group: what pads all kinds least, the larger where two do [groups]."""
    return min(
        range(lengths[0], max(max(lengths), lengths[0]) + 1),
        key=lambda size: (sum(-length % size for length in lengths), -size),
    )
