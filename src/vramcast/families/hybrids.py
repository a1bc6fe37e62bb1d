"""State space, linear attention and gated short convolutions, alone or between attention layers.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import linear, norm
from vramcast.domain.model import MLP, Channel, Layer, LinearAttention, Mamba, Mixer, Model, MoE, Norm, Parameter
from vramcast.errors import InvalidSpec
from vramcast.families.assemble import (
    TIED,
    Traits,
    attention_like,
    attention_of,
    decoder,
    decoder_stack,
    layer_words,
    mlp_of,
    model_of,
)
from vramcast.families.fields import Fields
from vramcast.families.moe import corrected, experts_of, latent, qwen_moe, routed
from vramcast.units import ceil_div, round_up

FULL: Final = frozenset({"full_attention", "attention", "hybrid"})


def is_full_attention(fields: Fields, index: int) -> bool:
    """Whether layer `index` of a linear-attention hybrid keeps full attention, by default every fourth."""
    kinds = layer_words(fields, "layer_types", fields.layers())
    if kinds:
        return kinds[index] in FULL
    return (index + 1) % fields.count("full_attention_interval", 4) == 0


def gated_delta(fields: Fields, traits: Traits, index: int) -> Mixer:
    """Qwen3-Next and Qwen3.5: a gated delta net, every fourth layer attention with an output gate."""
    if is_full_attention(fields, index):
        hidden, bias = fields.count("hidden_size"), fields.flag("attention_bias")
        rotary = fields.fraction("partial_rotary_factor", traits.rope_fraction)
        return attention_of(
            fields, hidden, qkv_bias=bias, out_bias=bias, qk_norm="head", rope_fraction=rotary, output_gate=True
        )
    return LinearAttention(
        num_k_heads=fields.count("linear_num_key_heads"), num_v_heads=fields.count("linear_num_value_heads"),
        k_head_dim=fields.count("linear_key_head_dim"), v_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim", 4),
    )


def kimi(fields: Fields, traits: Traits, index: int) -> Mixer:
    """Kimi Linear: Kimi delta attention, and latent attention in the layers the config names."""
    inner = fields.section("linear_attn_config")
    if inner is not None and inner.has("full_attn_layers"):
        full = index + 1 in (inner.naturals("full_attn_layers") or ())
    else:
        full = is_full_attention(fields, index)
    if full:
        return latent(fields, traits, index)
    if inner is not None:
        heads, width = inner.count("num_heads"), inner.count("head_dim")
        kernel = inner.count("short_conv_kernel_size", 4)
    else:
        heads = fields.count("linear_num_heads", fields.count("num_attention_heads"))
        width, kernel = fields.count("linear_head_dim", 128), fields.count("linear_conv_kernel_dim", 4)
    return LinearAttention(
        num_k_heads=heads, num_v_heads=heads, k_head_dim=width, v_head_dim=width, conv_kernel=kernel,
        variant="kimi_delta",
    )


def minimax(fields: Fields, traits: Traits, index: int) -> Mixer:
    """MiniMax-01: lightning attention; attention in the layers the config names, or in every second one."""
    kinds = layer_words(fields, "layer_types", fields.layers())
    flags = fields.naturals("attn_type_list")
    if not kinds and flags and len(flags) == fields.layers():
        kinds = tuple("full_attention" if flag else "linear_attention" for flag in flags)
    full = kinds[index] in FULL if kinds else index % 2 == 1
    attention = attention_of(fields, fields.count("hidden_size"))
    if full:
        return attention
    heads, width = attention.num_heads, attention.head_dim
    return LinearAttention(
        num_k_heads=heads, num_v_heads=heads, k_head_dim=width, v_head_dim=width, variant="lightning"
    )


def mamba1_of(fields: Fields, hidden: int, *, prefix: str = "", inner_norms: bool = False) -> Mamba:
    """The first Mamba; Jamba writes the same keys behind `mamba_`."""
    state, kernel = ("mamba_d_state", "mamba_d_conv") if prefix else ("state_size", "conv_kernel")
    inner = fields.multiple(f"{prefix}expand", 2, of=hidden)
    rank_key = "mamba_dt_rank" if prefix else "time_step_rank"
    automatic = fields.get(rank_key) in (None, "auto")
    return Mamba(
        version=1, inner_dim=inner if prefix else fields.count("intermediate_size", inner),
        state_dim=fields.count(state, 16), conv_kernel=fields.count(kernel, 4), inner_norms=inner_norms,
        dt_rank=ceil_div(hidden, 16) if automatic else fields.count(rank_key),
        conv_bias=fields.flag(f"{prefix}conv_bias" if prefix else "use_conv_bias", fallback=True),
        proj_bias=fields.flag(f"{prefix}proj_bias" if prefix else "use_bias"),
    )


def mamba(fields: Fields) -> Model:
    fields = fields.behind(TIED)
    return _ssm(fields, mamba1_of(fields, fields.count("hidden_size")))


def mamba2(fields: Fields) -> Model:
    """Mamba-2: heads share their state matrices in groups."""
    hidden = fields.count("hidden_size")
    inner = fields.multiple("expand", 2, of=hidden)
    head_dim = fields.count("head_dim", 64)
    heads = fields.count("num_heads", fields.share("expand * hidden_size", inner, "head_dim", head_dim))
    if heads * head_dim != inner:
        raise InvalidSpec(
            "num_heads * head_dim = {} of {} must be expand * hidden_size = {}", heads * head_dim, fields.name, inner
        )
    return _ssm(fields, mamba2_of(fields, heads, head_dim, state=fields.count("state_size", 128)))


def mamba2_of(fields: Fields, heads: int, width: int, *, state: int, **biases: bool) -> Mamba:
    """The second Mamba, with the keys of the first."""
    return Mamba(
        version=2, inner_dim=heads * width, state_dim=state, conv_kernel=fields.count("conv_kernel", 4),
        num_heads=heads, head_dim=width, num_groups=fields.count("n_groups", 1),
        conv_bias=fields.flag("use_conv_bias", fallback=True), **{"proj_bias": fields.flag("use_bias")} | biases,
    )


def _ssm(fields: Fields, mixer: Mamba) -> Model:
    return model_of(fields, stacks=(decoder_stack(fields, Layer(mixer=mixer, channel=None)),))


def jamba_mixer(fields: Fields, traits: Traits, index: int) -> Mixer:
    """Jamba: attention in one layer of a period, Mamba in the others."""
    period = fields.count("attn_layer_period", 8)
    if index % period == fields.natural("attn_layer_offset", 4):
        return attention_like(fields, traits, None, rope=False)
    return mamba1_of(fields, fields.count("hidden_size"), prefix="mamba_", inner_norms=True)


def jamba_channel(fields: Fields, traits: Traits, index: int) -> Channel:
    period = fields.count("expert_layer_period", 2)
    dense = mlp_of(fields, traits)
    if index % period != fields.natural("expert_layer_offset", 1) or fields.natural("num_experts", 16) <= 1:
        return dense
    experts, chosen = experts_of(fields)
    return MoE(num_experts=experts, top_k=chosen, expert=dense)


NEMOTRON_LETTERS: Final = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
NEMOTRON_WORDS: Final = {
    "linear_attention": "mamba", "mamba": "mamba", "moe": "moe", "full_attention": "attention",
    "attention": "attention", "mlp": "mlp",
}


def nemotron_kinds(fields: Fields) -> tuple[str, ...]:
    """What each layer of a Nemotron-H is, from its pattern string or its list."""
    words = fields.words("layers_block_type")
    if words and not fields.states("hybrid_override_pattern"):
        known, letters = NEMOTRON_WORDS, words
    else:
        known, letters = NEMOTRON_LETTERS, tuple(fields.word("hybrid_override_pattern"))
    if not letters or len(letters) > 4096 or any(letter not in known for letter in letters):
        raise fields.wrong("hybrid_override_pattern", "must be a row of {}", ", ".join(known))
    if fields.states("num_hidden_layers") and fields.layers() != len(letters):
        raise fields.wrong("num_hidden_layers", "must be the {} layers of hybrid_override_pattern", len(letters))
    return tuple(known[letter] for letter in letters)


def _nemotron_parts(fields: Fields) -> dict[str, Layer]:
    hidden = fields.count("hidden_size")
    heads, width = fields.count("mamba_num_heads"), fields.count("mamba_head_dim")
    bias, activation = fields.flag("mlp_bias"), fields.activation("mlp_hidden_act", fallback="relu2")
    projected = fields.flag("use_bias") or fields.flag("mamba_proj_bias")
    state_space = mamba2_of(fields, heads, width, state=fields.count("ssm_state_size"), proj_bias=projected)
    attends = fields.flag("attention_bias")
    attention = attention_of(fields, hidden, qkv_bias=attends, out_bias=attends, rope=False)
    parts = {"mamba": Layer(mixer=state_space, channel=None), "attention": Layer(mixer=attention, channel=None)}
    if fields.has("intermediate_size"):
        mlp = MLP(width=fields.count("intermediate_size"), gated=False, activation=activation, bias=bias)
        parts["mlp"] = Layer(mixer=None, channel=mlp)
    if fields.has("n_routed_experts"):
        parts["moe"] = Layer(mixer=None, channel=_nemotron_moe(fields, activation, bias=bias))
    return parts


def _nemotron_moe(fields: Fields, activation: str, *, bias: bool) -> MoE:
    experts, chosen = experts_of(fields)
    width = fields.count("moe_intermediate_size")
    shared = fields.natural("n_shared_experts", 1)
    return MoE(
        num_experts=experts, top_k=chosen, expert=MLP(width=width, gated=False, activation=activation, bias=bias),
        shared_width=shared * fields.count("moe_shared_expert_intermediate_size", width), score_bias=True,
        score_bias_is_parameter=False, latent_width=fields.natural("moe_latent_size", 0),
    )


def nemotron_h(fields: Fields) -> Model:
    """Nemotron-H and Nemotron 3: each layer is a Mamba-2, an attention, a feed-forward or an expert block."""
    kinds, parts = nemotron_kinds(fields), _nemotron_parts(fields)
    missing = sorted(set(kinds) - set(parts))
    if missing:
        raise InvalidSpec("config of {} has {} layers but no sizes for them", fields.name, missing[0])
    return model_of(fields, stacks=(decoder_stack(fields, (parts[kind] for kind in kinds)),))


def nemotron_nas(fields: Fields) -> Model:
    """Llama-Nemotron (DeciLM): every layer has its own number of heads and width, or lacks a part.

    Source: nvidia/Llama-3_3-Nemotron-Super-49B-v1 block_config.py and modeling_decilm.py.
    """
    blocks = fields.sections("block_configs")
    if not blocks:
        raise InvalidSpec("config of {} lacks block_configs, which says what each layer holds", fields.name)
    return model_of(fields, stacks=(decoder_stack(fields, (_nas_layer(fields, block) for block in blocks)),))


def _nas_layer(fields: Fields, block: Fields) -> Layer:
    hidden = fields.count("hidden_size")
    inner, ffn = block.section("attention"), block.section("ffn")
    if inner is None or ffn is None:
        raise InvalidSpec("{} lacks attention or ffn", block.name)
    mixer: Mixer | None = None
    extra: tuple[Parameter, ...] = ()
    for part, section in (("mixer", inner), ("channel", ffn)):
        if section.flag("replace_with_linear"):
            extra += (*linear(f"{part}.linear", hidden, hidden), *norm(f"{part}_norm", Norm.RMS, hidden))
    if not inner.flag("no_op") and not inner.flag("replace_with_linear"):
        heads = fields.count("num_attention_heads")
        kv_heads = fields.share("num_attention_heads", heads, "n_heads_in_group", inner.count("n_heads_in_group"))
        bias = fields.flag("attention_bias")
        mixer = attention_of(fields.over({"num_key_value_heads": kv_heads}), hidden, qkv_bias=bias, out_bias=bias)
    channel: Channel | None = None
    if not ffn.flag("no_op") and not ffn.flag("replace_with_linear"):
        width = ffn.multiple("ffn_mult", 1.0, of=2 * hidden)
        channel = MLP(width=256 * ceil_div(width // 3, 256), gated=True, bias=fields.flag("mlp_bias"))
    return Layer(mixer=mixer, channel=channel, extra=extra)


def _traits(**facts: Any) -> Callable[[Fields], Model]:
    return partial(decoder, traits=Traits(**facts))


def granite_mixer(fields: Fields, traits: Traits, index: int) -> Mixer:
    """Granite 4: Mamba-2, attention without rotary positions in the layers the config names."""
    kinds = layer_words(fields, "layer_types", fields.layers())
    if kinds and kinds[index] in FULL:
        rope = fields.word("position_embedding_type", "nope") == "rope"
        return attention_like(fields, traits, None, rope=rope)
    heads, width = fields.count("mamba_n_heads"), fields.count("mamba_d_head", 64)
    return Mamba(
        version=2, inner_dim=heads * width, state_dim=fields.count("mamba_d_state", 256),
        conv_kernel=fields.count("mamba_d_conv", 4), num_heads=heads, head_dim=width,
        num_groups=fields.count("mamba_n_groups", 1), conv_bias=fields.flag("mamba_conv_bias", fallback=True),
        proj_bias=fields.flag("mamba_proj_bias"),
    )


def falcon_h1(fields: Fields) -> Model:
    """Falcon-H1: every layer has attention and Mamba-2, which read one norm and are added."""
    heads = fields.count("mamba_n_heads", 128)
    width = fields.share("mamba_d_ssm", fields.count("mamba_d_ssm", 1024), "mamba_n_heads", heads)
    scan = Mamba(
        version=2, inner_dim=heads * width, state_dim=fields.count("mamba_d_state", 256),
        conv_kernel=fields.count("mamba_d_conv", 4), num_heads=heads, head_dim=width,
        num_groups=fields.count("mamba_n_groups", 1), conv_bias=fields.flag("mamba_conv_bias", fallback=True),
        proj_bias=fields.flag("mamba_proj_bias"), gated_norm=fields.flag("mamba_rms_norm"),
    )
    model = decoder(fields, traits=Traits(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"))
    runs = tuple(replace(run, layer=replace(run.layer, beside=scan)) for run in model.main.runs)
    return replace(model, stacks=(replace(model.main, runs=runs),))


def granite_channel(fields: Fields, traits: Traits, index: int) -> Channel:
    """Granite 4: experts beside a shared block, or that block alone."""
    del index
    shared = fields.count("shared_intermediate_size")
    if not fields.natural("num_local_experts", 0):
        return mlp_of(fields, traits, shared)
    experts, chosen = experts_of(fields)
    return MoE(num_experts=experts, top_k=chosen, expert=mlp_of(fields, traits), shared_width=shared)


def lfm2_mixer(fields: Fields, traits: Traits, index: int) -> Mixer:
    """LFM2: attention with normed queries and keys in the layers the config names, else a gated convolution."""
    del traits
    hidden = fields.count("hidden_size")
    kinds = layer_words(fields, "layer_types", fields.layers())
    full = kinds[index] == "full_attention" if kinds else index in (fields.naturals("full_attn_idxs") or ())
    attention = attention_of(fields, hidden, qk_norm="head")
    if full:
        return attention
    heads = attention.num_heads
    return LinearAttention(
        num_k_heads=heads, num_v_heads=heads, k_head_dim=0, v_head_dim=fields.count("conv_dim", hidden) // heads,
        conv_kernel=fields.count("conv_L_cache", 3), variant="short_conv",
    )


def lfm2_channel(fields: Fields, traits: Traits, index: int) -> Channel:
    """LFM2: two thirds of the width, rounded up, unless the config says that it is final."""
    del traits, index
    width = fields.count("block_ff_dim", fields.count("intermediate_size", 12288))
    if fields.flag("block_auto_adjust_ff_dim", fallback=True):
        width = fields.multiple("block_ffn_dim_multiplier", 1.0, of=2 * width // 3)
        width = round_up(width, fields.count("block_multiple_of", 256))
    return MLP(width=width, gated=True)


def lfm2_experts(fields: Fields, traits: Traits, index: int) -> Channel:
    """LFM2 with experts, which a correction chooses, behind dense layers whose width is final."""
    return corrected(fields.over({"first_k_dense_replace": fields.natural("num_dense_layers", 2)}), traits, index)


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "qwen3_next": _traits(mixer=gated_delta, channel=qwen_moe, rope_fraction=0.25, mtp=True),
    "qwen3_5_text": _traits(mixer=gated_delta, rope_fraction=0.25, mtp=True),
    "qwen3_5_moe_text": _traits(mixer=gated_delta, channel=qwen_moe, rope_fraction=0.25, mtp=True),
    "kimi_linear": _traits(mixer=kimi, channel=corrected),
    "minimax": _traits(mixer=minimax, channel=routed),
    "granitemoehybrid": _traits(
        mixer=granite_mixer, channel=granite_channel, qkv_bias="attention_bias", out_bias="attention_bias"
    ),
    "falcon_h1": falcon_h1,
    "jamba": _traits(mixer=jamba_mixer, channel=jamba_channel),
    "mamba": mamba, "falcon_mamba": mamba, "mamba2": mamba2, "nemotron_h": nemotron_h, "nemotron-nas": nemotron_nas,
    "lfm2": _traits(mixer=lfm2_mixer, channel=lfm2_channel, tied=True),
    "lfm2_moe": _traits(mixer=lfm2_mixer, channel=lfm2_experts, tied=True),
}
