"""GPT-2 and the decoders of its time: learned or ALiBi positions, biases, plain feed-forward blocks.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import MLP, Layer, Mixer, Model, Norm
from vramcast.errors import InvalidSpec
from vramcast.families.assemble import TIED, Traits, attention_like, attention_of, decoder, decoder_stack, model_of
from vramcast.families.fields import Fields

GPT: Final = Traits(
    norm=Norm.LAYER, gated=False, activation="gelu_new", activation_keys=("activation_function", "hidden_act"),
    qkv_bias=True, out_bias=True, mlp_bias=True, tied=True, positions="learned",
)


def gpt(fields: Fields, *, traits: Traits = GPT) -> Model:
    """GPT-2, BLOOM: four times as wide inside where nobody says."""
    width = fields.maybe("intermediate_size") or 4 * fields.count("hidden_size")
    return decoder(fields.over({"intermediate_size": width}), traits=traits)


def gpt_j(fields: Fields) -> Model:
    """GPT-J, CodeGen: rotary on a part of the head, one norm for both parts."""
    hidden, rotary, fraction = fields.count("hidden_size"), fields.maybe("rotary_dim"), 1.0
    if rotary is not None:
        width = fields.share("hidden_size", hidden, "num_attention_heads", fields.count("num_attention_heads"))
        if rotary > width:
            raise fields.wrong("rotary_dim", "is more than the head width {}", width)
        fraction = rotary / width
    return gpt(fields, traits=replace(
        GPT, positions="rope", rope_fraction=fraction, qkv_bias=False, out_bias=False, head_bias=True, parallel=True,
        shared_input_norm=True, tied=False,
    ))


def gpt_neo(fields: Fields) -> Model:
    """GPT-Neo: every second layer sees a window; no bias on queries, keys and values."""
    window = fields.count("window_size", 256)

    def attention(fields: Fields, traits: Traits, index: int) -> Mixer:
        return attention_like(fields, traits, window if index % 2 else None)

    return gpt(fields, traits=replace(GPT, qkv_bias=False, mixer=attention))


def gpt_neox(fields: Fields) -> Model:
    """GPT-NeoX, Pythia, StableLM-alpha: rotary on a quarter of the head, two norms even when parallel."""
    parallel = fields.flag("use_parallel_residual", fallback=True)
    bias, rotary = fields.flag("attention_bias", fallback=True), fields.fraction("rotary_pct", 0.25)
    return gpt(fields.over({"partial_rotary_factor": rotary}), traits=replace(
        GPT, positions="rope", activation="gelu", parallel=parallel, qkv_bias=bias, out_bias=bias, tied=False,
    ))


def gpt_bigcode(fields: Fields) -> Model:
    """StarCoder 1: GPT-2 with one key/value head."""
    kv_heads = 1 if fields.flag("multi_query", fallback=True) else fields.count("num_attention_heads")
    return gpt(fields.over({"num_key_value_heads": kv_heads}))


def phi(fields: Fields) -> Model:
    """Phi 1, 1.5 and 2: one norm for both parts, biases everywhere, also on the output."""
    if fields.flag("qk_layernorm"):
        raise InvalidSpec("qk_layernorm=true of {} is in no published phi model; leave it out", fields.name)
    return gpt(fields, traits=replace(
        GPT, positions="rope", rope_fraction=0.5, parallel=True, shared_input_norm=True, head_bias=True, tied=False,
    ))


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
    parallel, bias = grouped or fields.flag("parallel_attn", fallback=True), fields.flag("bias")
    norms = fields.maybe("num_ln_in_parallel_attn") or (2 if grouped else 1)
    return gpt(fields.over({"num_key_value_heads": kv_heads}), traits=replace(
        GPT, positions="alibi" if fields.flag("alibi") else "rope", qkv_bias=bias, out_bias=bias, mlp_bias=bias,
        parallel=parallel, activation=fields.activation("activation", fallback="gelu"),
        shared_input_norm=parallel and norms == 1,
    ))


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


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "gpt2": gpt, "gptj": gpt_j, "codegen": gpt_j,
    "bloom": partial(gpt, traits=replace(GPT, positions="alibi", embedding_norm=True, activation="gelu")),
    "gpt_neo": gpt_neo, "gpt_neox": gpt_neox, "gpt_bigcode": gpt_bigcode, "phi": phi, "opt": opt, "falcon": falcon,
    "mpt": mpt,
}
