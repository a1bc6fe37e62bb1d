"""Fused attention called by its own operators, as xformers and flash-attn do.

Tensors are (B, M, H, D), or (tokens, H, D) of sequences one after the other.
Symbols:  B batch   M queries   H heads   D head width
[forward] pytorch aten/src/ATen/native/transformers/cuda/attention.cu: `_flash_attention_forward`,
`_efficient_attention_forward`, v2.13
[backward] pytorch aten/src/ATen/native/transformers/cuda/attention_backward.cu: `_flash_attention_backward`,
`_efficient_attention_backward`, v2.13
[flash] pytorch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: `mha_fwd`, `mha_varlen_fwd`,
`mha_bwd`, `mha_varlen_bwd`
[api] flash-attention csrc/flash_attn/flash_api.cpp, v2: `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`, `mha_varlen_bwd`
[interface] flash-attention flash_attn/flash_attn_interface.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.attention import (
    Problem,
    gradient_rows,
    take_efficient,
    take_efficient_gradients,
    take_gradients,
    take_splits,
)
from vramcast.tracing.rules.layouts import FP32, contiguous_copy, like


def flash_forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the generator [flash]."""
    query, key, starts = call.arg(0, "query"), call.arg(1, "key"), call.arg(3, "cum_seq_q")
    out = like(call, query)
    heads = query.size(-2)
    sizes = (query.size(0), heads, query.size(1)) if starts is None else (heads, query.size(0))
    statistics = call.empty(sizes, dtype=torch.float32)
    if starts is None and not call.arg(7, "dropout_p", 0.0):
        take_splits(call, query.transpose(1, 2), key.transpose(1, 2))
    seed = call.empty((2,), dtype=torch.uint64)
    offset = call.empty((), dtype=torch.uint64)
    return out, statistics, seed, offset, torch.empty((0,), dtype=query.dtype, device="meta")


def flash_backward(call: Call) -> Any:
    """Gradients; row sums; the queries' gradient in fp32 [backward] [flash]."""
    query, starts = call.arg(1, "query"), call.arg(6, "cum_seq_q")
    for index, name in ((0, "grad_out"), (4, "out")):
        contiguous_copy(call, call.arg(index, name))
    gradients = [like(call, call.arg(index, name)) for index, name in ((1, "query"), (2, "key"), (3, "value"))]
    rows, copies = gradient_rows(call, query, starts, deterministic=torch.are_deterministic_algorithms_enabled())
    call.scratch(rows * query.size(-2) * FP32, "row sums of gradient * output")
    take_gradients(call, rows * copies, query, gradients)
    return tuple(gradients)


def efficient_forward(call: Call) -> Any:
    """Output, log-sum-exps of every sequence in rows of 32 [forward]."""
    query, key, value, starts = (
        call.arg(index, name) for index, name in ((0, "query"), (1, "key"), (2, "value"), (4, "cu_seqlens_q"))
    )
    batch, queries = query.size()[:2]
    longest, sequences, keys = queries, batch, key.size(1)
    if starts is not None:
        longest, sequences = call.arg(6, "max_seqlen_q"), starts.numel() - 1
        keys = call.arg(7, "max_seqlen_k")
    computes = call.arg(10, "compute_log_sumexp", False)
    made = take_efficient(call, query, value, sequences=sequences, longest=longest, computes_statistics=computes)
    return *made, longest, keys


def efficient_backward(call: Call) -> Any:
    """Gradients of query, key, value and bias; row sums; what blocks hand on to each other [backward]."""
    query, key, value, bias, out, starts = (call.arg(index, name) for index, name in (
        (1, "query"), (2, "key"), (3, "value"), (4, "bias"), (5, "out"), (6, "cu_seqlens_q"),
    ))
    contiguous_copy(call, call.arg(0, "grad_out_"))
    batch, queries, heads, width = query.size()
    gradients = _gradients(call, query, key, value)
    longest, sequences, keys = queries, batch, key.size(1)
    if starts is not None:
        longest, keys = call.arg(8, "max_seqlen_q"), call.arg(9, "max_seqlen_k")
        sequences = starts.numel() - 1
    problem = Problem(sequences, heads, longest, keys, max(width, value.size(-1)), width, value.size(-1))
    bias = bias if call.arg(15, "bias_requires_grad") else None
    return *gradients, take_efficient_gradients(call, out, bias, problem, dropout=bool(call.arg(11, "dropout_p")))


def _gradients(call: Call, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Contiguous; where asked for, parts of one tensor [backward `shared_storage_dqdkdv`]."""
    if not call.kwargs.get("shared_storage_dqdkdv", False):
        return tuple(call.empty(tensor.size(), dtype=tensor.dtype) for tensor in inputs)
    batch, queries, heads, width = inputs[0].size()
    return call.empty((batch, queries, len(inputs), heads, width), dtype=inputs[0].dtype).unbind(2)


def package_forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the generator; partial results where few queries split the keys [api]."""
    out = call.run()
    query, key, dropout = call.arg(0, "q"), call.arg(1, "k"), call.arg(3, "dropout_p", 0.0)
    if not dropout:
        take_splits(call, query.transpose(1, 2), key.transpose(1, 2))
    return out


def package_backward(call: Call) -> Any:
    """Row sums of gradient * output are returned; the queries' gradient is summed in fp32 [api]."""
    return _package_backward(call, None, call.arg(16, "deterministic"))


def package_varlen_backward(call: Call) -> Any:
    """As `package_backward`, with room for 128 queries more a sequence [api]."""
    return _package_backward(call, call.arg(9, "cu_seqlens_q"), call.arg(20, "deterministic"))


def _package_backward(call: Call, starts: torch.Tensor | None, deterministic: bool) -> Any:
    query, gradients = call.arg(1, "q"), [call.arg(index, name) for index, name in ((6, "dq"), (7, "dk"), (8, "dv"))]
    out = call.run()
    rows, copies = gradient_rows(call, query, starts, deterministic=deterministic)
    take_gradients(call, rows * copies, query, gradients)
    return out


RULES: Final[Mapping[str, Rule]] = {
    "aten._efficient_attention_backward": efficient_backward,
    "aten._efficient_attention_forward": efficient_forward,
    "aten._flash_attention_backward": flash_backward,
    "aten._flash_attention_forward": flash_forward,
    "flash_attn._flash_attn_backward": package_backward,
    "flash_attn._flash_attn_forward": package_forward,
    "flash_attn._flash_attn_varlen_backward": package_varlen_backward,
}


PLAIN: Final = frozenset({"flash_attn._flash_attn_varlen_forward"})
"""Sequences of different lengths are not split unless single queries are decoded [api `mha_varlen_fwd`]."""
