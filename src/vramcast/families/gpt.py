"""GPT-2 and the decoders of its time: learned or ALiBi positions, biases, plain feed-forward blocks.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct

from vramcast.domain.model import MLP, Attention, Layer, Model, Norm, Run, Stack
from vramcast.errors import InvalidSpec
from vramcast.families.assemble import attention_of, model_of, runs_of
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
    """GPT-2, GPT-Neo, GPT-J, CodeGen, BLOOM."""
    fields = fields.behind({"tie_word_embeddings": traits.tied})
    hidden = fields.count("hidden_size")
    attention = attention_of(
        fields,
        hidden,
        qkv_bias=traits.qkv_bias,
        out_bias=traits.out_bias,
        rope=traits.positions == "rope",
        rope_fraction=_rotary_fraction(fields, hidden) if traits.positions == "rope" else 1.0,
        position_bias="alibi" if traits.positions == "alibi" else "none",
    )
    return _assembled(fields, traits, (Run(count=fields.layers(), layer=_layer(fields, traits, attention)),))


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
        mixer=attention,
        channel=mlp,
        norm=Norm.LAYER,
        parallel=traits.parallel,
        shared_input_norm=traits.shared_input_norm,
    )


def _assembled(fields: Fields, traits: GptTraits, runs: tuple[Run, ...], **facts: Any) -> Model:
    stack = Stack(
        name="decoder",
        hidden=fields.count("hidden_size"),
        runs=runs,
        final_norm=Norm.LAYER,
        embedding_norm=Norm.LAYER if traits.embedding_norm else None,
        positions=fields.count("max_position_embeddings") if traits.positions == "learned" else 0,
    )
    return model_of(fields, stacks=(stack,), head_bias=traits.head_bias, **facts)


def gpt_neo(fields: Fields) -> Model:
    """GPT-Neo: every second layer sees a window; no bias on queries, keys and values."""
    traits = GptTraits(qkv_bias=False)
    fields = fields.behind({"tie_word_embeddings": True})
    window = fields.count("window_size", 256)
    hidden = fields.count("hidden_size")
    layers = (
        _layer(
            fields,
            traits,
            attention_of(fields, hidden, out_bias=True, rope=False, window=window if index % 2 else None),
        )
        for index in range(fields.layers())
    )
    return _assembled(fields, traits, runs_of(layers))


def gpt_neox(fields: Fields) -> Model:
    """GPT-NeoX, Pythia, StableLM-alpha: rotary on a quarter of the head, two norms even when parallel."""
    parallel = fields.flag("use_parallel_residual", fallback=True)
    bias = fields.flag("attention_bias", fallback=True)
    attention = attention_of(
        fields,
        fields.count("hidden_size"),
        qkv_bias=bias,
        out_bias=bias,
        rope_fraction=fields.fraction("rotary_pct", 0.25),
    )
    traits = GptTraits(positions="rope", activation="gelu", parallel=parallel, tied=False)
    return _assembled(fields, traits, (Run(count=fields.layers(), layer=_layer(fields, traits, attention)),))


def gpt_bigcode(fields: Fields) -> Model:
    """StarCoder 1: GPT-2 with one key/value head."""
    fields = fields.behind({"tie_word_embeddings": True})
    kv_heads = 1 if fields.flag("multi_query", fallback=True) else fields.count("num_attention_heads")
    fields = fields.over({"num_key_value_heads": kv_heads})
    attention = attention_of(fields, fields.count("hidden_size"), qkv_bias=True, out_bias=True, rope=False)
    traits = GptTraits()
    return _assembled(fields, traits, (Run(count=fields.layers(), layer=_layer(fields, traits, attention)),))


def phi(fields: Fields) -> Model:
    """Phi 1, 1.5 and 2: one norm for both parts, biases everywhere, also on the output."""
    if fields.flag("qk_layernorm"):
        raise InvalidSpec(f"qk_layernorm=true of {fields.name} is in no published phi model; leave it out")
    attention = attention_of(
        fields,
        fields.count("hidden_size"),
        qkv_bias=True,
        out_bias=True,
        rope_fraction=fields.fraction("partial_rotary_factor", 0.5),
    )
    traits = GptTraits(positions="rope", parallel=True, shared_input_norm=True, head_bias=True, tied=False)
    return _assembled(fields, traits, (Run(count=fields.layers(), layer=_layer(fields, traits, attention)),))


def opt(fields: Fields) -> Model:
    """OPT: positions start at 2; the 350M model norms after the sum and has a factorised embedding."""
    fields = fields.behind({"tie_word_embeddings": True})
    hidden, bias = fields.count("hidden_size"), fields.flag("enable_bias", fallback=True)
    before = fields.flag("do_layer_norm_before", fallback=True)
    attention = attention_of(fields, hidden, qkv_bias=bias, out_bias=bias, rope=False)
    width = fields.maybe("intermediate_size") or 4 * hidden
    activation = fields.activation("activation_function", fallback="relu")
    layer = Layer(
        mixer=attention,
        channel=MLP(width=width, gated=False, activation=activation, bias=bias),
        norm=Norm.LAYER if fields.flag("layer_norm_elementwise_affine", fallback=True) else Norm.PLAIN,
        norm_placement="pre" if before else "post",
    )
    stack = Stack(
        name="decoder",
        hidden=hidden,
        runs=(Run(count=fields.layers(), layer=layer),),
        final_norm=layer.norm if before and not fields.flag("_remove_final_layer_norm") else None,
        positions=fields.count("max_position_embeddings") + 2,
    )
    return model_of(fields, stacks=(stack,), embedding_width=fields.maybe("word_embed_proj_dim"))


def falcon(fields: Fields) -> Model:
    """Falcon: one key/value head (7B) or groups with two parallel norms (40B, 180B)."""
    fields = fields.behind({"tie_word_embeddings": True})
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
        positions="alibi" if alibi else "rope",
        mlp_bias=bias,
        activation=fields.activation("activation", fallback="gelu"),
        parallel=parallel,
        shared_input_norm=parallel and norms == 1,
    )
    attention = attention_of(
        fields,
        fields.count("hidden_size"),
        qkv_bias=bias,
        out_bias=bias,
        rope=not alibi,
        position_bias="alibi" if alibi else "none",
    )
    return _assembled(fields, traits, (Run(count=fields.layers(), layer=_layer(fields, traits, attention)),))


def mpt(fields: Fields) -> Model:
    """MPT: no biases at all; ALiBi or learned positions."""
    fields = fields.behind({"tie_word_embeddings": True})
    hidden = fields.count("hidden_size")
    inner = fields.section("attn_config") or Fields({}, name=fields.name)
    alibi = inner.flag("alibi", fallback=True)
    attention = attention_of(fields, hidden, rope=False, position_bias="alibi" if alibi else "none")
    width = fields.multiple("expansion_ratio", 4, of=hidden)
    mlp = MLP(width=width, gated=False, activation="gelu")
    layer = Layer(mixer=attention, channel=mlp, norm=Norm.LAYER_NO_BIAS)
    stack = Stack(
        name="decoder",
        hidden=hidden,
        runs=(Run(count=fields.layers(), layer=layer),),
        final_norm=Norm.LAYER_NO_BIAS,
        positions=0 if alibi else fields.count("max_position_embeddings"),
    )
    return model_of(fields, stacks=(stack,))


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "gpt2": partial(gpt, traits=GptTraits()),
    "gptj": partial(
        gpt,
        traits=GptTraits(
            positions="rope",
            qkv_bias=False,
            out_bias=False,
            head_bias=True,
            parallel=True,
            shared_input_norm=True,
            tied=False,
        ),
    ),
    "codegen": partial(
        gpt,
        traits=GptTraits(
            positions="rope",
            qkv_bias=False,
            out_bias=False,
            head_bias=True,
            parallel=True,
            shared_input_norm=True,
            tied=False,
        ),
    ),
    "bloom": partial(gpt, traits=GptTraits(positions="alibi", embedding_norm=True, activation="gelu")),
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gpt_bigcode": gpt_bigcode,
    "phi": phi,
    "opt": opt,
    "falcon": falcon,
    "mpt": mpt,
}
