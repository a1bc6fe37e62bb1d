"""Decoders with experts, and with latent attention.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py.

[V3.2] deepseek-ai/DeepSeek-V3.2-Exp inference/model.py (the lightning indexer).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import MLP, Channel, Mixer, Model, MoE, MultiLatentAttention, Norm
from vramcast.families.assemble import BIASED, Traits, decoder, layer_words, mlp_of
from vramcast.families.fields import Fields

EXPERT_KEYS: Final = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
CHOSEN_KEYS: Final = ("num_experts_per_tok", "moe_k", "moe_topk", "moe_top_k")


def first_key(fields: Fields, keys: tuple[str, ...]) -> str:
    """The first key that the config states, else the first that its family has, else the first."""
    for present in (fields.states, fields.has):
        for key in keys:
            if present(key):
                return key
    return keys[0]


def experts_of(fields: Fields) -> tuple[int, int]:
    """Number of experts and how many a token meets."""
    expert_key, chosen_key = first_key(fields, EXPERT_KEYS), first_key(fields, CHOSEN_KEYS)
    experts, chosen = fields.count(expert_key), fields.count(chosen_key)
    if chosen > experts:
        raise fields.wrong(chosen_key, "is more than {}={}", expert_key, experts)
    return experts, chosen


def is_sparse(fields: Fields, index: int) -> bool:
    """Whether layer `index` has experts, by whichever key the config says it with."""
    if fields.has("mlp_layer_types"):
        kinds = fields.words("mlp_layer_types")
        return index < len(kinds) and kinds[index] == "sparse"
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list | tuple):
        flags = fields.naturals("moe_layer_freq") or ()
        return index < len(flags) and flags[index] > 0
    if index < fields.natural("first_k_dense_replace", 0) or index in (fields.naturals("mlp_only_layers") or ()):
        return False
    every = fields.count("moe_layer_freq", 1)
    step = fields.count("decoder_sparse_step", 1)
    return index % every == 0 and (index + 1) % step == 0


def routed(fields: Fields, traits: Traits, index: int, *, score_bias: bool = False, parameter: bool = False) -> Channel:
    """Experts of `moe_intermediate_size` beside `n_shared_experts` equal shared ones; dense layers in between."""
    if not is_sparse(fields, index):
        return mlp_of(fields, traits)
    experts, chosen = experts_of(fields)
    width = fields.count("moe_intermediate_size" if fields.has("moe_intermediate_size") else "intermediate_size")
    shared_key = first_key(fields, ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"))
    return MoE(
        num_experts=experts, top_k=chosen, expert=mlp_of(fields, traits, width), score_bias=score_bias,
        shared_width=fields.natural(shared_key, 0) * width, score_bias_is_parameter=parameter,
    )


def corrected(fields: Fields, traits: Traits, index: int) -> Channel:
    """As `routed`, with a routing correction per expert that no gradient reaches."""
    return routed(fields, traits, index, score_bias=True)


def qwen_moe(fields: Fields, traits: Traits, index: int) -> Channel:
    """Qwen 2 and 3: a shared expert of its own width behind a sigmoid gate."""
    if not is_sparse(fields, index):
        return mlp_of(fields, traits)
    experts, chosen = experts_of(fields)
    shared = fields.natural("shared_expert_intermediate_size", 0)
    expert = mlp_of(fields, traits, fields.count("moe_intermediate_size"))
    return MoE(num_experts=experts, top_k=chosen, expert=expert, shared_width=shared, shared_gate=shared > 0)


def llama4(fields: Fields, traits: Traits, index: int) -> Channel:
    """Llama 4: one shared expert as wide as a routed one; dense layers are wider."""
    listed = fields.naturals("moe_layers")
    step = fields.count("interleave_moe_layer_step", 1)
    sparse = index in listed if listed else (index + 1) % step == 0
    if not sparse:
        return mlp_of(fields, traits, fields.count("intermediate_size_mlp"))
    experts, chosen = experts_of(fields)
    expert = mlp_of(fields, traits)
    return MoE(num_experts=experts, top_k=chosen, expert=expert, shared_width=expert.width)


def gpt_oss(fields: Fields, traits: Traits, index: int) -> Channel:
    del index
    experts, chosen = experts_of(fields)
    expert = MLP(width=fields.count("intermediate_size"), gated=True, activation=traits.activation, bias=True)
    return MoE(num_experts=experts, top_k=chosen, expert=expert, router_bias=True)


def ernie(fields: Fields, traits: Traits, index: int) -> Channel:
    """ERNIE 4.5: experts from one layer to another, every so many layers, with a correction that is a parameter."""
    first, last = fields.natural("moe_layer_start_index", 1), fields.natural("moe_layer_end_index", fields.layers())
    if not first <= index <= last or (index + 1) % fields.count("moe_layer_interval", 1):
        return mlp_of(fields, traits)
    return routed(fields, traits, index, score_bias=True, parameter=True)


def hunyuan(fields: Fields, traits: Traits, index: int) -> Channel:
    """Hunyuan: experts in every layer, and one shared expert; the published file lists a number per layer."""
    counts = {key: (fields.naturals(key) or (0,))[0] for key in HUNYUAN_LISTS if isinstance(fields.get(key), list)}
    return routed(fields.over(counts).behind({"n_shared_experts": 1}), traits, index)


def bailing(fields: Fields, traits: Traits, index: int) -> Channel:
    """Ling and Ring 2.0, whose experts a correction chooses where the config says so."""
    return routed(fields, traits, index, score_bias=fields.flag("moe_router_enable_expert_bias"))


HUNYUAN_LISTS: Final = ("moe_topk", "moe_intermediate_size", "num_shared_expert")

MOE_TRAITS: Final[dict[str, Traits]] = {
    "mixtral": Traits(window="all", channel=routed),
    "qwen2_moe": Traits(qkv_bias="qkv_bias", window="qwen", channel=qwen_moe),
    "qwen3_moe": replace(BIASED, qk_norm="head", window="qwen", channel=qwen_moe),
    "phimoe": replace(BIASED, norm=Norm.LAYER, head_bias="lm_head_bias", window="all", channel=routed),
    "gpt_oss": replace(BIASED, sinks=True, window=2, channel=gpt_oss),
    "llama4_text": replace(BIASED, rope_every=4, channel=llama4, window=4, window_key="attention_chunk_size"),
    "glm4_moe": Traits(
        qkv_bias="attention_bias", rope_fraction=0.5, qk_norm="head", qk_norm_if="use_qk_norm", channel=corrected,
        mtp=True, mtp_own_tables=True,
    ),
    "minimax_m2": Traits(qk_norm="full", rope_fraction=0.5, channel=corrected),
    "ernie4_5_moe": Traits(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True, channel=ernie),
    "olmoe": replace(BIASED, qk_norm="full", channel=routed),
    "dots1": replace(BIASED, qk_norm="head", channel=corrected),
    "granitemoe": replace(BIASED, channel=routed),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), Traits(
        qkv_bias="use_qkv_bias", out_bias="use_bias", mlp_bias="use_bias", qk_norm="head", qk_norm_if="use_qk_norm",
        channel=bailing, mtp=True,
    )),
    "deepseek": replace(BIASED, channel=routed),
    "hy_v3": replace(BIASED, qk_norm="head", channel=corrected, mtp=True),
    "hunyuan_v1_moe": replace(BIASED, qk_norm="head", channel=hunyuan),
}


def latent(fields: Fields, traits: Traits, index: int) -> Mixer:
    """Latent attention, with an indexer when the config names one; `shared` layers use the keys picked before."""
    del traits
    kinds = layer_words(fields, "indexer_types", fields.layers())
    sparse = fields.has("index_topk") and (not kinds or kinds[index] == "full")
    return MultiLatentAttention(
        num_heads=fields.count("num_attention_heads"), q_lora_rank=fields.maybe("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"), qk_nope_dim=fields.count("qk_nope_head_dim"),
        qk_rope_dim=fields.count("qk_rope_head_dim"), v_head_dim=fields.count("v_head_dim"),
        bias=fields.flag("attention_bias"),
        indexer_heads=fields.count("index_n_heads") if sparse else 0,
        indexer_dim=fields.count("index_head_dim") if sparse else 0,
    )


V3: Final = Traits(mixer=latent, channel=corrected, mtp=True, mtp_own_tables=True)

LATENT_TRAITS: Final[dict[str, Traits]] = {
    "deepseek_v2": Traits(mixer=latent, channel=routed),
    "deepseek_v3": V3,
    "deepseek_v32": V3,
    "kimi_k2": V3,
    "glm_moe_dsa": Traits(mixer=latent, channel=corrected, mtp=True),
    "glm4_moe_lite": V3,
    "minicpm3": Traits(mixer=latent, tied=True),
    "mistral4": Traits(mixer=latent, channel=routed),
}

BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    family: partial(decoder, traits=traits) for family, traits in (MOE_TRAITS | LATENT_TRAITS).items()
}
