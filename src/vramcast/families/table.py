"""Every family there is a builder for, and what `architectures` says for configs without a `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Final

from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.families.fields import Fields, defaults_of, hugging_face_names, shown

ARCHITECTURES: Final[dict[str, str]] = {
    "BaiChuanForCausalLM": "baichuan",
    "BaichuanForCausalLM": "baichuan",
    "BertForMaskedLM": "bert",
    "BertModel": "bert",
    "BloomForCausalLM": "bloom",
    "CLIPModel": "clip",
    "ChatGLMModel": "chatglm",
    "Cohere2ForCausalLM": "cohere2",
    "CohereForCausalLM": "cohere",
    "DebertaV2Model": "deberta-v2",
    "DeciLMForCausalLM": "nemotron-nas",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DistilBertForMaskedLM": "distilbert",
    "ElectraModel": "electra",
    "FalconForCausalLM": "falcon",
    "FalconMambaForCausalLM": "falcon_mamba",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTJForCausalLM": "gptj",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "GlmForCausalLM": "glm",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "InternLM2ForCausalLM": "internlm2",
    "InternLM3ForCausalLM": "internlm3",
    "InternLMForCausalLM": "internlm",
    "JambaForCausalLM": "jamba",
    "KimiLinearForCausalLM": "kimi_linear",
    "Lfm2ForCausalLM": "lfm2",
    "Llama4ForConditionalGeneration": "llama4",
    "LlamaForCausalLM": "llama",
    "LlavaForConditionalGeneration": "llava",
    "LlavaNextForConditionalGeneration": "llava_next",
    "MPTForCausalLM": "mpt",
    "MT5ForConditionalGeneration": "mt5",
    "Mamba2ForCausalLM": "mamba2",
    "MambaForCausalLM": "mamba",
    "MiMoForCausalLM": "mimo",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MiniCPMForCausalLM": "minicpm",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MiniMaxText01ForCausalLM": "minimax",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MllamaForConditionalGeneration": "mllama",
    "MptForCausalLM": "mpt",
    "NemotronHForCausalLM": "nemotron_h",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "olmo2",
    "OlmoForCausalLM": "olmo",
    "OlmoeForCausalLM": "olmoe",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "PhimoeForCausalLM": "phimoe",
    "QWenLMHeadModel": "qwen",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2Model": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3Model": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "RWForCausalLM": "falcon",
    "RobertaForMaskedLM": "roberta",
    "SeedOssForCausalLM": "seed_oss",
    "SiglipModel": "siglip",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "T5ForConditionalGeneration": "t5",
    "T5WithLMHeadModel": "t5",
    "ViTForImageClassification": "vit",
    "ViTModel": "vit",
    "WhisperForConditionalGeneration": "whisper",
    "XLMRobertaForMaskedLM": "xlm-roberta",
    "XLMRobertaModel": "xlm-roberta",
}
"""First architecture -> `model_type`."""


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
        "qwen3_moe deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2 minicpm3",
    ),
    **_in(
        "hybrids",
        "falcon_mamba granitemoehybrid jamba kimi_linear mamba mamba2 minimax nemotron-nas nemotron_h "
        "qwen3_5_moe_text qwen3_5_text qwen3_next lfm2",
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
        "bert camembert deberta deberta-v2 distilbert electra roberta xlm-roberta mt5 t5 umt5 whisper",
    ),
    **_in(
        "vision",
        "clip clip_text_model clip_vision_model siglip siglip_vision_model vit",
    ),
    **_in(
        "vision_language",
        "gemma3 gemma4 gemma4_text llama4 llava llava_next mistral3 mllama mllama_text_model qwen2_5_vl "
        "qwen2_5_vl_text qwen2_vl qwen2_vl_text qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe qwen3_vl_moe_text "
        "qwen3_vl_text",
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
