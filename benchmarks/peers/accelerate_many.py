"""accelerate's `estimate-memory` arithmetic on N networks, each another one; prints the seconds of each as JSON.

The command itself asks the hub; its two functions do not. One process answers all of them.
"""

import json
import sys
import time

from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoModelForCausalLM, LlamaConfig

times = []
before = time.process_time()
for number in range(1 + int(sys.argv[1])):
    if number == 1:
        before = time.process_time()  # the first one loads modules
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336 + 64 * number, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
    )
    began = time.perf_counter()
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    total, _ = calculate_maximum_sizes(model)
    estimate_training_usage(total, "float16")
    times.append(time.perf_counter() - began)
print(time.process_time() - before)
print(json.dumps(times[1:]))
