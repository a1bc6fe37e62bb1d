"""accelerate's `estimate-memory` arithmetic on the question of benchmarks/train.py; prints GiB.

The command itself needs the hub; its two functions do not.
"""

from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=12, num_attention_heads=64, num_key_value_heads=8,
    vocab_size=128256,
)
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(config)
total, _ = calculate_maximum_sizes(model)
usage = estimate_training_usage(total, "float16")
print(max(usage.values()) / 2**30)
