"""llm-analysis on a question of benchmarks/serve.py: prints weights and what they leave of the fraction [GiB].

It knows no vLLM: its cache is what weights and prefill activations of one prompt leave of the fraction.
"""

import json
import logging
import sys

logging.disable(logging.CRITICAL)
sys.path.pop(0)  # this file is named like the package it measures
from llm_analysis.analysis import LLMAnalysis  # noqa: E402
from llm_analysis.config import (  # noqa: E402
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)

question = json.loads(sys.argv[1])
config = question["config"]
if "kv_lora_rank" in config:
    sys.exit("no multi-head latent attention")
experts = config.get("num_local_experts") or config.get("num_experts") or 1
model = ModelConfig(
    name=question["model"], num_layers=config["num_hidden_layers"], n_head=config["num_attention_heads"],
    hidden_dim=config["hidden_size"], vocab_size=config["vocab_size"], max_seq_len=question["context"],
    num_key_value_heads=config["num_key_value_heads"], ffn_embed_dim=config["intermediate_size"],
    expansion_ratio=config["intermediate_size"] / config["hidden_size"], model_type="llama", moe_num_experts=experts,
    moe_top_k=config.get("num_experts_per_tok") or 1,
)
analysis = LLMAnalysis(
    model, get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
    ParallelismConfig(tp_size=question["tp"], pp_size=1),
)
answer = analysis.inference(batch_size_per_gpu=1, seq_len=question["context"] - 32, num_tokens_to_generate=32)
weights = answer["weight_memory_per_gpu"] / 2**30
activations = answer["prefill_activation_memory_per_gpu"] / 2**30
print(weights, question["fraction"] * question["visible_gib"] - weights - activations)
