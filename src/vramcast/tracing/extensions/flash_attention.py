"""flash-attn's compiled module: its operators are registered with torch; xformers calls the functions themselves.

[api] flash-attention csrc/flash_attn/flash_api.cpp, v2.8: `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`, `mha_varlen_bwd`
Left out: `fwd_kvcache`, which raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call
from vramcast.tracing.extensions.stand_ins import Extension
from vramcast.tracing.rules.attention import FLASH_ROWS, gradient_rows, take_gradients, take_splits
from vramcast.tracing.rules.layouts import like
from vramcast.units import round_up


def forward(call: Call) -> Any:
    """Output, log-sum-exps, probabilities (none), state of the generator [api `mha_fwd`]."""
    query, key, _, out = call.args[:4]
    batch, queries, heads, _ = query.size()
    out = like(call, query) if out is None else out
    statistics = call.empty((batch, heads, queries), dtype=torch.float32)
    if not call.arg(5, "dropout_p"):
        take_splits(call, query.transpose(1, 2), key.transpose(1, 2))
    state = call.empty((2,), dtype=torch.int64)
    return out, statistics, call.empty((0,), dtype=query.dtype), state


def varlen_forward(call: Call) -> Any:
    """As `forward`, of sequences one after the other [api `mha_varlen_fwd`]."""
    query, out = call.args[0], call.args[3]
    tokens, heads, _ = query.size()
    out = like(call, query) if out is None else out
    statistics = call.empty((heads, tokens), dtype=torch.float32)
    state = call.empty((2,), dtype=torch.int64)
    return out, statistics, call.empty((0,), dtype=query.dtype), state


def backward(call: Call) -> Any:
    """Gradients, row sums; the queries' gradient is summed in fp32 [api `mha_bwd`]."""
    query = call.args[1]
    batch, queries, heads, _ = query.size()
    return _backward(call, (batch, heads, round_up(queries, FLASH_ROWS)), None, call.arg(16, "deterministic"))


def varlen_backward(call: Call) -> Any:
    """As `backward`, with room for 128 queries more a sequence [api `mha_varlen_bwd`]."""
    query, starts = call.args[1], call.args[9]
    tokens, heads, _ = query.size()
    sums = heads, tokens + FLASH_ROWS * (starts.numel() - 1)
    return _backward(call, sums, starts, call.arg(21, "deterministic"))


def _backward(call: Call, sums: tuple[int, ...], starts: torch.Tensor | None, deterministic: bool) -> Any:
    gradients = [
        like(call, tensor) if given is None else given
        for tensor, given in zip(call.args[1:4], call.args[6:9], strict=True)
    ]
    row_sums = call.empty(sums, dtype=torch.float32)
    rows, copies = gradient_rows(call, call.args[1], starts, deterministic=deterministic)
    take_gradients(call, rows * copies, call.args[1], gradients)
    return *gradients, row_sums


EXTENSIONS: Final[Mapping[str, Extension]] = {
    "flash_attn_2_cuda": Extension("flash_attn", "flash_attn_interface.py", {
        "bwd": backward, "fwd": forward, "varlen_bwd": varlen_backward, "varlen_fwd": varlen_forward,
    }),
}
