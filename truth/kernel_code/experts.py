"""A mixture of experts as a Python loop."""

from __future__ import annotations

from typing import Final

import torch

from truth.kernel_code.bench import CUDA, Run, dtype_of, leaf, with_random_gradient
from truth.rows.kernels.harness import Case
from vramcast.tracing import values

SEED: Final = 42
"""Of the script, before it draws anything [Liger-Kernel benchmark/scripts/benchmark_fused_moe.py]."""
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
        hit = torch.empty(len(places), 1, dtype=torch.int64, device=CUDA)  # whose places are not zero
    assert hit is not None
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


def _routing(case: Case, offset: int) -> torch.Tensor:
    """(tokens, choices) on the host: the largest of the random numbers that the card draws there."""
    tokens, experts = case.size("T"), case.size("E")
    state = values.State(SEED, offset, case.gpu.multiprocessors, case.gpu.threads)
    logits = values.normal(tokens * experts, state).view(tokens, experts)
    return logits.topk(case.size("K"), dim=-1).indices


def fused_moe(case: Case) -> Run:
    """Weights are a leaf times a number; tokens go to random experts, which the seed tells."""
    tokens, top_k, experts = case.size("T"), case.size("K"), case.size("E")
    hidden, inner, dtype = case.size("H"), case.size("intermediate_dim"), dtype_of(case)
    torch.manual_seed(SEED)
    x = leaf(tokens, hidden, dtype=dtype)
    up = leaf(experts, 2 * inner, hidden, dtype=dtype) * 0.02
    down = leaf(experts, hidden, inner, dtype=dtype) * 0.02
    places = _places(_routing(case, torch.cuda.default_generators[0].get_offset()), experts)
    logits = torch.randn(tokens, experts, device=CUDA)
    chosen = torch.topk(logits, top_k, dim=-1).indices.to(torch.int32)
    weights = torch.softmax(torch.gather(logits, 1, chosen.long()), dim=-1).to(dtype).requires_grad_()
    del logits
    return with_random_gradient(lambda: _experts(x, chosen, places, weights, up, down))


__all__ = ["fused_moe"]
