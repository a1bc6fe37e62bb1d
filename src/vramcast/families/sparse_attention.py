"""Decoders with sparse or windowed attention beside experts: MiMo V2, MiniMax M3, Step 3.7, DeepSeek V4.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from vramcast.blocks.parameters.layer import linear, norm, prefixed, vector
from vramcast.domain.model import Attention, Layer, Model, Norm, Parameter
from vramcast.errors import Unsupported
from vramcast.families.assemble import Traits, attention_of, decoder_stack, layer_words, mlp_of, model_of
from vramcast.families.fields import Fields
from vramcast.families.moe import corrected, is_sparse

SILU: Final = Traits()


def _decoder(fields: Fields, layers: list[Layer], *, predictor: Layer | None = None, **facts: Any) -> Model:
    stack = decoder_stack(fields, layers, **facts)
    modules = fields.natural("num_nextn_predict_layers", 0)
    if modules > len(layers):
        raise fields.wrong("num_nextn_predict_layers", "must not exceed num_hidden_layers={}", len(layers))
    return model_of(fields, stacks=(stack,), mtp_layers=(predictor or layers[-1],) * modules)


def mimo_v2(fields: Fields) -> Model:
    """MiMo V2 Flash: the first and every sixth layer global, the others windowed, with sinks."""
    count = fields.layers()
    kinds = layer_words(fields, "layer_types", count)
    flags = fields.naturals("hybrid_layer_pattern")
    layers = []
    for index in range(count):
        if kinds:
            windowed = kinds[index] == "sliding_attention"
        elif flags is not None:
            windowed = index < len(flags) and flags[index] > 0
        else:
            windowed = index > 0 and (index + 1) % 6 != 0
        channel = corrected(fields, SILU, index)
        layers.append(Layer(mixer=_mimo_attention(fields, windowed=windowed), channel=channel))
    light = Layer(mixer=_mimo_attention(fields, windowed=True), channel=mlp_of(fields, SILU))
    return _decoder(fields, layers, predictor=light)  # prediction modules are windowed and dense


def _mimo_attention(fields: Fields, *, windowed: bool) -> Attention:
    if windowed:
        swa = {
            "num_attention_heads": fields.count("swa_num_attention_heads", fields.count("num_attention_heads")),
            "num_key_value_heads": fields.count("swa_num_key_value_heads", 2 * fields.count("num_key_value_heads")),
        }
        fields = fields.over(swa)
    return attention_of(
        fields, fields.count("hidden_size"), v_head_dim=fields.maybe("v_head_dim"),
        qkv_bias=fields.flag("attention_bias"), rope_fraction=fields.fraction("partial_rotary_factor", 0.334),
        window=fields.maybe("sliding_window") if windowed else None, sinks=windowed,
    )


def minimax_m3(fields: Fields) -> Model:
    """MiniMax M3: norms per head, three dense layers of their own width, a shared expert."""
    if fields.has("vision_config"):
        raise Unsupported("the image encoder of {} is not modelled; pass its text_config", fields.name)
    attention = attention_of(
        fields, fields.count("hidden_size"), qk_norm="head", rope_fraction=fields.fraction("partial_rotary_factor", 0.5)
    )
    dense = mlp_of(fields, SILU, fields.count("dense_intermediate_size", 12288))
    layers = range(fields.layers())
    channels = (corrected(fields, SILU, index) if is_sparse(fields, index) else dense for index in layers)
    return _decoder(fields, [Layer(mixer=attention, channel=channel) for channel in channels])


STEP_NAMES: Final = {
    "num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok", "num_mtp_layers": "num_nextn_predict_layers",
}
"""Keys of published files -> those of transformers [step3p7/configuration_step3p7.py `attribute_map`]."""


def step3p5(fields: Fields) -> Model:
    """Step 3.5 and 3.7: a sigmoid gate per head, windows in three of four layers, with heads of their own number.

    Prediction modules are windowed and dense, with an output matrix each: what the checkpoint's size leaves.
    """
    fields = fields.over({new: fields.get(old) for old, new in STEP_NAMES.items() if fields.has(old)})
    fields = fields.behind({"n_shared_experts": 1, "first_k_dense_replace": 3})
    count = fields.layers()
    kinds = fields.words("layer_types")[:count]  # prediction modules stand behind the layers
    kinds = kinds if len(kinds) == count else layer_words(fields, "layer_types", count) or ("full_attention",) * count
    attention, gates = {}, {}
    for kind in ("full_attention", "sliding_attention"):
        attention[kind] = _step_attention(fields, windowed=kind == "sliding_attention")
        gates[kind] = linear("attention.gate", attention[kind].num_heads, fields.count("hidden_size"))
    layers = [
        Layer(mixer=attention[kind], channel=corrected(fields, SILU, index), extra=gates[kind])
        for index, kind in enumerate(kinds)
    ]
    last = "sliding_attention" if "sliding_attention" in kinds else "full_attention"
    predictor = Layer(mixer=attention[last], channel=mlp_of(fields, SILU), extra=gates[last])
    return replace(_decoder(fields, layers, predictor=predictor), mtp_own_head=True)


def _step_attention(fields: Fields, *, windowed: bool) -> Attention:
    if windowed:
        other = fields.section("attention_other_setting")
        heads = fields.maybe("num_sliding_attention_heads") or (other.maybe("num_attention_heads") if other else None)
        fields = fields.over({"num_attention_heads": heads} if heads else {})
    bias = fields.flag("attention_bias")
    return attention_of(
        fields, fields.count("hidden_size"), qk_norm="head", qkv_bias=bias, out_bias=bias,
        window=fields.maybe("sliding_window") if windowed else None,
    )


COMPRESSED, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS: Final = {0: "sliding_attention", 4: COMPRESSED, 128: HEAVY}


def deepseek_v4(fields: Fields) -> Model:
    """DeepSeek V4: one shared key/value head, compressed caches, hyper-connections over several residual streams."""
    count, hidden = fields.layers(), fields.count("hidden_size")
    streams = fields.count("hc_mult", 4)
    attention = attention_of(
        fields, hidden, q_lora_rank=fields.count("q_lora_rank"), k_is_v=True, kv_norm=True, sinks=True,
        out_lora_rank=fields.count("o_lora_rank", 1024), out_groups=fields.count("o_groups", 8),
        rope_fraction=min(1.0, fields.count("qk_rope_head_dim", 64) / fields.count("head_dim")),
        window=fields.maybe("sliding_window"),
    )
    fields.share("num_attention_heads", attention.num_heads, "o_groups", attention.out_groups)
    hyper = _hyper("mixer", hidden, streams) + _hyper("channel", hidden, streams)
    layers = []
    for index, kind in enumerate(_v4_kinds(fields, count)):
        channel = corrected(fields, SILU, index)
        hashed = index < fields.natural("num_hash_layers", 3)
        if hashed and hasattr(channel, "score_bias"):
            channel = replace(channel, score_bias=False)
        extra = hyper + _compressor(fields, kind, attention.head_dim, hidden)
        layers.append(Layer(mixer=attention, channel=channel, extra=extra))
    last = _mixed("head", streams, streams * hidden, scales=1)
    return _decoder(fields, layers, extra=last, residual_streams=streams)


def _v4_kinds(fields: Fields, count: int) -> tuple[str, ...]:
    kinds = layer_words(fields, "layer_types", count)
    ratios = fields.naturals("compress_ratios")
    if kinds:
        return kinds
    if ratios is not None:
        if len(ratios) < count or any(ratio not in RATIOS for ratio in ratios):
            raise fields.wrong("compress_ratios", "must hold {} of 0, 4 and 128", count)
        return tuple(RATIOS[ratio] for ratio in ratios[:count])
    return tuple(HEAVY if index < 2 or index % 2 == 0 else COMPRESSED for index in range(count))


def _hyper(part: str, hidden: int, streams: int) -> tuple[Parameter, ...]:
    return _mixed(part, streams * (streams + 2), streams * hidden, scales=3)


def _mixed(part: str, rows: int, columns: int, *, scales: int) -> tuple[Parameter, ...]:
    """What mixes residual streams: a matrix, its base and its scales."""
    whole = Parameter(path=f"hyper.{part}", shape=(rows, columns))
    return (whole, vector(f"hyper.{part}_base", rows), vector(f"hyper.{part}_scale", scales))


def _compressor(fields: Fields, kind: str, width: int, hidden: int) -> tuple[Parameter, ...]:
    """The pooling that shortens the cache, with the indexer that picks from it where it is only fourfold."""
    if kind not in (COMPRESSED, HEAVY):
        return ()
    rate, inner = (128, width) if kind == HEAVY else (4, 2 * width)
    found = _pool(rate, inner, width, hidden)
    if kind == HEAVY:
        return prefixed("compressor", found)
    heads, index_width = fields.count("index_n_heads"), fields.count("index_head_dim")
    indexer = (
        *_pool(rate, 2 * index_width, index_width, hidden),
        *linear("q", heads * index_width, fields.count("q_lora_rank")),
        *linear("weights", heads, hidden),
    )
    return prefixed("compressor", found) + prefixed("indexer", indexer)


def _pool(rate: int, inner: int, width: int, hidden: int) -> tuple[Parameter, ...]:
    table = Parameter(path="positions", shape=(rate, inner), kind="embedding")
    return (table, *linear("kv", inner, hidden), *linear("gate", inner, hidden), *norm("norm", Norm.RMS, width))


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    "mimo_v2_flash": mimo_v2, **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), minimax_m3),
    **dict.fromkeys(("step3p5", "step3p7_text"), step3p5),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), deepseek_v4),
}
