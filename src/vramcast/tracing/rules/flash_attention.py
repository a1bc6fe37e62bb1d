"""The package flash-attn: (B, M, H, D) tensors, or (tokens, H, D) ones of sequences one after the other.

Symbols:  B batch   H heads   M queries   D head width
[api] flash-attention csrc/flash_attn/flash_api.cpp, v2: `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`, `mha_varlen_bwd`
[interface] flash-attention flash_attn/flash_attn_interface.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.attention import take_splits
from vramcast.tracing.rules.chips import chip
from vramcast.tracing.rules.reductions import reduce, sum_kernel
from vramcast.units import ceil_div, round_up

FP32: Final = 4
ROWS: Final = 128  # queries are rounded up to
WIDE: Final = 192  # wider heads take whole 256
NEWEST_WIDTH: Final = 256


def forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the generator; partial results where few queries split the keys [api]."""
    out = call.run()
    query, key, dropout = call.arg(0, "q"), call.arg(1, "k"), call.arg(3, "dropout_p", 0.0)
    if not dropout:
        take_splits(call, query.transpose(1, 2), key.transpose(1, 2))
    return out


def backward(call: Call) -> Any:
    """Row sums of gradient * output are returned; the queries' gradient is summed in fp32 [api]."""
    query, gradients = call.arg(1, "q"), [call.arg(index, name) for index, name in ((6, "dq"), (7, "dk"), (8, "dv"))]
    out = call.run()
    batch, queries, heads, _ = query.size()
    copies = ceil_div(chip(call).multiprocessors, batch * heads) if call.arg(16, "deterministic") else 1
    take_gradients(call, batch * round_up(queries, ROWS) * copies, query, gradients)
    return out


def varlen_backward(call: Call) -> Any:
    """As `backward`, with room for 128 queries more a sequence [api]."""
    query, gradients = call.arg(1, "q"), [call.arg(index, name) for index, name in ((6, "dq"), (7, "dk"), (8, "dv"))]
    out = call.run()
    tokens, heads, _ = query.size()
    sequences = call.arg(9, "cu_seqlens_q").numel() - 1
    copies = ceil_div(chip(call).multiprocessors, sequences * heads) if call.arg(20, "deterministic") else 1
    take_gradients(call, (tokens + ROWS * sequences) * copies, query, gradients)
    return out


def take_gradients(call: Call, rows: int, query: torch.Tensor, gradients: list[torch.Tensor | None]) -> None:
    """Accumulators, and gradients of shared heads before they are summed [api]."""
    heads, width = query.size()[-2:]
    rounded = round_up(width, 32) if width <= WIDE else NEWEST_WIDTH
    call.scratch(rows * heads * rounded * FP32, "fp32 gradient of queries")
    shared = [gradient for gradient in gradients[1:] if gradient is not None and gradient.size(-2) != heads]
    groups = [heads // gradient.size(-2) for gradient in shared]
    expanded = [
        torch.empty((*gradient.size()[:-1], group, width), dtype=query.dtype, device="meta")
        for gradient, group in zip(shared, groups, strict=True)
    ]
    for name, whole in zip(("keys", "values"), expanded, strict=False):
        call.scratch(whole.numel() * whole.dtype.itemsize, f"gradient of {name}, a copy a query head")
    for gradient, whole in zip(shared, expanded, strict=True):
        reduce(call, whole, (whole.dim() - 2,), gradient, sum_kernel(query.dtype, query.dtype))


RULES: Final[Mapping[str, Rule]] = {
    "flash_attn._flash_attn_backward": backward,
    "flash_attn._flash_attn_forward": forward,
    "flash_attn._flash_attn_varlen_backward": varlen_backward,
}
PLAIN: Final = frozenset({"flash_attn._flash_attn_varlen_forward"})
"""Sequences of different lengths are not split unless single queries are decoded [api `mha_varlen_fwd`]."""
