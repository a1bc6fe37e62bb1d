"""A mixture of experts as a Python loop."""

from __future__ import annotations

import random

import torch

from truth.kernel_code.bench import CUDA, Run, dtype_of, leaf, with_random_gradient
from truth.rows.kernels.harness import Case

Places = tuple[int, torch.Tensor]


def _experts(
    x: torch.Tensor, chosen: torch.Tensor, places: list[Places], weights: torch.Tensor, up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """As Mixtral's: a one-hot mask, then every expert that has tokens.

    Which tokens an expert has is known from setup: values on the card are not.
    """
    final = torch.zeros_like(x)
    with torch.no_grad():
        mask = torch.nn.functional.one_hot(chosen.long(), num_classes=up.size(0)).permute(2, 1, 0)
        torch.greater(mask.sum(dim=(-1, -2)), 0)
    for expert, found in places:
        position, token = found.to(CUDA).unbind(0)
        state = x[token]
        gate, value = torch.nn.functional.linear(state, up[expert]).chunk(2, dim=-1)
        hidden = torch.nn.functional.silu(gate) * value
        hidden = torch.nn.functional.linear(hidden, down[expert])
        hidden = hidden * weights[token, position, None]
        final.index_add_(0, token, hidden.to(final.dtype))
    return final


def _places(routing: torch.Tensor, experts: int) -> list[Places]:
    """Experts that have tokens, and which: (choices, tokens) on the host."""
    tokens = routing.size(0)
    order = routing.t().flatten().argsort(stable=True)
    counts = torch.bincount(routing.flatten(), minlength=experts).tolist()
    parts = torch.stack((order // tokens, order % tokens)).split(counts, dim=1)
    return [(expert, part.contiguous()) for expert, part in enumerate(parts) if part.size(1)]


def fused_moe(case: Case) -> Run:
    """Weights are a leaf times a number; tokens go to random experts."""
    tokens, top_k, experts = case.size("T"), case.size("K"), case.size("E")
    hidden, inner, dtype = case.size("H"), case.size("intermediate_dim"), dtype_of(case)
    x = leaf(tokens, hidden, dtype=dtype)
    up_leaf, down_leaf = leaf(experts, 2 * inner, hidden, dtype=dtype), leaf(experts, hidden, inner, dtype=dtype)
    up, down = up_leaf * 0.02, down_leaf * 0.02
    numbers = random.Random(0)
    routing = torch.tensor([numbers.sample(range(experts), top_k) for _ in range(tokens)], dtype=torch.int32)
    chosen, places = routing.to(CUDA), _places(routing, experts)
    weights = leaf(tokens, top_k, dtype=dtype)
    return with_random_gradient(lambda: _experts(x, chosen, places, weights, up, down))


__all__ = ["fused_moe"]
