"""Inference with transformers: generation with a cache."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).to("cuda", torch.float16).eval()
ids = torch.randint(0, 1000, (2, 16), device="cuda")
with torch.inference_mode():
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=True, top_k=50)
print(out.shape, out[0].tolist())
