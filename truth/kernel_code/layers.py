"""Norms, feed-forwards and rotary embeddings of transformers."""

from __future__ import annotations

from typing import Any

import torch

from truth.kernel_code.bench import (
    CUDA,
    Run,
    by_autograd,
    dtype_of,
    leaf,
    with_given_gradient,
    with_random_gradient,
)
from truth.rows.kernels.harness import Case


class RMSNorm(torch.nn.Module):
    """As LLaMA's: squares in fp32, the weight is multiplied last."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The normed states."""
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(dtype)


class GatedMLP(torch.nn.Module):
    """As LLaMA's and Gemma's."""

    def __init__(self, hidden: int, inner: int, act: Any) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, inner, bias=False)
        self.up_proj = torch.nn.Linear(hidden, inner, bias=False)
        self.down_proj = torch.nn.Linear(inner, hidden, bias=False)
        self.act_fn = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """down(act(gate(x)) * up(x))."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def _twice(module: Any) -> tuple[Any, Any]:
    """Every provider's module is set up, whichever is measured."""
    return module().to(CUDA), module().to(CUDA)


def rms_norm(case: Case) -> Run:
    """fp32 weights on inputs of any type."""
    rows, size = case.size("M"), case.size("H")
    norm, other = _twice(lambda: RMSNorm(size))
    x = leaf(rows, size, dtype=dtype_of(case))
    gradient = torch.randn_like(x)

    def forward() -> torch.Tensor:
        assert other is not None
        return norm(x)

    return with_given_gradient(forward, gradient)


def layer_norm(case: Case) -> Run:
    """torch.nn.LayerNorm."""
    rows, size = case.size("M"), case.size("N")
    norm, other = _twice(lambda: torch.nn.LayerNorm(size, eps=1e-6))
    x = leaf(rows, size, dtype=dtype_of(case))
    gradient = torch.randn_like(x)

    def forward() -> torch.Tensor:
        assert other is not None
        return norm(x)

    return with_given_gradient(forward, gradient)


def fused_add_rms_norm(case: Case) -> Run:
    """(norm(x + r), x + r), both with a gradient; four weights are set up."""
    rows, size = case.size("M"), case.size("H")
    norms = [RMSNorm(size).to(CUDA) for _ in range(4)]
    x, residual = leaf(rows, size, dtype=dtype_of(case)), leaf(rows, size, dtype=dtype_of(case))
    gradients = torch.randn_like(x), torch.randn_like(x)

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return norms[0](total), total

    return Run(forward, lambda outputs: torch.autograd.backward(outputs, gradients))


def group_norm(case: Case) -> Run:
    """torch.nn.GroupNorm."""
    batch, channels = case.size("M"), case.size("C")
    norm, other = _twice(lambda: torch.nn.GroupNorm(channels // case.size("channels_per_group"), channels))
    x = leaf(batch, channels, case.size("H"), dtype=dtype_of(case))
    gradient = torch.randn_like(x)

    def forward() -> torch.Tensor:
        assert other is not None
        return norm(x)

    return with_given_gradient(forward, gradient)


def _act(case: Case) -> Any:
    return torch.nn.GELU(approximate="tanh") if "geglu" in case.kernel else torch.nn.SiLU()


def gated_mlp(case: Case) -> Run:
    """LLaMA's and Gemma's feed-forward."""
    batch = case.size("B") if "B" in case.config else case.size("bsz")
    hidden, dtype = case.size("hidden_size"), dtype_of(case)
    mlp = GatedMLP(hidden, case.size("intermediate_size"), _act(case)).to(CUDA, dtype)
    x = leaf(batch, case.size("T"), hidden, dtype=dtype)
    return with_random_gradient(lambda: mlp(x))


class Tiled(torch.autograd.Function):
    """A module over shards of the sequence, run again in backward: DeepSpeed's `TiledMLP`."""

    @staticmethod
    def forward(ctx: Any, mlp: torch.nn.Module, x: torch.Tensor, shards: int) -> torch.Tensor:
        """All shards without gradients."""
        ctx.mlp, ctx.shards = mlp, shards
        ctx.save_for_backward(x)
        with torch.no_grad():
            outputs = [mlp(shard) for shard in torch.chunk(x, shards, dim=1)]
        return torch.cat(outputs, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Shard by shard: forward with gradients, then backward into a part of the input's gradient."""
        (x,) = ctx.saved_tensors
        sizes = x.size()
        # flat, so that a shard's gradient is contiguous whatever the batch
        x = x.detach().view(-1, sizes[-1])
        incoming = gradients[0].view(-1, sizes[-1])
        x_grad = torch.zeros_like(x)
        start = 0
        for shard in torch.chunk(x, ctx.shards, dim=0):
            shard.requires_grad_(True)
            step = shard.size(0)
            shard.grad = x_grad.narrow(0, start, step).view_as(shard)
            with torch.enable_grad():
                output = ctx.mlp(shard)
            torch.autograd.backward(output, incoming.narrow(0, start, step).view_as(output))
            start += step
        x_grad = x_grad.view(sizes)
        return None, x_grad, None


def tiled_mlp(case: Case) -> Run:
    """The plain feed-forward, or the same over shards."""
    if case.provider == "huggingface":
        return gated_mlp(case)
    hidden, dtype, shards = case.size("hidden_size"), dtype_of(case), case.size("num_shards")
    mlp = GatedMLP(hidden, case.size("intermediate_size"), _act(case)).to(CUDA, dtype)
    x = leaf(case.size("bsz"), case.size("T"), hidden, dtype=dtype)
    return with_random_gradient(lambda: Tiled.apply(mlp, x, shards))


def _rotary(case: Case) -> tuple[int, int, int, int, torch.dtype]:
    tokens = case.size("seq_len") if case.x_name == "H" else case.size("T")
    hidden = case.size("H") if case.x_name == "H" else case.size("hidden_size")
    heads = case.size("num_q_heads")
    return tokens, heads, case.size("num_kv_heads"), hidden // heads, dtype_of(case)


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def rope(case: Case) -> Run:
    """LLaMA's: angles by a matrix product in fp32, then cos and sin in the type of the keys."""
    tokens, heads, kv_heads, width, dtype = _rotary(case)
    inverse = 1.0 / (10_000 ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)).to(CUDA)
    q = torch.randn((1, tokens, heads, width), device=CUDA, requires_grad=True, dtype=dtype).transpose(1, 2)
    k = torch.randn((1, tokens, kv_heads, width), device=CUDA, requires_grad=True, dtype=dtype).transpose(1, 2)
    dq, dk = torch.randn_like(q), torch.randn_like(k)
    positions = torch.arange(tokens, device=CUDA, dtype=torch.long).unsqueeze(0)
    cos, sin = _angles(inverse, positions, dtype)

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return (q * c) + (_half_turned(q) * s), (k * c) + (_half_turned(k) * s)

    def held() -> tuple[torch.Tensor, torch.Tensor]:
        assert inverse is not None and positions is not None
        return forward()

    return by_autograd(held, (q, k), (dq, dk))


def _angles(inverse: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rows = inverse[None, :, None].float().expand(positions.shape[0], -1, 1)
    angles = (rows @ positions[:, None, :].float()).transpose(1, 2)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(dtype=dtype), both.sin().to(dtype=dtype)


def llama4_rope(case: Case) -> Run:
    """Complex frequencies."""
    tokens, heads, kv_heads, width, dtype = _rotary(case)
    inverse = 1.0 / (10_000 ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)).to(CUDA)
    q, k = leaf(1, tokens, heads, width, dtype=dtype), leaf(1, tokens, kv_heads, width, dtype=dtype)
    dq, dk = torch.randn_like(q), torch.randn_like(k)
    positions = torch.arange(tokens, device=CUDA, dtype=torch.long).unsqueeze(0)
    rows = inverse[None, :, None].expand(1, -1, 1)
    angles = (rows @ positions[:, None, :].float()).transpose(1, 2)
    turns = torch.polar(torch.ones_like(angles), angles)
    del angles

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        assert inverse is not None and positions is not None
        # both are turned before either is cast back
        pairs_q = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        pairs_k = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
        out_q = torch.view_as_real(pairs_q * turns[:, :, None, :]).flatten(3)
        out_k = torch.view_as_real(pairs_k * turns[:, :, None, :]).flatten(3)
        return out_q.type_as(q), out_k.type_as(k)

    return by_autograd(forward, (q, k), (dq, dk))


def softmax(case: Case) -> Run:
    """One row of N elements, whatever M says: the runs of April 2025."""
    x = leaf(case.size("N"), dtype=dtype_of(case))
    return with_given_gradient(lambda: torch.softmax(x, dim=-1), torch.randn_like(x))


def relu_squared(case: Case) -> Run:
    """One row of N elements, whatever M says: the runs of March 2026."""
    x = leaf(case.size("N"), dtype=dtype_of(case))
    return with_random_gradient(lambda: torch.nn.functional.relu(x).pow(2))


__all__ = [
    "fused_add_rms_norm", "gated_mlp", "group_norm", "layer_norm", "llama4_rope", "relu_squared", "rms_norm",
    "rope", "softmax", "tiled_mlp",
]
