"""Models of gated short convolutions between attention layers.

Facts: transformers v5.23.0, src/transformers/models/lfm2/modeling_lfm2.py and configuration_lfm2.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from vramcast.domain.model import MLP, Channel, LinearAttention, Mixer, Model
from vramcast.families.assemble import attention_of, layer_words
from vramcast.families.decoder import Traits, decoder
from vramcast.families.fields import Fields
from vramcast.units import round_up

FULL: Final = "full_attention"


def lfm2_mixer(fields: Fields, traits: Traits, index: int) -> Mixer:
    """LFM2: attention with normed queries and keys in the layers the config names, else a gated convolution."""
    del traits
    hidden = fields.count("hidden_size")
    kinds = layer_words(fields, "layer_types", fields.layers())
    full = kinds[index] == FULL if kinds else index in (fields.naturals("full_attn_idxs") or ())
    attention = attention_of(fields, hidden, qk_norm="head")
    if full:
        return attention
    return LinearAttention(
        num_k_heads=attention.num_heads,
        num_v_heads=attention.num_heads,
        k_head_dim=0,
        v_head_dim=fields.count("conv_dim", hidden) // attention.num_heads,
        conv_kernel=fields.count("conv_L_cache", 3),
        variant="short_conv",
    )


def lfm2_channel(fields: Fields, traits: Traits, index: int) -> Channel:
    """LFM2: two thirds of the width, rounded up, unless the config says that it is final."""
    del traits, index
    width = fields.count("block_ff_dim", fields.count("intermediate_size", 12288))
    if fields.flag("block_auto_adjust_ff_dim", fallback=True):
        width = fields.multiple("block_ffn_dim_multiplier", 1.0, of=2 * width // 3)
        width = round_up(width, fields.count("block_multiple_of", 256))
    return MLP(width=width, gated=True)


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "lfm2": partial(decoder, traits=Traits(mixer=lfm2_mixer, channel=lfm2_channel, tied=True)),
}
