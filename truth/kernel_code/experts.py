"""A mixture of experts as a Python loop."""

from __future__ import annotations

import random

import torch

from truth.kernel_code.bench import CUDA, Run, dtype_of, leaf, with_random_gradient
from truth.rows.kernels.harness import Case


def _experts(
    x: torch.Tensor, routing: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor, up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """As Mixtral's: a one-hot mask, then every expert that has tokens.

    Which tokens an expert has is read from the host's copy of the routing: values on the card are not known.
    """
    chosen, on_host = routing
    final = torch.zeros_like(x)
    with torch.no_grad():
        mask = torch.nn.functional.one_hot(chosen.long(), num_classes=up.size(0)).permute(2, 1, 0)
        torch.greater(mask.sum(dim=(-1, -2)), 0)
    for expert in range(up.size(0)):
        found = (on_host == expert).t().nonzero()
        if not len(found):
            continue
        position, token = found.t().contiguous().to(CUDA).unbind(0)
        state = x[token]
        gate, value = torch.nn.functional.linear(state, up[expert]).chunk(2, dim=-1)
        hidden = torch.nn.functional.silu(gate) * value
        hidden = torch.nn.functional.linear(hidden, down[expert])
        hidden = hidden * weights[token, position, None]
        final.index_add_(0, token, hidden.to(final.dtype))
    return final


def fused_moe(case: Case) -> Run:
    """Weights are a leaf times a number; tokens go to random experts."""
    tokens, top_k, experts = case.size("T"), case.size("K"), case.size("E")
    hidden, inner, dtype = case.size("H"), case.size("intermediate_dim"), dtype_of(case)
    x = leaf(tokens, hidden, dtype=dtype)
    up_leaf, down_leaf = leaf(experts, 2 * inner, hidden, dtype=dtype), leaf(experts, hidden, inner, dtype=dtype)
    up, down = up_leaf * 0.02, down_leaf * 0.02
    numbers = random.Random(0)
    on_host = torch.tensor([numbers.sample(range(experts), top_k) for _ in range(tokens)], dtype=torch.int32)
    routing = on_host.to(CUDA), on_host
    weights = leaf(tokens, top_k, dtype=dtype)
    return with_random_gradient(lambda: _experts(x, routing, weights, up, down))


__all__ = ["fused_moe"]
