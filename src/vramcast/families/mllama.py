"""Llama 3.2 Vision: a decoder with cross-attention layers, and an image encoder with tiles and global layers.

Source: transformers v5.23.0, src/transformers/models/mllama/modeling_mllama.py.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import vector
from vramcast.domain.model import MLP, Attention, Layer, Model, Norm, Parameter, Stack
from vramcast.families.assemble import attention_of, decoder_stack, model_of, vision_stack
from vramcast.families.decoder import Traits, decoder_layers
from vramcast.families.fields import Fields
from vramcast.families.vision import patch_embedding, patches_of, section_of

IMAGE_TOKENS: Final = 8
"""Rows the embedding has beyond `vocab_size`; the output projection lacks them."""

GATES: Final = (vector("cross_attention_gate", 1), vector("cross_mlp_gate", 1))


def mllama_text(fields: Fields) -> Model:
    """LLaMA whose `cross_attention_layers` read the image instead of the text."""
    hidden = fields.count("hidden_size")
    crossed = fields.naturals("cross_attention_layers") or ()
    layers = list(decoder_layers(fields, Traits()))
    for index in crossed:
        if index >= len(layers):
            raise fields.wrong("cross_attention_layers", "must name layers below num_hidden_layers={}", len(layers))
        attention = attention_of(fields, hidden, qk_norm="head", rope=False, source_width=hidden)
        layers[index] = replace(layers[index], mixer=attention, extra=GATES)
    rows = Parameter(path="embedding.image_tokens", shape=(IMAGE_TOKENS, hidden), kind="embedding")
    return model_of(fields, stacks=(decoder_stack(fields, layers, extra=(rows,)),))


def _layer(fields: Fields, hidden: int, *, gated: bool) -> Layer:
    heads = fields.count("attention_heads")
    width = fields.share("hidden_size", hidden, "attention_heads", heads)
    inner, activation = fields.count("intermediate_size"), fields.activation("hidden_act", fallback="gelu")
    return Layer(
        mixer=Attention(num_heads=heads, num_kv_heads=heads, head_dim=width, rope=False), norm=Norm.LAYER,
        channel=MLP(width=inner, gated=False, activation=activation, bias=True),
        extra=(vector("attention_gate", 1), vector("mlp_gate", 1)) if gated else (),
    )


def mllama_tower(fields: Fields, text: Model) -> Stack:
    """ViT over up to four tiles, with embeddings per aspect ratio, then gated global layers."""
    inner = section_of(fields, "vision_config", "mllama_vision_model")
    hidden, tiles = inner.count("hidden_size"), inner.count("max_num_tiles", 4)
    ratios = inner.get("supported_aspect_ratios")
    rows = (len(ratios) if isinstance(ratios, list | tuple) else 8) + 1
    positions = patches_of(inner) + 1
    tables = tuple(
        part
        for gate, table, width in (
            ("position_gate", "tile_positions", positions * hidden), ("pre_tile_gate", "pre_tile", hidden),
            ("post_tile_gate", "post_tile", hidden),
        )
        for part in (
            Parameter(path=f"vision.{gate}", shape=(1,), kind="scalar"),
            Parameter(path=f"vision.{table}", shape=(rows, tiles * width), kind="embedding"),
        )
    )
    local = (inner.layers(), _layer(inner, hidden, gated=False))
    everywhere = (inner.layers("num_global_layers", 8), _layer(inner, hidden, gated=True))
    return vision_stack(
        hidden, patch_embedding(inner, bias=False, class_token=True, pre_norm=True), local, everywhere,
        final_norm=Norm.LAYER, extra=tables,
        projector=((inner.count("vision_output_dim", 7680), text.hidden, True),),
    )
