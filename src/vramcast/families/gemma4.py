"""Gemma 4: two head widths, shared keys and values, a dense block beside the experts, an encoder with its own norms.

Source: transformers v5.23.0, src/transformers/models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from vramcast.blocks.parameters.layer import linear, norm, prefixed, vector
from vramcast.domain.model import MLP, Attention, Channel, Layer, Model, MoE, Norm, Parameter, Stack, VisionEmbedding
from vramcast.families.assemble import (
    TIED,
    Traits,
    attention_of,
    decoder_stack,
    layer_words,
    mlp_of,
    model_of,
    vision_stack,
)
from vramcast.families.fields import Fields, defaults_of
from vramcast.families.vision import section_of

GELU: Final = Traits(activation="gelu")
MOE_NORMS: Final = ("dense_post_norm", "experts_post_norm", "experts_norm")


def gemma4_text(fields: Fields) -> Model:
    """The decoder: every sixth layer global, with wider heads and, in the large models, keys that serve as values."""
    fields = fields.behind(TIED)
    count, hidden = fields.layers(), fields.count("hidden_size")
    kinds = layer_words(fields, "layer_types", count) or tuple(
        "sliding_attention" if (index + 1) % 6 else "full_attention" for index in range(count)
    )
    kinds = (*kinds[:-1], "full_attention")  # the last layer is global whatever the list says
    shared_from = count - fields.natural("num_kv_shared_layers", 0)
    if shared_from < 1:
        raise fields.wrong("num_kv_shared_layers", "must be below num_hidden_layers={}", count)
    per_layer = fields.natural("hidden_size_per_layer_input", 0)
    channel, extra = _channel(fields, hidden)
    extra += _per_layer_parameters(per_layer, hidden)
    layers = []
    for index, kind in enumerate(kinds):
        mixer = _attention(fields, hidden, windowed=kind == "sliding_attention", shared=index >= shared_from)
        wide = fields.flag("use_double_wide_mlp") and index >= shared_from
        block = mlp_of(fields, GELU, 2 * fields.count("intermediate_size")) if wide else channel
        layers.append(Layer(mixer=mixer, channel=block, post_norms=True, extra=extra))
    return model_of(
        fields, stacks=(decoder_stack(fields, layers),), logits_softcap=fields.has("final_logit_softcapping"),
        per_layer_embedding_width=per_layer,
        per_layer_vocab=fields.natural("vocab_size_per_layer_input", 0) if per_layer else 0,
    )


def _attention(fields: Fields, hidden: int, *, windowed: bool, shared: bool) -> Attention:
    bias = fields.flag("attention_bias")
    one_projection = False
    if not windowed:
        one_projection = fields.flag("attention_k_eq_v", fallback=fields.has("num_global_key_value_heads"))
        wide: dict[str, object] = {"head_dim": fields.count("global_head_dim", 512)}
        if one_projection and fields.has("num_global_key_value_heads"):
            wide["num_key_value_heads"] = fields.count("num_global_key_value_heads")
        fields = fields.over(wide)
    return attention_of(
        fields, hidden, qkv_bias=bias, out_bias=bias, qk_norm="head", k_is_v=one_projection, shared_kv=shared,
        rope_fraction=1.0 if windowed else 0.25, window=fields.maybe("sliding_window") if windowed else None,
    )


def _channel(fields: Fields, hidden: int) -> tuple[Channel, tuple[Parameter, ...]]:
    """The feed-forward block; with experts, the dense block runs beside them like a shared expert."""
    dense = mlp_of(fields, GELU)
    if not fields.flag("enable_moe_block", fallback=fields.has("num_experts")):
        return dense, ()
    experts = fields.count("num_experts")
    chosen = fields.count("top_k_experts", min(8, experts))
    if chosen > experts:
        raise fields.wrong("top_k_experts", "is more than num_experts={}", experts)
    expert = mlp_of(fields, GELU, fields.count("moe_intermediate_size"))
    norms = tuple(weight for name in MOE_NORMS for weight in norm(name, Norm.RMS, hidden))
    scales = (vector("moe.router_scale", hidden), vector("moe.expert_scale", experts))
    return MoE(num_experts=experts, top_k=chosen, expert=expert, shared_width=dense.width), norms + scales


def _per_layer_parameters(width: int, hidden: int) -> tuple[Parameter, ...]:
    if not width:
        return ()
    projections = (*linear("per_layer.gate", width, hidden), *linear("per_layer.projection", hidden, width))
    return (*projections, *norm("per_layer.norm", Norm.RMS, hidden))


def gemma4_tower(fields: Fields, text: Model) -> Stack:
    """The image encoder: gated blocks between two norms, two tables of positions."""
    inner = section_of(fields, "vision_config", "gemma4_vision")
    hidden, patch = inner.count("hidden_size"), inner.count("patch_size")
    activation = inner.activation("hidden_activation", fallback="gelu_pytorch_tanh")
    layer = Layer(
        mixer=attention_of(inner, hidden, qk_norm="head"),
        channel=MLP(width=inner.count("intermediate_size"), gated=True, activation=activation),
        post_norms=True,
    )
    table = Parameter(
        path="vision.positions_xy", shape=(2, inner.count("position_embedding_size", 10240), hidden), kind="embedding"
    )
    patches = VisionEmbedding(in_channels=3, patch=(patch, patch), bias=False)
    projector = ((hidden, text.hidden, False),)
    audio = fields.section("audio_config")
    extra = (table, *(() if audio is None else _audio_tower(audio.behind(defaults_of("gemma4_audio")), text.hidden)))
    return vision_stack(hidden, patches, (inner.layers(), layer), projector=projector, extra=extra,
                        pooled=inner.count("pooling_kernel_size", 3) ** 2)


def gemma4_unified(fields: Fields, text: Model) -> Stack:
    """No encoder: patches of 3 x 3 tiles and frames of sound become positions by one linear each, between norms."""
    inner = fields.section("vision_config") or fields.over({})
    width = inner.count("mm_embed_dim", 3840)
    patch = inner.count("patch_size", 16) * inner.count("pooling_kernel_size", 3)
    table = Parameter(path="vision.positions_xy", shape=(inner.count("mm_posemb_size", 1120), 2, width),
                      kind="embedding")
    norms = [norm(f"vision.norm{index}", Norm.LAYER, size) for index, size in enumerate((3 * patch**2, width, width))]
    audio = fields.section("audio_config")
    sounds = () if audio is None else linear("audio.projector", text.hidden, audio.count("audio_embed_dim", 640))
    patches = VisionEmbedding(in_channels=3, patch=(patch, patch), bias=True)
    extra = (table, *(weight for pair in norms for weight in pair), *sounds)
    return vision_stack(width, patches, projector=((width, text.hidden, False),), extra=extra)


def _audio_tower(fields: Fields, out: int) -> tuple[Parameter, ...]:
    """The weights of the audio encoder, a conformer: they are loaded whatever is asked of the model."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    channels = (1, *(fields.naturals("subsampling_conv_channels") or (128, 32)))
    found: list[Parameter] = []
    for index, (inputs, outputs) in enumerate(pairwise(channels)):
        found += (
            Parameter(path=f"conv{index}", shape=(outputs, inputs, 3, 3), kind="conv"), vector(f"norm{index}", outputs),
        )
    found += linear("in", hidden, channels[1] // 4 * channels[-1])
    head_dim = fields.share("hidden_size", hidden, "num_attention_heads", heads)
    half = (*linear("up", 4 * hidden, hidden), *linear("down", hidden, 4 * hidden), *_norms(2, hidden))
    layer = (
        *prefixed("feed0", half), *prefixed("feed1", half),
        *linear("attention", 5 * hidden, hidden), vector("scale", head_dim),
        *linear("conv.in", 2 * hidden, hidden), *linear("conv.out", hidden, hidden),
        Parameter(path="conv", shape=(hidden, 1, fields.count("conv_kernel_size", 5)), kind="conv"), *_norms(5, hidden),
    )
    for index in range(fields.layers()):
        found += prefixed(f"layers.{index}", layer)
    width = fields.count("output_proj_dims", 1536)
    return prefixed("audio", (*found, *linear("out", width, hidden, bias=True), *linear("projector", out, width)))


def _norms(count: int, width: int) -> tuple[Parameter, ...]:
    return tuple(weight for index in range(count) for weight in norm(f"norm{index}", Norm.RMS, width))
