"""GPT-2 and the decoders of its time: learned or ALiBi positions, biases, plain feed-forward blocks.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from vramcast.domain.model import MLP, Attention, Layer, Model, Norm
from vramcast.errors import InvalidSpec
from vramcast.families.assemble import TIED, attention_of, decoder_stack, model_of
from vramcast.families.fields import Fields


class GptTraits(Struct, frozen=True, kw_only=True):
    """What a family of this kind decides where its config is silent."""

    positions: Literal["learned", "rope", "alibi"] = "learned"
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    head_bias: bool = False
    activation: str = "gelu_new"
    parallel: bool = False
    shared_input_norm: bool = False
    embedding_norm: bool = False
    tied: bool = True


def gpt(fields: Fields, *, traits: GptTraits) -> Model:
    """GPT-2, GPT-J, CodeGen, BLOOM."""
    fields = fields.behind({"tie_word_embeddings": traits.tied})
    hidden, rotary = fields.count("hidden_size"), traits.positions == "rope"
    attention = attention_of(
        fields, hidden, qkv_bias=traits.qkv_bias, out_bias=traits.out_bias, rope=rotary,
        rope_fraction=_rotary_fraction(fields, hidden) if rotary else 1.0,
        position_bias="alibi" if traits.positions == "alibi" else "none",
    )
    return _assembled(fields, traits, attention)


def _rotary_fraction(fields: Fields, hidden: int) -> float:
    rotary = fields.maybe("rotary_dim")
    if rotary is None:
        return 1.0
    width = fields.share("hidden_size", hidden, "num_attention_heads", fields.count("num_attention_heads"))
    if rotary > width:
        raise fields.wrong("rotary_dim", f"is more than the head width {width}")
    return rotary / width


def _layer(fields: Fields, traits: GptTraits, attention: Attention) -> Layer:
    hidden = fields.count("hidden_size")
    activation = fields.activation("activation_function", "hidden_act", fallback=traits.activation)
    width = fields.maybe("intermediate_size") or 4 * hidden
    mlp = MLP(width=width, gated=False, activation=activation, bias=traits.mlp_bias)
    return Layer(
        mixer=attention, channel=mlp, norm=Norm.LAYER, parallel=traits.parallel,
        shared_input_norm=traits.shared_input_norm,
    )


def _assembled(fields: Fields, traits: GptTraits, *attentions: Attention) -> Model:
    """The model of layers with these attentions; of one in all layers where it is alone."""
    layers = [_layer(fields, traits, attention) for attention in attentions]
    stack = decoder_stack(
        fields, layers[0] if len(layers) == 1 else layers, final_norm=Norm.LAYER,
        embedding_norm=Norm.LAYER if traits.embedding_norm else None,
        positions=fields.count("max_position_embeddings") if traits.positions == "learned" else 0,
    )
    return model_of(fields, stacks=(stack,), head_bias=traits.head_bias)


def gpt_neo(fields: Fields) -> Model:
    """GPT-Neo: every second layer sees a window; no bias on queries, keys and values."""
    fields = fields.behind(TIED)
    window, hidden = fields.count("window_size", 256), fields.count("hidden_size")
    windows = (window if index % 2 else None for index in range(fields.layers()))
    attentions = (attention_of(fields, hidden, out_bias=True, rope=False, window=seen) for seen in windows)
    return _assembled(fields, GptTraits(qkv_bias=False), *attentions)


def gpt_neox(fields: Fields) -> Model:
    """GPT-NeoX, Pythia, StableLM-alpha: rotary on a quarter of the head, two norms even when parallel."""
    parallel = fields.flag("use_parallel_residual", fallback=True)
    bias, rotary = fields.flag("attention_bias", fallback=True), fields.fraction("rotary_pct", 0.25)
    attention = attention_of(
        fields, fields.count("hidden_size"), qkv_bias=bias, out_bias=bias, rope_fraction=rotary
    )
    traits = GptTraits(positions="rope", activation="gelu", parallel=parallel, tied=False)
    return _assembled(fields, traits, attention)


def gpt_bigcode(fields: Fields) -> Model:
    """StarCoder 1: GPT-2 with one key/value head."""
    fields = fields.behind(TIED)
    kv_heads = 1 if fields.flag("multi_query", fallback=True) else fields.count("num_attention_heads")
    fields = fields.over({"num_key_value_heads": kv_heads})
    attention = attention_of(fields, fields.count("hidden_size"), qkv_bias=True, out_bias=True, rope=False)
    return _assembled(fields, GptTraits(), attention)


def phi(fields: Fields) -> Model:
    """Phi 1, 1.5 and 2: one norm for both parts, biases everywhere, also on the output."""
    if fields.flag("qk_layernorm"):
        raise InvalidSpec(f"qk_layernorm=true of {fields.name} is in no published phi model; leave it out")
    hidden, rotary = fields.count("hidden_size"), fields.fraction("partial_rotary_factor", 0.5)
    attention = attention_of(fields, hidden, qkv_bias=True, out_bias=True, rope_fraction=rotary)
    traits = GptTraits(positions="rope", parallel=True, shared_input_norm=True, head_bias=True, tied=False)
    return _assembled(fields, traits, attention)


def opt(fields: Fields) -> Model:
    """OPT: positions start at 2; the 350M model norms after the sum and has a factorised embedding."""
    fields = fields.behind(TIED)
    hidden, bias = fields.count("hidden_size"), fields.flag("enable_bias", fallback=True)
    before = fields.flag("do_layer_norm_before", fallback=True)
    attention = attention_of(fields, hidden, qkv_bias=bias, out_bias=bias, rope=False)
    width = fields.maybe("intermediate_size") or 4 * hidden
    activation = fields.activation("activation_function", fallback="relu")
    layer = Layer(
        mixer=attention, channel=MLP(width=width, gated=False, activation=activation, bias=bias),
        norm=Norm.LAYER if fields.flag("layer_norm_elementwise_affine", fallback=True) else Norm.PLAIN,
        norm_placement="pre" if before else "post",
    )
    stack = decoder_stack(
        fields, layer, final_norm=layer.norm if before and not fields.flag("_remove_final_layer_norm") else None,
        positions=fields.count("max_position_embeddings") + 2,
    )
    return model_of(fields, stacks=(stack,), embedding_width=fields.maybe("word_embed_proj_dim"))


def falcon(fields: Fields) -> Model:
    """Falcon: one key/value head (7B) or groups with two parallel norms (40B, 180B)."""
    fields = fields.behind(TIED)
    grouped = fields.flag("new_decoder_architecture")
    heads = fields.count("num_attention_heads")
    if grouped:
        kv_heads = fields.count("num_kv_heads" if fields.has("num_kv_heads") else "n_head_kv", heads)
    else:
        kv_heads = 1 if fields.flag("multi_query", fallback=True) else heads
    fields = fields.over({"num_key_value_heads": kv_heads})
    parallel, bias = grouped or fields.flag("parallel_attn", fallback=True), fields.flag("bias")
    alibi = fields.flag("alibi")
    norms = fields.maybe("num_ln_in_parallel_attn") or (2 if grouped else 1)
    traits = GptTraits(
        positions="alibi" if alibi else "rope", mlp_bias=bias, parallel=parallel,
        activation=fields.activation("activation", fallback="gelu"), shared_input_norm=parallel and norms == 1,
    )
    attention = attention_of(
        fields, fields.count("hidden_size"), qkv_bias=bias, out_bias=bias, rope=not alibi,
        position_bias="alibi" if alibi else "none",
    )
    return _assembled(fields, traits, attention)


def mpt(fields: Fields) -> Model:
    """MPT: no biases at all; ALiBi or learned positions."""
    fields = fields.behind(TIED)
    hidden = fields.count("hidden_size")
    inner = fields.section("attn_config") or Fields({}, name=fields.name)
    alibi = inner.flag("alibi", fallback=True)
    attention = attention_of(fields, hidden, rope=False, position_bias="alibi" if alibi else "none")
    mlp = MLP(width=fields.multiple("expansion_ratio", 4, of=hidden), gated=False, activation="gelu")
    stack = decoder_stack(
        fields, Layer(mixer=attention, channel=mlp, norm=Norm.LAYER_NO_BIAS), final_norm=Norm.LAYER_NO_BIAS,
        positions=0 if alibi else fields.count("max_position_embeddings"),
    )
    return model_of(fields, stacks=(stack,))


GPT_J: Final = GptTraits(
    positions="rope", qkv_bias=False, out_bias=False, head_bias=True, parallel=True, shared_input_norm=True, tied=False
)

BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "gpt2": partial(gpt, traits=GptTraits()),
    "gptj": partial(gpt, traits=GPT_J),
    "codegen": partial(gpt, traits=GPT_J),
    "bloom": partial(gpt, traits=GptTraits(positions="alibi", embedding_norm=True, activation="gelu")),
    "gpt_neo": gpt_neo, "gpt_neox": gpt_neox, "gpt_bigcode": gpt_bigcode, "phi": phi, "opt": opt, "falcon": falcon,
    "mpt": mpt,
}
