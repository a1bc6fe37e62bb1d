"""LLaMA and the decoders that differ from it in a trait or two.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py; for families that only
live beside their weights (qwen, baichuan, internlm, internlm2, minicpm, mimo): modeling_*.py of the hub repository.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from vramcast.domain.model import Model, Norm
from vramcast.families.assemble import BIASED, Traits, decoder, even
from vramcast.families.fields import Fields
from vramcast.families.vision import eva_tower, qwen_visual

LLAMA: Final = replace(BIASED, mlp_bias="mlp_bias")
GEMMA: Final = replace(BIASED, tied=True, activation="gelu")
GLM: Final = Traits(qkv_bias="attention_bias", rope_fraction=0.5)
COHERE: Final = replace(BIASED, norm=Norm.LAYER_NO_BIAS, tied=True, parallel=True, shared_input_norm=True)
OLMO2: Final = replace(BIASED, qk_norm="full", placement="output")

TRAITS: Final[dict[str, Traits]] = {
    **dict.fromkeys(
        ("llama", "code_llama", "yi", "aquila", "minicpm", "granite", "helium", "internlm3", "cwm"), LLAMA
    ),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "phi3"), Traits(window="all")),
    "qwen2": Traits(qkv_bias=True, window="qwen"),
    "qwen3": replace(BIASED, qk_norm="head", window="qwen"),
    "mimo": Traits(qkv_bias="attention_bias", window="qwen", mtp=True),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, post_norms=True, window=2),
    "gemma3_text": replace(GEMMA, post_norms=True, window=6, qk_norm="head"),
    "glm": GLM,
    "glm4": replace(GLM, post_norms=True),
    "olmo": replace(BIASED, norm=Norm.PLAIN),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, window=4),
    **dict.fromkeys(("internlm", "internlm2"), Traits(qkv_bias="bias", out_bias="bias")),
    "baichuan": Traits(),
    "stablelm": Traits(
        norm=Norm.LAYER, qkv_bias="use_qkv_bias", rope_fraction=0.25, parallel="use_parallel_residual",
        shared_input_norm=True, qk_norm="full", qk_norm_if="qk_layernorm", qk_norm_kind=Norm.LAYER_NO_BIAS,
    ),
    "cohere": replace(COHERE, qk_norm="full", qk_norm_if="use_qk_norm", qk_norm_kind=Norm.LAYER_NO_BIAS),
    "cohere2": replace(COHERE, window=4),
    "starcoder2": Traits(
        norm=Norm.LAYER, gated=False, activation="gelu", qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias",
        tied=True, window="all",
    ),
    "nemotron": replace(LLAMA, norm=Norm.LAYER, gated=False, activation="relu2", rope_fraction=0.5),
    "arcee": replace(LLAMA, gated=False, activation="relu2"),
    "apertus": replace(BIASED, gated=False, activation="xielu", qk_norm="head"),
    "smollm3": replace(LLAMA, tied=True, rope_every=4),
    "exaone4": Traits(qk_norm="head", placement="output", window=4),
    "seed_oss": replace(LLAMA, out_bias="attention_out_bias"),
    "ernie4_5": Traits(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True),
    "hunyuan_v1_dense": replace(BIASED, qk_norm="head"),
}


def qwen1(fields: Fields) -> Model:
    """Qwen 1 (QWenLMHeadModel): `intermediate_size` counts gate and up together, queries, keys and values have a bias.

    Source: Qwen/Qwen-7B modeling_qwen.py: ff_dim_in = intermediate_size // 2; c_attn bias = True; others no_bias.
    """
    width = even(fields, "intermediate_size", fields.count("intermediate_size"))
    head_dim = fields.maybe("kv_channels")
    sizes = {"intermediate_size": width} | ({"head_dim": head_dim} if head_dim else {})
    model = decoder(fields.over(sizes), traits=Traits(qkv_bias=True))
    visual = fields.section("visual")
    return model if visual is None else replace(model, stacks=(qwen_visual(visual), *model.stacks))


def chatglm(fields: Fields) -> Model:
    """ChatGLM 2, 3 and GLM-4 (remote code): groups of key/value heads, fused and gated feed-forward, untied head.

    Source: THUDM/chatglm3-6b modeling_chatglm.py; key/value heads are multi_query_group_num when multi_query_attention.
    """
    sizes: dict[str, object] = {"tie_word_embeddings": False, "architectures": ["ForCausalLM"]}
    if fields.flag("multi_query_attention"):
        sizes["num_key_value_heads"] = fields.count("multi_query_group_num")
    if fields.has("kv_channels"):
        sizes["head_dim"] = fields.count("kv_channels")
    biased = fields.flag("add_qkv_bias") or fields.flag("add_bias_linear")
    traits = Traits(qkv_bias=biased, out_bias="add_bias_linear", mlp_bias="add_bias_linear", rope_fraction=0.5)
    model = decoder(fields.over(sizes), traits=traits)
    vision = fields.section("vision_config")
    if vision is None:
        return model
    width = fields.renamed().count("intermediate_size")
    return replace(model, stacks=(eva_tower(vision, hidden=model.hidden, width=width), *model.stacks))


BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    **{family: partial(decoder, traits=traits) for family, traits in TRAITS.items()}, "qwen": qwen1, "chatglm": chatglm,
}
