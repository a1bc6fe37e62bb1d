"""Megatron-LM's theoretical_memory_usage.py on the question of benchmarks/train.py; prints GiB."""

import contextlib
import io
import re
import sys
import types

root = sys.argv[1]
sys.path.insert(0, root)
helpers = types.ModuleType("megatron.training.utils")
helpers.is_hybrid_model = lambda args: False
helpers.print_rank_0 = print
package = types.ModuleType("megatron")
package.__path__ = [f"{root}/megatron"]
training = types.ModuleType("megatron.training")
training.__path__ = [f"{root}/megatron/training"]
sys.modules |= {"megatron": package, "megatron.training": training, "megatron.training.utils": helpers}
from megatron.training.theoretical_memory_usage import report_theoretical_memory  # noqa: E402

question = types.SimpleNamespace(
    num_layers=12, hidden_size=8192, ffn_hidden_size=28672, num_attention_heads=64, kv_channels=128,
    group_query_attention=True, num_query_groups=8, swiglu=True, normalization="RMSNorm",
    padded_vocab_size=128256, untie_embeddings_and_output_weights=True, seq_length=4096, micro_batch_size=1,
    tensor_model_parallel_size=2, pipeline_model_parallel_size=1, data_parallel_size=4, world_size=8,
    virtual_pipeline_model_parallel_size=None, sequence_parallel=True, recompute_granularity="selective",
    use_distributed_optimizer=True, num_experts=None, moe_shared_expert_intermediate_size=None,
    moe_ffn_hidden_size=None, moe_latent_size=None, moe_layer_freq=1, mtp_num_layers=None,
    multi_latent_attention=False, q_lora_rank=None, expert_model_parallel_size=1, expert_tensor_parallel_size=2,
    hybrid_layer_pattern=None,
)
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    report_theoretical_memory(question, num_microbatches=4)
found = re.search(r"total=([\d.]+) MB", printed.getvalue())
assert found, printed.getvalue()
print(float(found[1]) / 1024)
