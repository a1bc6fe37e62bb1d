"""A plain loop: AMP with a gradient scaler, accumulation, clipping, a loader with workers, checkpoints."""

import argparse
import math
import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.randn(3, 32, 32), index % 10


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True),
        )
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images):
        return self.head(self.dropout(self.features(images).mean((2, 3))))


def worker_seed(worker):
    np.random.seed(worker)
    random.seed(worker)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--out", default="checkpoints")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory)
    model = Net(args.width).to(device, memory_format=torch.channels_last)
    loader = DataLoader(
        Noise(10_000), args.batch, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True,
        worker_init_fn=worker_seed, drop_last=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    scaler = torch.amp.GradScaler("cuda")
    criterion = nn.CrossEntropyLoss().cuda()
    os.makedirs(args.out, exist_ok=True)
    best, step = math.inf, 0
    for epoch in range(args.epochs):
        started = time.time()
        for index, (images, labels) in enumerate(loader):
            images = images.cuda(non_blocking=True).contiguous(memory_format=torch.channels_last)
            labels = labels.cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                logits = model(images)
                loss = criterion(logits, labels) / 2
            scaler.scale(loss).backward()
            if index % 2 == 0:
                continue
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
            step += 1
            if math.isnan(loss.item()):
                raise SystemExit("diverged")
            correct = (logits.argmax(1) == labels).float().mean()
            print(f"{step}: {loss.item():.3f} {norm:.2f} {correct.item():.1%} {time.time() - started:.1f} s")
            if loss.item() < best:
                best = loss.item()
                path = os.path.join(args.out, "best.pt")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
                print(torch.load(path, map_location="cpu")["step"], os.path.getsize(path) > 0)
            print(torch.cuda.max_memory_allocated() >> 20, torch.cuda.memory_summary(abbreviated=True)[:10])


if __name__ == "__main__":
    main()
