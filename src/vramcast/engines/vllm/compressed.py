"""Blocks of DeepSeek V4: compressed keys beside windows and the states of compressors, all in pages of three sizes.

[layers] vllm-project/vllm vllm/models/deepseek_v4/attention.py, compressor.py `get_kv_cache_spec`,
vllm/v1/attention/backends/mla/sparse_swa.py: one entry a token or for every 4 or 128 of them, an index key where it is
4, fp32 states of what is not yet compressed, and a window of plain keys in every layer
[groups] vllm/v1/core/kv_cache_utils.py `_get_kv_cache_groups_uniform_groups`, `_approximate_gcd`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vramcast.domain.model import Attention, Layer
from vramcast.engines.vllm.pool import LayerGroup
from vramcast.units import ceil_div, round_up

BLOCK_TOKENS: Final = 256
WINDOW_BLOCK: Final = 64
ALIGNMENT: Final = 576
"""Bytes that pages are padded to: FlashMLA's rows."""

SCALES: Final = 8
"""Bytes of fp8 scales in a cached row."""

STATE_BLOCKS: Final = {4: 4, 128: 8}
"""Compression -> tokens of a block of its compressor's states."""

FP32: Final = 4


class Rates(NamedTuple):
    """How one layer shortens its cache."""

    compression: int  # tokens of one entry; 0: none is kept
    index_width: int  # of an index key; 0: none


class Column(NamedTuple):
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
    rest = [(_window(first), _padded([Column(_aligned(WINDOW_BLOCK * row), tuple(s for _, s in kept))], pages))]
    rest += [(_state_group(rate), _padded(_states(kept, rate, width), pages)) for rate in STATE_BLOCKS]
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


def _states(kept: Sequence[tuple[Rates, int]], rate: int, width: int) -> list[Column]:
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


def _padded(columns: Sequence[Column], pages: Sequence[int]) -> list[Column]:
    """Pages as large as the next of the compressed entries'."""
    return [
        column._replace(page=min((page for page in pages if page >= column.page), default=column.page))
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
