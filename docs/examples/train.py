"""A training script as people write them; nothing in it knows of vramcast."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--depth", type=int, default=12)
arguments = parser.parse_args()

WIDTH, HEADS, POSITIONS, VOCABULARY = 1024, 16, 1024, 32000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        heads = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Model(arguments.depth).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(10_000):
    ids = torch.randint(VOCABULARY, (arguments.batch, POSITIONS + 1)).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(step, loss.item())
