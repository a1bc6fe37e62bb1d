"""The decoder that most language models are, with what differs between families as a record of traits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from vramcast.domain.model import MLP, Channel, Layer, Mixer, Model, Norm
from vramcast.families.assemble import attention_of, decoder_stack, model_of, switch, windows_of
from vramcast.families.fields import Fields

ChannelOf = Callable[[Fields, "Traits", int], Channel]
MixerOf = Callable[[Fields, "Traits", int], Mixer]


class Traits(Struct, frozen=True, kw_only=True):
    """What a family decides where its config is silent. A text instead of a bool is the config key that says so."""

    norm: Norm = Norm.RMS
    gated: bool = True
    activation: str = "silu"
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_if: bool | str = True  # whether the query/key norm exists
    qk_norm_kind: Norm = Norm.RMS
    tied: bool = False
    post_norms: bool = False
    placement: Literal["pre", "post", "output"] = "pre"
    parallel: bool | str = False
    shared_input_norm: bool = False
    rope_fraction: float = 1.0
    output_gate: bool = False
    window: int | Literal["none", "all", "qwen"] = "none"
    window_key: str = "sliding_window"
    rope_every: int = 0  # n: every n-th layer has no rotary embedding
    sinks: bool = False
    channel: ChannelOf | None = None
    mixer: MixerOf | None = None
    mtp: bool = False  # reads num_nextn_predict_layers
    mtp_own_tables: bool = False
    positions: Literal["rope", "learned", "alibi"] = "rope"
    embedding_norm: bool = False
    activation_keys: tuple[str, ...] = ("hidden_activation", "hidden_act")


BIASED: Final = Traits(qkv_bias="attention_bias", out_bias="attention_bias")
"""Families whose config says whether projections of attention have biases."""


def mlp_of(fields: Fields, traits: Traits, width: int | None = None) -> MLP:
    activation = fields.activation(*traits.activation_keys, fallback=traits.activation)
    width, bias = width or fields.count("intermediate_size"), switch(fields, traits.mlp_bias)
    return MLP(width=width, gated=traits.gated, activation=activation, bias=bias)


def attention_like(fields: Fields, traits: Traits, window: int | None, *, rope: bool = True) -> Mixer:
    """The family's attention with the window of one layer."""
    rope = rope and traits.positions == "rope"
    return attention_of(
        fields, fields.count("hidden_size"), qkv_bias=switch(fields, traits.qkv_bias),
        out_bias=switch(fields, traits.out_bias), qk_norm_kind=traits.qk_norm_kind, rope=rope, window=window,
        qk_norm=traits.qk_norm if switch(fields, traits.qk_norm_if) else "none",
        position_bias="alibi" if traits.positions == "alibi" else "none",
        rope_fraction=fields.fraction("partial_rotary_factor", traits.rope_fraction),
        softcap=fields.has("attn_logit_softcapping"), sinks=traits.sinks,
        output_gate=traits.output_gate,
    )


def layer_like(traits: Traits, mixer: Mixer | None, channel: Channel | None, *, parallel: bool = False) -> Layer:
    return Layer(
        mixer=mixer, channel=channel, norm=traits.norm, post_norms=traits.post_norms, norm_placement=traits.placement,
        parallel=parallel, shared_input_norm=parallel and traits.shared_input_norm,
    )


def decoder_layers(fields: Fields, traits: Traits) -> tuple[Layer, ...]:
    count = fields.layers()
    parallel = switch(fields, traits.parallel)
    windows = windows_of(fields, count, traits.window, traits.window_key)
    mixers: dict[tuple[int | None, bool], Mixer] = {}
    dense = None if traits.channel else mlp_of(fields, traits)
    period = fields.natural("no_rope_layer_interval", traits.rope_every)
    layers = []
    for index, window in enumerate(windows):
        rope = period == 0 or (index + 1) % period > 0
        if traits.mixer is not None:
            mixer = traits.mixer(fields, traits, index)
        else:
            mixer = mixers.get((window, rope)) or attention_like(fields, traits, window, rope=rope)
            mixers[window, rope] = mixer
        channel = traits.channel(fields, traits, index) if traits.channel else dense
        layers.append(layer_like(traits, mixer, channel, parallel=parallel))
    return tuple(layers)


def decoder(fields: Fields, *, traits: Traits) -> Model:
    fields = fields.behind({"tie_word_embeddings": traits.tied})
    layers = decoder_layers(fields, traits)
    stack = decoder_stack(
        fields, layers, final_norm=traits.norm, embedding_norm=traits.norm if traits.embedding_norm else None,
        positions=fields.count("max_position_embeddings") if traits.positions == "learned" else 0,
    )
    extra = fields.natural("num_nextn_predict_layers", fields.natural("mtp_num_hidden_layers", 0)) if traits.mtp else 0
    if extra > len(layers):
        raise fields.wrong("num_nextn_predict_layers", "must not exceed num_hidden_layers={}", len(layers))
    return model_of(
        fields, stacks=(stack,), head_bias=switch(fields, traits.head_bias),
        logits_softcap=fields.has("final_logit_softcapping"), mtp_layers=(layers[-1],) * extra,
        mtp_own_embeddings=traits.mtp_own_tables, mtp_own_head=traits.mtp_own_tables,
    )
