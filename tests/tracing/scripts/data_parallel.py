"""DistributedDataParallel as torchrun starts it: a sampler, norms over all ranks, a reduced loss."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = nn.Sequential(nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.GELU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))
model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model).to(rank), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
sampler = DistributedSampler(data)
for epoch in range(100):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, 32, sampler=sampler, pin_memory=True):
        loss = nn.functional.cross_entropy(model(inputs.to(rank)), targets.to(rank))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(epoch, loss.item())
    dist.barrier()
dist.destroy_process_group()
