"""Encoder layers and self-attention in evaluation: one operator for torch.nn, a chain of kernels below.

[layer] pytorch aten/src/ATen/native/transformers/transformer.cpp `transformer_encoder_layer_forward`
[heads] pytorch aten/src/ATen/native/transformers/cuda/attention.cu `native_multi_head_attention_cuda`
Leaves out nested tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from vramcast.tracing.composites.attention import Backend, Question, chosen
from vramcast.tracing.simulation import Simulation

FUSED: Final = frozenset({Backend.FLASH, Backend.EFFICIENT})
HEAD_ALIGNMENT: Final = 8


class Heads(NamedTuple):
    """Weights of one self-attention."""

    size: int
    number: int
    weight: torch.Tensor
    bias: torch.Tensor
    out_weight: torch.Tensor
    out_bias: torch.Tensor


def multi_head_attention(
    simulation: Simulation, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *given: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[heads]"""
    heads, rest = Heads(*given[:6]), (*given[6:], *(None, True, True)[len(given) - 6 :])
    mask, needs_weights, averages = rest[:3]
    is_same = query is key and key is value
    if is_same and mask is None and not needs_weights and _is_fused(simulation, heads, query):
        return _fused(heads, query), None
    return _apart(heads, query, mask, needs_weights=needs_weights, averages=averages)


def encoder_layer(simulation: Simulation, source: torch.Tensor, size: int, count: int, *given: Any) -> torch.Tensor:
    """[layer]"""
    attention, (use_gelu, norm_first, epsilon), weights = given[:4], given[4:7], given[7:15]
    norm1, norm2, (up, up_bias, down, down_bias) = weights[:2], weights[2:4], weights[4:]
    mask = given[15] if len(given) > 15 else None
    x = functional.layer_norm(source, (size,), *norm1, epsilon) if norm_first else source
    x = multi_head_attention(simulation, x, x, x, size, count, *attention, mask, False)[0]
    x.add_(source)
    x = x if norm_first else functional.layer_norm(x, (size,), *norm1, epsilon)
    before = x
    x = functional.layer_norm(x, (size,), *norm2, epsilon) if norm_first else x
    wide = torch.ops.aten._addmm_activation(up_bias, x.reshape(-1, size), up.t(), use_gelu=use_gelu)
    x = torch.addmm(down_bias, wide, down.t()).view(source.size())
    del wide
    x.add_(before)
    return x if norm_first else functional.layer_norm(x, (size,), *norm2, epsilon)


def _split(heads: Heads, x: torch.Tensor) -> torch.Tensor:
    return x.view(x.size(0), -1, heads.number, heads.size // heads.number).transpose(1, 2)


def _is_fused(simulation: Simulation, heads: Heads, query: torch.Tensor) -> bool:
    """Whether scaled_dot_product_attention would take a fused kernel other than cuDNN's."""
    card = simulation.memory.card_of(query)
    if card is None or heads.size // heads.number % HEAD_ALIGNMENT:
        return False
    one = _split(heads, query)
    return chosen(Question(one, one, one, None, 0.0, False, False), card.sm) in FUSED


def _fused(heads: Heads, query: torch.Tensor) -> torch.Tensor:
    projected = functional.linear(query, heads.weight, heads.bias)
    parts = [_split(heads, part) for part in projected.chunk(3, -1)]
    out = functional.scaled_dot_product_attention(*parts)
    return functional.linear(out.transpose(1, 2).reshape(query.size()), heads.out_weight, heads.out_bias)


def _apart(
    heads: Heads, query: torch.Tensor, mask: torch.Tensor | None, *, needs_weights: bool, averages: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores of all heads; what attention gives is written over the queries. Weights are averaged over heads."""
    projected = torch.matmul(query, heads.weight.t())
    batch, tokens, _ = query.size()
    packed = query.new_empty((3, batch, heads.number, tokens, heads.size // heads.number))
    del projected
    q, k, _ = packed
    scores = torch.matmul(q, k.transpose(-2, -1))
    mask = mask if mask is None or mask.dtype is torch.bool else mask.to(torch.bool)
    weights = torch.softmax(scores, -1) if mask is None else torch.empty_like(scores)
    del scores
    rows = q.transpose(1, 2).reshape(-1, heads.size)
    out = torch.addmm(heads.out_bias, rows, heads.out_weight.t()).view(query.size())
    if not needs_weights:
        return out, None
    return out, weights.sum(1).div_(heads.number) if averages else weights


COMPOSITES: Final[Mapping[str, Any]] = {
    "_native_multi_head_attention": multi_head_attention, "_transformer_encoder_layer_fwd": encoder_layer,
}
