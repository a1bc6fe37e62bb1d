"""Accelerate: prepare, accumulate, clip, gather, save a state; one card, or FSDP as `accelerate launch` sets it up."""

import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[2:] == ["fsdp2"]:
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
accelerator = Accelerator(mixed_precision=sys.argv[1], gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(512, 256), torch.randint(0, 10, (512,))), batch_size=32, shuffle=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
for epoch in range(100):
    for inputs, targets in data:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"{epoch}: {accelerator.gather(loss.detach()).mean().item():.3f}")
        if accelerator.sync_gradients:
            accelerator.save_state("accelerate-state")
