"""One training step of Llama 3.1 405B with FSDP2 on one simulated rank of 1,024: seconds and host memory.

    python -m benchmarks.trace_distributed [--world-size 1024] [--layers 126] [--json]

Bar: seconds, in less than 4 GiB of host memory. Exit code 1 when missed.
The model starts on the meta device, is sharded and then made with `to_empty`, as torchtitan does.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing.distributed.groups import World
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Highest, highest, play
from vramcast.units import GIB

MOST_SECONDS: Final = 60.0
MOST_HOST_BYTES: Final = 4 * GIB
STEPS: Final = 2  # the second has optimizer states: the steady state


class Block(nn.Module):
    """One layer: grouped-query attention and SwiGLU [Llama 3, arXiv:2407.21783, table 3]."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        head = dim // heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q = nn.Linear(dim, heads * head, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * head, bias=False) for _ in range(2))
        self.o = nn.Linear(heads * head, dim, bias=False)
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Attention and MLP with their residuals."""
        normed = self.attention_norm(x_BTD)
        q = self.q(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (part(normed).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for part in (self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x_BTD = x_BTD + self.o(attended.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x_BTD)
        return x_BTD + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Llama 3.1 405B, or fewer of its layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128256, 16384)
        self.layers = nn.ModuleList(Block(16384, 128, 8, 53248) for _ in range(layers))
        self.norm = nn.RMSNorm(16384)
        self.head = nn.Linear(16384, 128256, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Logits; every layer is recomputed in backward."""
        x_BTD = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTD = torch.utils.checkpoint.checkpoint(layer, x_BTD, use_reentrant=False)
        return self.head(self.norm(x_BTD))


def sharded(layers: int) -> nn.Module:
    """The model under FSDP2, one unit a layer."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device("meta"):
        model = Llama(layers)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, sequence: int) -> None:
    """Forward, backward, update."""
    tokens = torch.randint(0, 128256, (1, sequence), device="cuda")
    targets = torch.randint(0, 128256, (1, sequence), device="cuda")
    functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def run(*, world_size: int, layers: int, sequence: int) -> dict[str, Any]:
    """What one rank needs and how long it took to know."""
    session = Session(load_gpu("h100-sxm-80gb"), world=World(world_size))
    start = time.perf_counter()
    with session.active():
        torch.distributed.init_process_group("nccl")
        model = sharded(layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        built = time.perf_counter() - start
        for _ in range(STEPS):
            step(model, optimizer, sequence)
    seconds = time.perf_counter() - start
    peak: Highest = highest(play(session.device.tape))
    return {
        "world_size": world_size, "parameters": parameters, "sequence": sequence, "steps": STEPS,
        "built_s": round(built, 2), "seconds": round(seconds, 2), "step_s": round((seconds - built) / STEPS, 2),
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "allocated_bytes": peak.allocated_bytes, "reserved_bytes": peak.reserved_bytes,
    }


def main() -> int:
    """The exit code: 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = run(world_size=given.world_size, layers=given.layers, sequence=given.sequence)
    if given.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['parameters'] / 1e9:.1f}B parameters on rank 0 of {found['world_size']}: "
            f"{found['seconds']} s ({found['built_s']} s to build, {found['step_s']} s a step), "
            f"host {found['host_bytes'] / GIB:.2f} GiB; peak allocated {found['allocated_bytes'] / GIB:.2f}, "
            f"reserved {found['reserved_bytes'] / GIB:.2f} GiB"
        )
    return int(found["seconds"] > MOST_SECONDS or found["host_bytes"] > MOST_HOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
