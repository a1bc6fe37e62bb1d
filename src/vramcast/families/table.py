"""Every family there is a builder for, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Final

from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.families.architectures import ARCHITECTURES
from vramcast.families.defaults import defaults_of
from vramcast.families.dialects import hugging_face_names
from vramcast.families.fields import Fields, shown

Builder = Callable[[Fields], Model]


def _in(module: str, families: str) -> dict[str, Builder]:
    return {family: partial(_build_in, module, family) for family in families.split()}


def _build_in(module: str, family: str, fields: Fields) -> Model:
    builders: dict[str, Builder] = import_module(f"vramcast.families.{module}").BUILDERS
    return builders[family](fields)


FAMILIES: Final[dict[str, Builder]] = {
    **_in(
        "llama",
        "aquila arcee baichuan chatglm code_llama cohere cohere2 cwm ernie4_5 exaone4 gemma gemma2 "
        "gemma3_text glm glm4 granite helium hunyuan_v1_dense internlm internlm2 internlm3 llama mimo minicpm "
        "ministral ministral3 mistral nemotron olmo olmo2 olmo3 phi3 qwen qwen2 qwen3 seed_oss smollm3 "
        "stablelm starcoder2 yi",
    ),
    **_in(
        "moe",
        "dots1 ernie4_5_moe glm4_moe gpt_oss granitemoe llama4_text minimax_m2 mixtral olmoe phimoe qwen2_moe "
        "qwen3_moe",
    ),
    **_in(
        "deepseek",
        "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2 minicpm3",
    ),
    **_in(
        "hybrids",
        "falcon_mamba granitemoehybrid jamba kimi_linear mamba mamba2 minimax nemotron-nas nemotron_h "
        "qwen3_5_moe_text qwen3_5_text qwen3_next",
    ),
    **_in(
        "sparse_attention",
        "deepseek_ref deepseek_v4 mimo_v2_flash minimax_m3 minimax_m3_vl minimax_m3_vl_text step3p7 step3p7_text",
    ),
    **_in(
        "gpt",
        "bloom codegen falcon gpt2 gpt_bigcode gpt_neo gpt_neox gptj mpt opt phi",
    ),
    **_in(
        "encoders",
        "bert camembert deberta deberta-v2 distilbert electra roberta xlm-roberta",
    ),
    **_in(
        "seq2seq",
        "mt5 t5 umt5 whisper",
    ),
    **_in(
        "vision",
        "clip clip_text_model clip_vision_model siglip siglip_vision_model vit",
    ),
    **_in(
        "vision_language",
        "gemma3 gemma4 gemma4_text llama4 llava llava_next mistral3 mllama mllama_text_model qwen2_5_vl "
        "qwen2_5_vl_text qwen2_vl qwen2_vl_text qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text",
    ),
}
"""`model_type` -> builder. A module is imported when one of its families is asked for: all of them take 15 ms."""


def family_of(fields: Fields) -> str:
    """The config's `model_type`; without one, what its architecture says."""
    given = fields.get("model_type")
    if isinstance(given, str) and given:
        return given
    if given is not None and not isinstance(given, str):
        raise fields.wrong("model_type", "must be a text")
    for architecture in fields.words("architectures"):
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
        raise UnknownName.of("architecture", architecture, ARCHITECTURES)
    raise InvalidSpec(f"config of {fields.name} has neither model_type nor architectures")


def model_from_config(config: Mapping[str, object], *, name: str) -> Model:
    """The network a `config.json` describes.

    Leaves out weights that only a checkpoint knows: buffers it stores, quantised formats, adapters.

    Args:
        config: the parsed JSON, of Hugging Face or of a dialect in `dialects.py`
        name: how the model is called in messages and answers

    Raises: InvalidSpec for a value that cannot be, UnknownName for a family without a builder
    """
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise InvalidSpec(f"config of {name} must be a table, not {shown(config)}")
    fields = Fields(hugging_face_names(config), name=name)
    family = family_of(fields)
    if family not in FAMILIES:
        raise UnknownName.of("model type", family, FAMILIES)
    return FAMILIES[family](fields.over({"model_type": family}).behind(defaults_of(family)))
