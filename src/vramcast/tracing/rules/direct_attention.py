"""Fused attention called by its own operators, as xformers and flash-attn do: (B, M, H, D) tensors, or rows.

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
    EFFICIENT_IN_REGISTERS,
    EFFICIENT_ROWS,
    NARROW,
    Problem,
    backward_workspace_bytes,
    row_sums,
    take_splits,
)
from vramcast.tracing.rules.layouts import contiguous_copy, like
from vramcast.tracing.rules.reduction_kernel import chip
from vramcast.tracing.rules.reductions import reduce, sum_kernel
from vramcast.units import ceil_div, round_up

FP32: Final = 4
BIAS_ALIGNMENT: Final = 16  # of the last dimension of a bias' gradient


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
    heads = query.size(-2)
    if starts is None:
        sequences = query.size(0)
        rows = sequences * round_up(query.size(1), ROWS)
    else:
        sequences = starts.numel() - 1
        rows = query.size(0) + ROWS * sequences
    call.scratch(rows * heads * FP32, "row sums of gradient * output")
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    copies = ceil_div(chip(call).multiprocessors, sequences * heads) if is_deterministic else 1
    take_gradients(call, rows * copies, query, gradients)
    return tuple(gradients)


def efficient_forward(call: Call) -> Any:
    """Output, log-sum-exps of every sequence in rows of 32 [forward]."""
    query, key, value, starts = (
        call.arg(index, name) for index, name in ((0, "query"), (1, "key"), (2, "value"), (4, "cu_seqlens_q"))
    )
    batch, queries, heads, _ = query.size()
    longest, sequences, keys = queries, batch, key.size(1)
    if starts is not None:
        longest, sequences = call.arg(6, "max_seqlen_q"), starts.numel() - 1
        keys = call.arg(7, "max_seqlen_k")
    out = call.empty((batch, queries, heads, value.size(-1)), dtype=query.dtype)
    rows = round_up(longest, EFFICIENT_ROWS) if call.arg(10, "compute_log_sumexp", False) else 0
    statistics = call.empty((sequences, heads, rows), dtype=torch.float32)
    if query.dtype in NARROW and max(value.size(-1), query.size(-1)) > EFFICIENT_IN_REGISTERS:
        call.scratch(out.numel() * FP32, "fp32 output")
    # the generator's state is on the host unless a graph is captured
    seed, offset = (torch.empty((), dtype=torch.int64) for _ in range(2))
    return out, statistics, seed, offset, longest, keys


def efficient_backward(call: Call) -> Any:
    """Gradients of query, key, value and bias; row sums; what blocks hand on to each other [backward]."""
    query, key, value, bias, out, starts = (call.arg(index, name) for index, name in (
        (1, "query"), (2, "key"), (3, "value"), (4, "bias"), (5, "out"), (6, "cu_seqlens_q"),
    ))
    contiguous_copy(call, call.arg(0, "grad_out_"))
    batch, queries, heads, width = query.size()
    gradients = _gradients(call, query, key, value)
    grad_bias = None
    if bias is not None and call.arg(15, "bias_requires_grad"):
        last = bias.size(-1)
        sizes = (*bias.size()[:-1], round_up(last, BIAS_ALIGNMENT))
        grad_bias = call.empty(sizes, dtype=bias.dtype)[..., :last]
    if query.dtype in NARROW:
        call.scratch(batch * heads * queries * FP32, "row sums of gradient * output")
    else:
        row_sums(call, out.transpose(1, 2))
    longest, sequences, keys = queries, batch, key.size(1)
    if starts is not None:
        longest, keys = call.arg(8, "max_seqlen_q"), call.arg(9, "max_seqlen_k")
        sequences = starts.numel() - 1
    problem = Problem(sequences, heads, longest, keys, max(width, value.size(-1)), width, value.size(-1))
    dropout = bool(call.arg(11, "dropout_p"))
    size = backward_workspace_bytes(problem, query.dtype.itemsize, call.device.sm, dropout=dropout)
    call.scratch(size, "fp32 gradients between blocks")
    return *gradients, grad_bias


def _gradients(call: Call, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Contiguous; where asked for, parts of one tensor [backward `shared_storage_dqdkdv`]."""
    if not call.kwargs.get("shared_storage_dqdkdv", False):
        return tuple(call.empty(tensor.size(), dtype=tensor.dtype) for tensor in inputs)
    batch, queries, heads, width = inputs[0].size()
    return call.empty((batch, queries, len(inputs), heads, width), dtype=inputs[0].dtype).unbind(2)


ROWS: Final = 128  # queries are rounded up to
WIDE: Final = 192  # wider heads take whole 256
NEWEST_WIDTH: Final = 256


def package_forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the generator; partial results where few queries split the keys [api]."""
    out = call.run()
    query, key, dropout = call.arg(0, "q"), call.arg(1, "k"), call.arg(3, "dropout_p", 0.0)
    if not dropout:
        take_splits(call, query.transpose(1, 2), key.transpose(1, 2))
    return out


def package_backward(call: Call) -> Any:
    """Row sums of gradient * output are returned; the queries' gradient is summed in fp32 [api]."""
    query, gradients = call.arg(1, "q"), [call.arg(index, name) for index, name in ((6, "dq"), (7, "dk"), (8, "dv"))]
    out = call.run()
    batch, queries, heads, _ = query.size()
    copies = ceil_div(chip(call).multiprocessors, batch * heads) if call.arg(16, "deterministic") else 1
    take_gradients(call, batch * round_up(queries, ROWS) * copies, query, gradients)
    return out


def package_varlen_backward(call: Call) -> Any:
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
    "aten._efficient_attention_backward": efficient_backward,
    "aten._efficient_attention_forward": efficient_forward,
    "aten._flash_attention_backward": flash_backward,
    "aten._flash_attention_forward": flash_forward,
    "flash_attn._flash_attn_backward": package_backward,
    "flash_attn._flash_attn_forward": package_forward,
    "flash_attn._flash_attn_varlen_backward": package_varlen_backward,
}


PLAIN: Final = frozenset({"flash_attn._flash_attn_varlen_forward"})
