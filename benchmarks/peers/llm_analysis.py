"""llm-analysis on the question of benchmarks/train.py; prints GiB."""

import logging
import sys

logging.disable(logging.CRITICAL)
sys.path.pop(0)  # this file is named like the package it measures
from llm_analysis.analysis import DSZeRO, LLMAnalysis  # noqa: E402
from llm_analysis.config import (  # noqa: E402
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)

model = ModelConfig(
    name="llama-3-70b-12-layers", num_layers=12, n_head=64, hidden_dim=8192, vocab_size=128256, max_seq_len=4096,
    num_key_value_heads=8, ffn_embed_dim=28672, expansion_ratio=3.5, model_type="llama",
)
analysis = LLMAnalysis(
    model, get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
    ParallelismConfig(tp_size=2, pp_size=1, dp_size=4, sp_size=2),
)
answer = analysis.training(
    batch_size_per_gpu=1, gradient_accumulation_steps=4, seq_len=4096, ds_zero=DSZeRO(1), flash_attn=True,
    mlp_gated_linear_units=True,
)
print(answer["(weight+op_state+grad+act)_memory_per_gpu"] / 2**30)
