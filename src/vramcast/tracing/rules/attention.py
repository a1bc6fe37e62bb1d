"""Fused attention kernels: order of their outputs, statistics, accumulators and workspaces.

Behind scaled_dot_product_attention tensors are (B, H, M, D). Called by their own operators, as xformers and flash-attn
do, or by flash-attn's compiled functions, they are (B, M, H, D), or (tokens, H, D) of sequences one after the other.
Left out: flash-attn's `fwd_kvcache`, which raises.

Symbols:  B batch   H heads   M queries   N keys   D head width
I rows and J columns of a block   K widest head a kernel is made for
[flash] pytorch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: `mha_fwd`, `mha_bwd`,
`set_params_splitkv`, `num_splits_heuristic`
[flash-sdpa] pytorch aten/src/ATen/native/transformers/cuda/attention_backward.cu `_flash_attention_backward`
[efficient] pytorch aten/src/ATen/native/transformers/cuda/attention.cu `_efficient_attention_forward`,
attention_backward.cu `_efficient_attention_backward`
[cudnn] pytorch aten/src/ATen/native/cudnn/MHA.cpp: `run_cudnn_SDP_fprop`, `run_cudnn_SDP_bprop`
[kernel] pytorch aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h: `workspace_elements_gk`,
`workspace_elements_gv`, `workspace_elements_gq`, `workspace_strideBH`
[list] kernels/cutlassB.h `dispatch_cutlassB_bf16_sm80`, `dispatch_cutlassB_f32_sm80`: the first that fits is taken
[splits] cuda/attention_backward.cu `_efficient_attention_backward`
[forward] pytorch aten/src/ATen/native/transformers/cuda/attention.cu: `_flash_attention_forward`,
`_efficient_attention_forward`, v2.13
[backward] pytorch aten/src/ATen/native/transformers/cuda/attention_backward.cu: `_flash_attention_backward`,
`_efficient_attention_backward`, v2.13
[api] flash-attention csrc/flash_attn/flash_api.cpp, v2: `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`, `mha_varlen_bwd`
[interface] flash-attention flash_attn/flash_attn_interface.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import FP32, LITTLE_SHARED, NARROW, chip, contiguous_copy, like, num_bytes
from vramcast.tracing.rules.reductions import reduce, sum_kernel
from vramcast.units import ceil_div, round_up

FLASH_ROWS: Final = 128  # queries are rounded up to
WIDEST_ROUNDED: Final = 192  # wider heads take whole 256
WIDEST: Final = 256
FLASH_BLOCK_ROWS: Final = 64  # of the split kernel
MOST_SPLITS: Final = 128
EFFICIENT_ROWS: Final = 32
BIAS_ALIGNMENT: Final = 16  # of the last dimension of a bias' gradient
EFFICIENT_IN_REGISTERS: Final = 128  # widest head whose output needs no fp32 buffer


def flash_forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the random generator."""
    query, key = (call.arg(index, name) for index, name in ((0, "query"), (1, "key")))
    batch, heads, queries, _ = query.size()
    out = like(call, query)
    statistics = call.empty((batch, heads, queries), dtype=torch.float32)
    if not call.arg(3, "dropout_p", 0.0):
        take_splits(call, query, key)
    seed = call.empty((2,), dtype=torch.uint64)
    offset = call.empty((), dtype=torch.uint64)
    mask = torch.empty((0,), dtype=query.dtype, device="meta")
    return out, statistics, None, None, queries, key.size(2), seed, offset, mask


def take_splits(call: Call, query: torch.Tensor, key: torch.Tensor) -> None:
    """Partial results where keys are split, of (B, H, M, D) queries without dropout [flash `set_params_splitkv`]."""
    batch, heads, queries, width = query.size()
    splits = _splits(call, query, key)
    if splits > 1:
        rows = splits * batch * heads * queries
        call.scratch(rows * FP32, "log-sum-exps of splits")
        call.scratch(rows * round_up(width, 32) * FP32, "outputs of splits")


def _splits(call: Call, query: torch.Tensor, key: torch.Tensor) -> int:
    """Parts that keys are split into where queries alone do not fill the card [flash `num_splits_heuristic`]."""
    batch, heads, queries, width = query.size()
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    columns = ceil_div(key.size(2), block)
    if queries == 1 and heads > key.size(1):  # groups of heads are folded into the queries
        queries, heads = heads // key.size(1), key.size(1)
    rows = batch * heads * ceil_div(queries, FLASH_BLOCK_ROWS)
    multiprocessors = chip(call).multiprocessors
    if rows >= 0.8 * multiprocessors:
        return 1
    most = min(MOST_SPLITS, multiprocessors, columns)
    efficiency: dict[int, float] = {}
    for splits in range(1, most + 1):
        if splits == 1 or ceil_div(columns, splits) != ceil_div(columns, splits - 1):
            waves = rows * splits / multiprocessors
            efficiency[splits] = waves / ceil_div(rows * splits, multiprocessors)
    best = max(efficiency.values())
    return next(splits for splits, value in efficiency.items() if value >= 0.85 * best)


def flash_backward(call: Call) -> Any:
    grad, query, key, value, out = call.args[:5]
    for tensor in (grad, out):
        copied_unless_rows(call, tensor)
    gradients = [like(call, tensor) for tensor in (query, key, value)]
    query = query.transpose(1, 2)
    rows, copies = gradient_rows(call, query, deterministic=torch.are_deterministic_algorithms_enabled())
    call.scratch(rows * query.size(2) * FP32, "row sums of gradient * output")
    take_gradients(call, rows * copies, query, [each.transpose(1, 2) for each in gradients])
    return tuple(gradients)


def gradient_rows(
    call: Call, query: torch.Tensor, starts: torch.Tensor | None = None, *, deterministic: bool
) -> tuple[int, int]:
    """Rows of all queries, rounded up for each sequence, and how many copies of their gradient blocks sum up [flash].

    Queries are (B, M, H, D), or (tokens, H, D) of sequences one after the other, which begin at `starts`.
    """
    if starts is None:
        sequences = query.size(0)
        rows = sequences * round_up(query.size(1), FLASH_ROWS)
    else:
        sequences = starts.numel() - 1
        rows = query.size(0) + FLASH_ROWS * sequences
    return rows, ceil_div(chip(call).multiprocessors, sequences * query.size(-2)) if deterministic else 1


def take_gradients(call: Call, rows: int, query: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> None:
    """Accumulators, and gradients of shared heads before they are summed [flash]."""
    heads, width = query.size()[-2:]
    rounded = round_up(width, 32) if width <= WIDEST_ROUNDED else WIDEST
    call.scratch(rows * heads * rounded * FP32, "fp32 gradient of queries")
    shared = [gradient for gradient in gradients[1:] if gradient is not None and gradient.size(-2) != heads]
    expanded = [
        torch.empty((*gradient.size()[:-1], heads // gradient.size(-2), width), dtype=query.dtype, device="meta")
        for gradient in shared
    ]
    for name, whole in zip(("keys", "values"), expanded, strict=False):
        call.scratch(num_bytes(whole), f"gradient of {name}, a copy a query head")
    for gradient, whole in zip(shared, expanded, strict=True):
        reduce(call, whole, (whole.dim() - 2,), gradient, sum_kernel(query.dtype, query.dtype))


def copied_unless_rows(call: Call, tensor: torch.Tensor) -> None:
    """(B, H, M, D) tensors are read as contiguous (B, M, H, D)."""
    if not tensor.transpose(1, 2).is_contiguous():
        call.scratch(num_bytes(tensor), "contiguous copy")


def efficient_forward(call: Call) -> Any:
    """Output (B, M, H, D), log-sum-exps in rows of 32."""
    query, value = (call.arg(index, name).transpose(1, 2) for index, name in ((0, "query"), (2, "value")))
    batch, queries = query.size()[:2]
    computes = call.arg(4, "compute_log_sumexp")
    out, *rest = take_efficient(call, query, value, sequences=batch, longest=queries, computes_statistics=computes)
    return out.transpose(1, 2), *rest


def take_efficient(
    call: Call, query: torch.Tensor, value: torch.Tensor, *, sequences: int, longest: int, computes_statistics: bool
) -> tuple[torch.Tensor, ...]:
    """Output, log-sum-exps of every sequence in rows of 32, state of the generator [efficient]."""
    batch, queries, heads, width = query.size()
    out = call.empty((batch, queries, heads, value.size(-1)), dtype=query.dtype)
    rows = round_up(longest, EFFICIENT_ROWS) if computes_statistics else 0
    statistics = call.empty((sequences, heads, rows), dtype=torch.float32)
    if query.dtype in NARROW and max(value.size(-1), width) > EFFICIENT_IN_REGISTERS:
        call.scratch(out.numel() * FP32, "fp32 output")
    # the generator's state is on the host unless a graph is captured
    seed, offset = (torch.empty((), dtype=torch.int64) for _ in range(2))
    return out, statistics, seed, offset


def efficient_backward(call: Call) -> Any:
    grad, query, key, value, bias, out = call.args[:6]
    copied_unless_rows(call, grad)
    gradients = []
    for tensor in (query, key, value):
        b, h, n, d = tensor.size()
        gradients.append(call.empty((b, n, h, d), dtype=tensor.dtype).transpose(1, 2))
    bias = bias if call.arg(10, "grad_input_mask")[3] else None
    batch, heads, queries, width = query.size()
    problem = Problem(batch, heads, queries, key.size(2), max(width, value.size(-1)), width, value.size(-1))
    return *gradients, take_efficient_gradients(call, out, bias, problem, dropout=bool(call.arg(9, "dropout_p")))


def take_efficient_gradients(
    call: Call, out: torch.Tensor, bias: torch.Tensor | None, problem: Problem, *, dropout: bool
) -> torch.Tensor | None:
    """The bias' gradient where it is wanted; row sums; what blocks hand on to each other [efficient]."""
    grad_bias = None
    if bias is not None:
        sizes = (*bias.size()[:-1], round_up(bias.size(-1), BIAS_ALIGNMENT))
        grad_bias = call.empty(sizes, dtype=bias.dtype)[..., : bias.size(-1)]
    if out.dtype in NARROW:
        call.scratch(out.numel() // out.size(-1) * FP32, "row sums of gradient * output")
    else:
        row_sums(call, out)
    size = backward_workspace_bytes(problem, out.dtype.itemsize, call.device.sm, dropout=dropout)
    call.scratch(size, "fp32 gradients between blocks")
    return grad_bias


def row_sums(call: Call, out: torch.Tensor) -> None:
    """fp32: (gradient * output).sum(-1) by three operators."""
    rows = out.numel() // out.size(-1)
    product = call.scratch(num_bytes(out), "gradient * output")
    sums = call.scratch(rows * FP32, "row sums")
    call.scratch(rows * FP32, "row sums of gradient * output")
    call.release(sums)
    call.release(product)


def cudnn_forward(call: Call) -> Any:
    """Generator state, output, statistics."""
    query, key = call.args[:2]
    batch, heads, queries, _ = query.size()
    seed, offset = (call.empty((), dtype=torch.int64) for _ in range(2))
    meta = torch.ops.aten._scaled_dot_product_cudnn_attention(*call.args, **call.kwargs)[0]
    out = call.empty(meta.size(), dtype=query.dtype, strides=meta.stride())
    statistics = None
    if call.arg(4, "compute_log_sumexp"):
        statistics = call.empty((batch, heads, queries, 1), dtype=torch.float32)
    return out, statistics, None, None, queries, key.size(2), seed, offset, None


def cudnn_backward(call: Call) -> Any:
    """Gradients; cuDNN's workspace holds the queries' gradient in fp32 and row sums."""
    query, key, value = call.args[1:4]
    gradients = tuple(like(call, tensor) for tensor in (query, key, value))
    batch, heads, queries, width = query.size()
    call.scratch(batch * heads * queries * (width + 1) * FP32, "cuDNN workspace")
    return gradients


LOCK_BYTES: Final = 16  # lock, counter and padding of every block
ENOUGH_PARALLELISM: Final = 256
MOST_STAGED: Final = 200
ALIGNMENT: Final = 4  # elements
WIDE: Final = 65_536


class Problem(NamedTuple):
    """Sizes of one attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    widest: int  # of query and value heads
    query_width: int
    value_width: int


class Tile(NamedTuple):
    """One kernel."""

    rows: int  # I
    columns: int  # J
    widest: int  # K
    needs_shared: bool = False  # more than 99 KiB


HALF: Final = (
    Tile(64, 64, 32), Tile(64, 64, 64), Tile(128, 128, 128, True), Tile(64, 64, 128), Tile(128, 64, WIDE, True),
    Tile(64, 64, WIDE),
)
HALF_LITTLE_SHARED: Final = Tile(128, 64, 96)
FULL: Final = (
    Tile(64, 64, 32), Tile(64, 64, 64), Tile(128, 64, 128, True), Tile(64, 64, 128), Tile(128, 64, WIDE, True),
    Tile(64, 64, WIDE),
)


def backward_workspace_bytes(problem: Problem, itemsize: int, sm: int, *, dropout: bool = False) -> int:
    """fp32 gradients that blocks hand on to each other [bytes].

    Leaves out cards before Ampere, whose kernels are smaller.
    """
    tile = _tile(problem.widest, itemsize, sm, dropout=dropout)
    staged = itemsize == 2 and tile.widest > tile.rows  # keys' gradients do not stay in registers
    splits = ceil_div(problem.keys, tile.columns)
    if problem.batch * problem.heads >= ENOUGH_PARALLELISM and problem.keys <= 2 * tile.columns:
        splits = 1
    if staged:
        splits = min(splits, MOST_STAGED // (problem.batch * problem.heads))
    splits = max(1, splits)
    elements = 0
    if staged:
        widths = (problem.query_width, problem.value_width)
        elements += sum(splits * tile.columns * round_up(width, tile.rows) for width in widths)
    blocks = ceil_div(problem.queries, tile.rows) * ceil_div(problem.query_width, tile.columns)
    elements += blocks * (LOCK_BYTES // FP32 + tile.rows * tile.columns)
    return problem.batch * problem.heads * round_up(elements, ALIGNMENT) * FP32


def _tile(widest: int, itemsize: int, sm: int, *, dropout: bool) -> Tile:
    """The first kernel of the list that takes the head and fits into shared memory [list]."""
    little = sm in LITTLE_SHARED
    if itemsize == 2 and little and not dropout and 64 < widest <= HALF_LITTLE_SHARED.widest:
        return HALF_LITTLE_SHARED
    tiles = HALF if itemsize == 2 else FULL
    return next(tile for tile in tiles if widest <= tile.widest and not (little and tile.needs_shared))


def take_flash(
    call: Call, query: torch.Tensor, key: torch.Tensor, starts: torch.Tensor | None, *, dropout: Any,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, log-sum-exps; partial results where few queries split the keys, never of sequences in a row [flash]."""
    heads = query.size(-2)
    out = like(call, query) if out is None else out
    sizes = (query.size(0), heads, query.size(1)) if starts is None else (heads, query.size(0))
    statistics = call.empty(sizes, dtype=torch.float32)
    if starts is None and not dropout:
        take_splits(call, query.transpose(1, 2), key.transpose(1, 2))
    return out, statistics


def direct_flash_forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the generator [forward]."""
    query, key, starts = call.arg(0, "query"), call.arg(1, "key"), call.arg(3, "cum_seq_q")
    made = take_flash(call, query, key, starts, dropout=call.arg(7, "dropout_p", 0.0))
    seed = call.empty((2,), dtype=torch.uint64)
    offset = call.empty((), dtype=torch.uint64)
    return *made, seed, offset, torch.empty((0,), dtype=query.dtype, device="meta")


def direct_flash_backward(call: Call) -> Any:
    """Gradients; row sums; the queries' gradient in fp32 [backward] [flash]."""
    query, starts = call.arg(1, "query"), call.arg(6, "cum_seq_q")
    for index, name in ((0, "grad_out"), (4, "out")):
        contiguous_copy(call, call.arg(index, name))
    gradients = [like(call, call.arg(index, name)) for index, name in ((1, "query"), (2, "key"), (3, "value"))]
    rows, copies = gradient_rows(call, query, starts, deterministic=torch.are_deterministic_algorithms_enabled())
    call.scratch(rows * query.size(-2) * FP32, "row sums of gradient * output")
    take_gradients(call, rows * copies, query, gradients)
    return tuple(gradients)


def direct_efficient_forward(call: Call) -> Any:
    """Output, log-sum-exps of every sequence in rows of 32 [forward]."""
    query, key, value, starts = (
        call.arg(index, name) for index, name in ((0, "query"), (1, "key"), (2, "value"), (4, "cu_seqlens_q"))
    )
    sequences, longest, keys = query.size(0), query.size(1), key.size(1)
    if starts is not None:
        sequences, longest, keys = starts.numel() - 1, call.arg(6, "max_seqlen_q"), call.arg(7, "max_seqlen_k")
    computes = call.arg(10, "compute_log_sumexp", False)
    made = take_efficient(call, query, value, sequences=sequences, longest=longest, computes_statistics=computes)
    return *made, longest, keys


def direct_efficient_backward(call: Call) -> Any:
    """Gradients of query, key, value and bias; row sums; what blocks hand on to each other [backward]."""
    query, key, value, bias, out, starts = (call.arg(index, name) for index, name in (
        (1, "query"), (2, "key"), (3, "value"), (4, "bias"), (5, "out"), (6, "cu_seqlens_q"),
    ))
    contiguous_copy(call, call.arg(0, "grad_out_"))
    batch, queries, heads, width = query.size()
    if call.kwargs.get("shared_storage_dqdkdv", False):
        gradients = call.empty((batch, queries, 3, heads, width), dtype=query.dtype).unbind(2)
    else:
        gradients = tuple(call.empty(tensor.size(), dtype=tensor.dtype) for tensor in (query, key, value))
    sequences, longest, keys = batch, queries, key.size(1)
    if starts is not None:
        sequences, longest, keys = starts.numel() - 1, call.arg(8, "max_seqlen_q"), call.arg(9, "max_seqlen_k")
    problem = Problem(sequences, heads, longest, keys, max(width, value.size(-1)), width, value.size(-1))
    bias = bias if call.arg(15, "bias_requires_grad") else None
    return *gradients, take_efficient_gradients(call, out, bias, problem, dropout=bool(call.arg(11, "dropout_p")))


def package_forward(call: Call) -> Any:
    """Output, log-sum-exps, state of the generator; partial results where few queries split the keys [api]."""
    out = call.run()
    if not call.arg(3, "dropout_p", 0.0):
        take_splits(call, call.arg(0, "q").transpose(1, 2), call.arg(1, "k").transpose(1, 2))
    return out


def package_backward(call: Call) -> Any:
    """Row sums of gradient * output are returned; the queries' gradient is summed in fp32 [api]."""
    is_varlen = "varlen" in call.name
    starts = call.arg(9, "cu_seqlens_q") if is_varlen else None
    query, gradients = call.arg(1, "q"), [call.arg(index, name) for index, name in ((6, "dq"), (7, "dk"), (8, "dv"))]
    out = call.run()
    deterministic = call.arg(20 if is_varlen else 16, "deterministic")
    rows, copies = gradient_rows(call, query, starts, deterministic=deterministic)
    take_gradients(call, rows * copies, query, gradients)
    return out


def compiled_forward(call: Call) -> Any:
    """Output, log-sum-exps, probabilities (none), state of the generator [api `mha_fwd`, `mha_varlen_fwd`]."""
    query, key, _, out = call.args[:4]
    starts = call.args[4] if "varlen" in call.name else None
    made = take_flash(call, query, key, starts, dropout=call.arg(5, "dropout_p"), out=out)
    state = call.empty((2,), dtype=torch.int64)
    return *made, call.empty((0,), dtype=query.dtype), state


def compiled_backward(call: Call) -> Any:
    """Gradients, row sums with room for 128 queries more a sequence in a row [api `mha_bwd`, `mha_varlen_bwd`]."""
    query, heads = call.args[1], call.args[1].size(-2)
    is_varlen = "varlen" in call.name
    starts = call.args[9] if is_varlen else None
    gradients = [
        like(call, tensor) if given is None else given
        for tensor, given in zip(call.args[1:4], call.args[6:9], strict=True)
    ]
    rows, copies = gradient_rows(
        call, query, starts, deterministic=call.arg(21 if is_varlen else 16, "deterministic")
    )
    sums = (query.size(0), heads, rows // query.size(0)) if starts is None else (heads, rows)
    row_sums = call.empty(sums, dtype=torch.float32)
    take_gradients(call, rows * copies, query, gradients)
    return *gradients, row_sums


COMPILED: Final[Mapping[str, Rule]] = {
    "bwd": compiled_backward, "fwd": compiled_forward, "varlen_bwd": compiled_backward,
    "varlen_fwd": compiled_forward,
}
"""Functions of flash-attn's compiled module, which xformers calls itself."""
RULES: Final[Mapping[str, Rule]] = {
    "aten._efficient_attention_backward": direct_efficient_backward,
    "aten._efficient_attention_forward": direct_efficient_forward,
    "aten._flash_attention_backward": direct_flash_backward,
    "aten._flash_attention_forward": direct_flash_forward,
    "aten._scaled_dot_product_cudnn_attention": cudnn_forward,
    "aten._scaled_dot_product_cudnn_attention_backward": cudnn_backward,
    "aten._scaled_dot_product_efficient_attention": efficient_forward,
    "aten._scaled_dot_product_efficient_attention_backward": efficient_backward,
    "aten._scaled_dot_product_flash_attention": flash_forward,
    "aten._scaled_dot_product_flash_attention_backward": flash_backward,
    "flash_attn._flash_attn_backward": package_backward,
    "flash_attn._flash_attn_forward": package_forward,
    "flash_attn._flash_attn_varlen_backward": package_backward,
}
PLAIN: Final = frozenset({"flash_attn._flash_attn_varlen_forward"})
"""Sequences of different lengths are not split unless single queries are decoded [api `mha_varlen_fwd`]."""
