"""GGUF metadata as a Hugging Face config, so that the one reader of configs serves both.

Keys: ggml-org/ggml docs/gguf.md, "[llm]" section; llama.cpp gguf-py/gguf/constants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import SourceError, UnknownName
from vramcast.sources.gguf import GgufHeader, Skipped

MODEL_TYPES: Final[dict[str, str]] = {
    "llama": "llama", "llama4": "llama4_text", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3",
    "deepseek2": "deepseek_v3", "gpt2": "gpt2", "gptneox": "gpt_neox", "falcon": "falcon", "bloom": "bloom",
    "olmo2": "olmo2", "starcoder2": "starcoder2", "command-r": "cohere", "gpt-oss": "gpt_oss", "glm4": "glm4",
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
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "attention.key_length_mla": "qk_head_dim",
}
"""Metadata key behind the architecture's prefix -> config key."""


def config_of(header: GgufHeader, *, name: str) -> dict[str, Any]:
    """The config that describes the same network.

    Raises: UnknownName for an architecture that is not mapped, SourceError where sizes are missing
    """
    architecture = header.architecture
    if architecture not in MODEL_TYPES:
        raise UnknownName.of("GGUF architecture", architecture, MODEL_TYPES)
    config: dict[str, Any] = {"model_type": _model_type(architecture, header.metadata)}
    for key, target in KEYS.items():
        value = header.metadata.get(f"{architecture}.{key}")
        if isinstance(value, tuple) and value:
            value = max(value)  # per-layer values; the widest layer stands for all
        if isinstance(value, int) and not isinstance(value, bool):
            config[target] = value
    _adjust(config, architecture)
    config["vocab_size"] = _vocabulary(header, name)
    names = {tensor.name for tensor in header.weights.tensors}
    config["tie_word_embeddings"] = "output.weight" not in names
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    return config


def _model_type(architecture: str, metadata: Mapping[str, Any]) -> str:
    if architecture == "llama" and metadata.get("llama.expert_count"):
        return "mixtral"
    return MODEL_TYPES[architecture]


def _adjust(config: dict[str, Any], architecture: str) -> None:
    """Where one key means different things to different families."""
    latent = "kv_lora_rank" in config
    if latent:
        rope = config.get("qk_rope_head_dim", 64)
        config["qk_nope_head_dim"] = config.pop("qk_head_dim", config.pop("head_dim", 192)) - rope
        config.setdefault("q_lora_rank", None)
        config["n_routed_experts"] = config.pop("num_local_experts", None)
        config.pop("num_key_value_heads", None)
    else:
        config.pop("qk_rope_head_dim", None)
        config.pop("qk_head_dim", None)
    if architecture in ("qwen2moe", "qwen3moe") and "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")


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
