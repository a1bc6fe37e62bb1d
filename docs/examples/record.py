"""Four optimizer steps of GPT-2, recorded: `python docs/examples/record.py run.sqlite [eager|sdpa]`.

Without a GPU it runs on a simulated one, where sizes are those of a simulation and times are left out.
"""

import sys
from contextlib import nullcontext

import torch

import vramcast


def train(path, attention="sdpa"):
    """Record four steps of 8 samples of 1,024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with vramcast.record_memory(path, snapshot_at_oom="oom.pickle") as memory:
        model = GPT2LMHeadModel(GPT2Config(attn_implementation=attention)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        memory.attach(model, optimizer)
        for _ in range(4):
            ids = torch.randint(0, 50257, (8, 1024), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()


with nullcontext() if torch.cuda.is_available() else vramcast.simulate("h100-sxm-80gb"):
    train(*(sys.argv[1:] or ["run.sqlite"]))
