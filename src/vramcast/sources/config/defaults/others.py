"""Sizes that a config of a family may leave out: those of its configuration class in transformers v5.23.0.

Encoders, encoder-decoders, image encoders and what is not a plain decoder.
Left out on purpose: `q_lora_rank` and `hidden_size_per_layer_input`, because exporters drop the null or zero that means
"none", and Bloom's toy sizes.
"""

from __future__ import annotations

from typing import Final

OTHERS: Final[dict[str, dict[str, object]]] = {
    "bert": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
    },
    "camembert": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
    },
    "clip": {
        "projection_dim": 512,
    },
    "clip_text_model": {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "projection_dim": 512,
        "num_hidden_layers": 12, "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu",
    },
    "clip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 512, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_channels": 3, "image_size": 224, "patch_size": 32,
        "hidden_act": "quick_gelu",
    },
    "deberta": {
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 0, "max_relative_positions": -1,
        "position_biased_input": True, "tie_word_embeddings": True,
    },
    "deberta-v2": {
        "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
        "intermediate_size": 6144, "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 0, "max_relative_positions": -1,
        "position_biased_input": True, "tie_word_embeddings": True,
    },
    "deepseek_v4": {
        "vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 43,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
        "num_experts_per_tok": 6, "n_routed_experts": 256, "n_shared_experts": 1, "max_position_embeddings": 1048576,
        "hc_mult": 4, "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
        "index_head_dim": 128, "index_topk": 512, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
        "qk_rope_head_dim": 64,
    },
    "distilbert": {
        "vocab_size": 30522, "max_position_embeddings": 512, "num_hidden_layers": 6, "num_attention_heads": 12,
        "hidden_size": 768, "intermediate_size": 3072, "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "tie_word_embeddings": True,
    },
    "electra": {
        "vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12,
        "num_attention_heads": 4, "intermediate_size": 1024, "hidden_act": "gelu", "hidden_dropout": 0.1,
        "attention_dropout": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
    },
    "falcon_mamba": {
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "expand": 2,
        "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": 48, "tie_word_embeddings": True,
        "intermediate_size": 1536,
    },
    "gemma4_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "tie_word_embeddings": True,
        "sliding_window": 512, "num_kv_shared_layers": 0,
    },
    "gemma4_vision": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "patch_size": 16,
        "position_embedding_size": 10240,
    },
    "jamba": {
        "vocab_size": 65536, "tie_word_embeddings": False, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 262144, "num_experts_per_tok": 2, "num_experts": 16, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256, "mamba_conv_bias": True,
    },
    "kimi_linear": {
        "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "num_hidden_layers": 27, "num_attention_heads": 32, "num_shared_experts": 1, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "num_experts_per_tok": 8,
        "tie_word_embeddings": False, "num_experts": 256, "linear_head_dim": 128, "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4, "head_dim": 64, "first_k_dense_replace": 1,
    },
    "llama4_text": {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "tie_word_embeddings": False, "num_experts_per_tok": 1,
        "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True, "attention_chunk_size": 8192,
    },
    "llama4_vision_model": {
        "hidden_size": 768, "hidden_act": "gelu", "num_hidden_layers": 34, "num_attention_heads": 16,
        "num_channels": 3, "intermediate_size": 5632, "vision_output_dim": 7680, "image_size": 448, "patch_size": 14,
        "projector_input_dim": 4096, "projector_output_dim": 4096,
    },
    "mamba": {
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "expand": 2,
        "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": 48, "tie_word_embeddings": True,
        "intermediate_size": 1536,
    },
    "mamba2": {
        "num_heads": 128, "head_dim": 64, "vocab_size": 32768, "hidden_size": 4096, "state_size": 128,
        "num_hidden_layers": 64, "expand": 2, "conv_kernel": 4, "n_groups": 8, "use_conv_bias": True,
        "time_step_rank": 256, "tie_word_embeddings": False,
    },
    "mimo_v2_flash": {
        "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48,
        "num_attention_heads": 64, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
        "n_routed_experts": 256, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129,
        "first_k_dense_replace": 1,
    },
    "minimax": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "num_experts_per_tok": 2, "num_local_experts": 8,
    },
    "minimax_m2": {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608,
        "tie_word_embeddings": False, "num_experts_per_tok": 8, "num_local_experts": 256,
    },
    "mllama_text_model": {
        "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
    "mllama_vision_model": {
        "hidden_size": 1280, "hidden_act": "gelu", "num_hidden_layers": 32, "num_global_layers": 8,
        "attention_heads": 16, "num_channels": 3, "intermediate_size": 5120, "vision_output_dim": 7680,
        "image_size": 448, "patch_size": 14, "max_num_tiles": 4, "intermediate_layers_indices": [3, 7, 15, 23, 30],
    },
    "mt5": {
        "vocab_size": 250112, "hidden_size": 512, "head_dim": 64, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_decoder_layers": 8, "num_attention_heads": 6, "relative_attention_num_buckets": 32,
        "hidden_dropout": 0.1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True,
    },
    "nemotron_h": {
        "vocab_size": 131072, "hidden_size": 4096, "tie_word_embeddings": False, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 4096, "intermediate_size": 21504,
        "mlp_hidden_act": "relu2", "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
        "n_groups": 8, "conv_kernel": 4, "expand": 2, "use_conv_bias": True, "n_routed_experts": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 7688, "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 0,
    },
    "qwen2_5_vl_text": {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
    },
    "qwen2_vl_text": {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
    },
    "qwen3_5_moe_text": {
        "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": False, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
    },
    "qwen3_5_text": {
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "tie_word_embeddings": False, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    },
    "qwen3_next": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "tie_word_embeddings": False, "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "decoder_sparse_step": 1, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10, "num_experts": 512,
    },
    "qwen3_vl_moe_text": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 128000, "tie_word_embeddings": True,
        "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_local_experts": 60,
    },
    "qwen3_vl_text": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 128000,
    },
    "roberta": {
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
    },
    "siglip": {

    },
    "siglip_text_model": {
        "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 64, "hidden_act": "gelu_pytorch_tanh",
    },
    "siglip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh",
        "vision_use_head": True,
    },
    "t5": {
        "vocab_size": 32128, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
        "num_decoder_layers": 6, "num_attention_heads": 8, "relative_attention_num_buckets": 32,
        "hidden_dropout": 0.1, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
    "vit": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True,
    },
    "whisper": {
        "vocab_size": 51865, "num_mel_bins": 80, "encoder_layers": 4, "encoder_attention_heads": 6,
        "decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536,
        "activation_function": "gelu", "hidden_size": 384, "max_source_positions": 1500, "max_target_positions": 448,
        "tie_word_embeddings": True,
    },
    "xlm-roberta": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
    },
}
