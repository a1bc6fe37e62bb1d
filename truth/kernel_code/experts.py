"""A mixture of experts as a Python loop."""

from __future__ import annotations

import torch

from truth.kernel_code.bench import CUDA, Run, dtype_of, leaf, with_random_gradient
from truth.rows.kernels.harness import Case


def _experts(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """As Mixtral's: a one-hot mask, then every expert that has tokens."""
    final = torch.zeros_like(x)
    with torch.no_grad():
        mask = torch.nn.functional.one_hot(chosen.long(), num_classes=up.size(0)).permute(2, 1, 0)
        used = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for found in used:
        expert = found[0]
        position, token = torch.where(mask[expert])
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
    scores = torch.rand(tokens, experts)  # on the host, so that the routing is known
    chosen = scores.topk(top_k, dim=-1).indices.to(torch.int32).to(CUDA)
    weights = leaf(tokens, top_k, dtype=dtype)
    return with_random_gradient(lambda: _experts(x, chosen, weights, up, down))


__all__ = ["fused_moe"]
