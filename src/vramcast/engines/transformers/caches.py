"""Keys, values and recurrent states that one layer keeps of all sequences.

Symbols:  R rows (sequences x beams)   N tokens kept   G key/value heads   D head width
[HF] transformers cache_utils.py `DynamicLayer`, `DynamicSlidingWindowLayer`, `StaticLayer`, `QuantizedLayer`
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.domain.program import Category, Tensor
from vramcast.engines.transformers.settings import Settings
from vramcast.states.cache import state_bytes
from vramcast.units import ceil_div

SOURCE: Final = "transformers cache_utils.py"

QUANTISED_GROUP: Final = 64
"""Elements that share a scale and a zero of 16 bits each [cache_utils.py `QuantizedLayer.q_group_size`]."""

RESIDUAL: Final = 128
"""Newest tokens that a quantised cache keeps as they are [cache_utils.py `QuantizedLayer.residual_length`]."""

Tensors = tuple[Tensor, ...]


def head_elements(mixer: Mixer | None) -> tuple[int, int]:
    """Elements of keys and of values that one token adds to one layer.

    Latent attention is cached expanded, per head [HF] models/deepseek_v3/modeling_deepseek_v3.py.

    >>> head_elements(Attention(num_heads=32, num_kv_heads=8, head_dim=128))
    (1024, 1024)
    """
    match mixer:
        case Attention(shared_kv=False):
            return mixer.num_kv_heads * mixer.head_dim, mixer.num_kv_heads * (mixer.v_head_dim or mixer.head_dim)
        case MultiLatentAttention():
            inner = mixer.qk_nope_dim + mixer.qk_rope_dim
            return mixer.num_heads * inner, mixer.num_heads * mixer.v_head_dim
        case _:
            return 0, 0


def kept(mixer: Mixer | None, settings: Settings, *, tokens: int, whole: bool = False) -> Tensors:
    """Keys and values of one layer after so many tokens; nothing for layers without attention.

    Args:
        mixer: of the layer
        settings: of the run
        tokens: length of the sequences
        whole: a window does not cut yet: the prompt's tensors are cut by a view, which holds all of them
    """
    elements = head_elements(mixer)
    if not elements[0]:
        return ()
    found = tokens if whole else _in_window(mixer, settings, tokens)
    return tuple(
        _tensor(
            name, settings.rows * found * count * settings.cache_width,
            f"{settings.rows} x {found:,} tokens x {count:,} x {settings.cache_width} B",
        )
        for name, count in zip(("keys", "values"), elements, strict=True)
    )


def _in_window(mixer: Mixer | None, settings: Settings, tokens: int) -> int:
    limit = mixer.window if isinstance(mixer, Attention) and settings.behaviour.windowed_cache else None
    return tokens if limit is None else min(tokens, limit)


def crossed(layer: Layer, settings: Settings) -> Tensors:
    """Keys and values of the encoder's states, made once."""
    mixer = layer.cross_attention
    if mixer is None:
        return ()
    size = settings.rows * settings.source * mixer.num_kv_heads * mixer.head_dim * settings.cache_width
    return tuple(_tensor(f"{name} of the source", size) for name in ("keys", "values"))


def packed(mixer: Mixer | None, settings: Settings, *, tokens: int) -> Tensors:
    """Keys and values of one layer of a quantised cache: packed with scales and zeros, and the newest as they are."""
    found: list[Tensor] = []
    for name, count in zip(("keys", "values"), head_elements(mixer), strict=True):
        if not count:
            continue
        elements = settings.rows * tokens * count
        size = ceil_div(elements * settings.cache_bits, 8) + 2 * 2 * ceil_div(elements, QUANTISED_GROUP)
        formula = f"{settings.rows} x {tokens:,} tokens x {count:,} in {settings.cache_bits} bits"
        found.append(_tensor(f"{name}, packed", size, formula))
        if not settings.behaviour.reads_packed:
            newest = settings.rows * min(RESIDUAL, tokens) * count * settings.cache_width
            found.append(_tensor(f"{name}, newest", newest))
    return tuple(found)


def states(mixer: Mixer | None, settings: Settings) -> Tensors:
    """The fixed state of a layer without attention."""
    if not isinstance(mixer, (Mamba, LinearAttention)):
        return ()
    size = settings.rows * state_bytes(mixer, conv_width=settings.width, state_width=settings.width)
    return (_tensor("recurrent states", size, f"{settings.rows} sequences"),)


def _tensor(name: str, num_bytes: int, formula: str = "") -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.CACHE, owner="cache.layers", formula=formula, source=SOURCE
    )
