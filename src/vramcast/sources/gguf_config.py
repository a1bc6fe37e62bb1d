"""GGUF metadata as a Hugging Face config, so that the one reader of configs serves both.

Keys: ggml-org/ggml docs/gguf.md, "[llm]" section; llama.cpp gguf-py/gguf/constants.py at ef035f7. What a config says
with a flag, a GGUF file says by having a tensor: biases, query/key norms, an output projection of its own.
"""

from __future__ import annotations

from typing import Any, Final

from vramcast.errors import SourceError, UnknownName
from vramcast.sources.gguf import GgufHeader, Skipped

MODEL_TYPES: Final[dict[str, str]] = {
    "arcee": "arcee",
    "baichuan": "baichuan",
    "bloom": "bloom",
    "chatglm": "chatglm",
    "cohere2": "cohere2",
    "command-r": "cohere",
    "deepseek2": "deepseek_v2",  # or deepseek_v3, by its router
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "exaone4": "exaone4",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "glm4": "glm4",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "gptneox": "gpt_neox",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "hunyuan-dense": "hunyuan_v1_dense",
    "internlm2": "internlm2",
    "llama": "llama",  # or mixtral, by its experts
    "llama4": "llama4_text",
    "minicpm": "minicpm",
    "minimax-m2": "minimax_m2",
    "mistral3": "mistral",
    "mpt": "mpt",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi2": "phi",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen": "qwen",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder": "gpt_bigcode",
    "starcoder2": "starcoder2",
}
"""`general.architecture` -> `model_type`."""

KEYS: Final[dict[str, str]] = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "use_parallel_residual": "use_parallel_residual",
}
"""Metadata key behind the architecture's prefix -> config key."""

OWN_KEYS: Final[dict[str, dict[str, str]]] = {
    "deepseek2": {"expert_count": "n_routed_experts"},
    "dots1": {"expert_count": "n_routed_experts"},
    "glm4moe": {"expert_count": "n_routed_experts"},
    "qwen2moe": {"expert_count": "num_experts"},
    "qwen3moe": {"expert_count": "num_experts"},
    "qwen3vlmoe": {"expert_count": "num_experts"},
    "olmoe": {"expert_count": "num_experts"},
    "gpt-oss": {"expert_feed_forward_length": "intermediate_size"},
    "minimax-m2": {"expert_feed_forward_length": "intermediate_size"},
    "falcon": {"attention.head_count_kv": "num_kv_heads"},
    "chatglm": {"attention.head_count_kv": "multi_query_group_num"},
    "llama4": {
        "feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    "qwen3next": {
        "expert_count": "num_experts",
        "full_attention_interval": "full_attention_interval",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
        "ssm.inner_size": "linear_value_dim",
    },
}
"""Where an architecture's config says a thing under another name."""

FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "attention_bias": ("attn_q.bias", "attn_qkv.bias"),
    "use_qkv_bias": ("attn_q.bias", "attn_qkv.bias"),
    "add_qkv_bias": ("attn_q.bias", "attn_qkv.bias"),
    "attention_out_bias": ("attn_output.bias",),
    "bias": ("attn_output.bias",),
    "use_bias": ("ffn_up.bias",),
    "mlp_bias": ("ffn_up.bias",),
    "use_qk_norm": ("attn_q_norm.weight",),
    "qk_layernorm": ("attn_q_norm.weight",),
    "new_decoder_architecture": ("attn_norm_2.weight",),
}
"""Config flag -> tensors of the first block; having one of them sets the flag."""

SIGMOID: Final = 2
"""`expert_gating_func` of DeepSeek-V3's router."""


def config_of(header: GgufHeader, *, name: str) -> dict[str, Any]:
    """The config that describes the same network.

    Leaves out how weights are packed; a model of per-layer sizes is described by its widest layer.

    Raises: UnknownName for an architecture that is not mapped, SourceError where sizes are missing
    """
    architecture = header.architecture
    if architecture not in MODEL_TYPES:
        raise UnknownName.of("GGUF architecture", architecture, MODEL_TYPES)
    config: dict[str, Any] = {"model_type": MODEL_TYPES[architecture]}
    for key, target in (KEYS | OWN_KEYS.get(architecture, {})).items():
        value = header.metadata.get(f"{architecture}.{key}")
        if isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
            value = max(value)
        if isinstance(value, int):
            config[target] = value
    tensors = {tensor.name for tensor in header.weights.tensors}
    for flag, endings in FLAGS.items():
        config[flag] = any(f"blk.0.{ending}" in tensors for ending in endings)
    config["vocab_size"] = _vocabulary(header, name)
    config["lm_head_bias"] = "output.bias" in tensors
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["architectures"] = ["ForCausalLM"]
    _adjust(config, header, tensors)
    return config


def _adjust(config: dict[str, Any], header: GgufHeader, tensors: set[str]) -> None:
    """What one key cannot say."""
    architecture = header.architecture
    if architecture == "llama" and config.get("num_local_experts"):
        config["model_type"] = "mixtral"
    elif architecture == "deepseek2":
        _latent(config, header, tensors)
    elif architecture == "falcon":
        config |= {"parallel_attn": True, "multi_query": config.get("num_kv_heads") == 1, "bias": False}
    elif architecture == "starcoder":
        config["multi_query"] = config.get("num_key_value_heads") == 1
    elif architecture == "chatglm":
        config["multi_query_attention"] = True
    elif architecture == "qwen3next":
        heads = config.get("linear_num_value_heads") or 1
        config["linear_value_head_dim"] = config.pop("linear_value_dim", 0) // heads
    future = config.get("num_nextn_predict_layers", 0)
    if isinstance(future, int) and 0 < future < config.get("num_hidden_layers", 0):
        config["num_hidden_layers"] -= future  # block_count counts prediction modules too
    else:
        config["num_nextn_predict_layers"] = 0


def _latent(config: dict[str, Any], header: GgufHeader, tensors: set[str]) -> None:
    """DeepSeek's attention: newer files store the compressed lengths and name those of a head apart."""

    def size(key: str) -> int:
        value = header.metadata.get(f"deepseek2.{key}")
        return value if isinstance(value, int) else 0

    if size("expert_gating_func") == SIGMOID or any("exp_probs_b" in tensor for tensor in tensors):
        config["model_type"] = "deepseek_v3"
    rope = size("rope.dimension_count")
    config.pop("head_dim", None)
    config["num_key_value_heads"] = config.get("num_attention_heads")
    config["qk_rope_head_dim"] = rope
    config["qk_nope_head_dim"] = max((size("attention.key_length_mla") or size("attention.key_length")) - rope, 0)
    config["v_head_dim"] = size("attention.value_length_mla") or size("attention.value_length")
    config.setdefault("q_lora_rank", None)


def _vocabulary(header: GgufHeader, name: str) -> int:
    for tensor in header.weights.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.count
    if isinstance(tokens, tuple) and tokens:
        return len(tokens)
    raise SourceError(f"{name}: neither an embedding tensor nor a token list tells the vocabulary")
