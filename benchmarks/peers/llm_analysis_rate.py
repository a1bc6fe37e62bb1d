"""llm-analysis on dense training questions, one after the other in one process; prints CPU seconds per question."""

import logging
import sys
import time

logging.disable(logging.CRITICAL)
sys.path.pop(0)  # a neighbour of this file is named like the package it measures
from llm_analysis.analysis import DSZeRO, LLMAnalysis  # noqa: E402
from llm_analysis.config import (  # noqa: E402
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)

ROUNDS = 200
logging.getLogger("llm_analysis").disabled = True
started = time.process_time()
for place in range(ROUNDS):
    model = ModelConfig(
        name="llama-3.1-8b", num_layers=32, n_head=32, hidden_dim=4096, vocab_size=128256, max_seq_len=131072,
        num_key_value_heads=8, ffn_embed_dim=14336, expansion_ratio=3.5, model_type="llama",
    )
    analysis = LLMAnalysis(
        model, get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=1, pp_size=1, dp_size=8, sp_size=1),
    )
    analysis.training(
        batch_size_per_gpu=1, gradient_accumulation_steps=1, seq_len=4096 + 8 * place, ds_zero=DSZeRO(3),
        flash_attn=True, mlp_gated_linear_units=True,
    )
print((time.process_time() - started) / ROUNDS)
