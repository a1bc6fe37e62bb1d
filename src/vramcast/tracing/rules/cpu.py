"""What operators allocate on the CPU beyond their outputs. The only table used while the host is simulated.

Leaves out recurrent layers: there torch calls oneDNN (mkldnn_rnn_layer), whose workspace for backward has a size that
only the primitive descriptor of the machine's own kernel tells; they are traced step by step, 18 to 30 % too low.

[flash] pytorch aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: cpu_flash_attention, cpu_flash_attention_backward
[mkldnn] pytorch aten/src/ATen/native/mkldnn/Conv.cpp; aten/src/ATen/native/Convolution.cpp: ConvParams::use_mkldnn
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules import engine
from vramcast.units import ceil_div

FLOAT_BYTES: Final = 4
KEY_BLOCK: Final = 512  # [flash]
QUERY_BLOCKS: Final = ((768, 256), (192, 64), (0, 32))
"""From how many queries on, how many are taken at a time [flash]."""
FEW_CHANNELS: Final = 4
"""oneDNN reads inputs with as few channels as they are and blocks all others."""
BLOCK: Final = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""Channels in a block of oneDNN's layouts: what a vector register holds."""


def attention(call: Call) -> Any:
    """Per thread: scores of one block of queries and keys, two rows of sums, the block's output [flash]."""
    query, key = call.args[:2]
    out = call.run()
    queries, keys = _blocks(query, key)
    per_thread = queries * keys + 2 * queries + queries * query.size(-1)
    reduced = queries * keys if query.dtype in (torch.bfloat16, torch.float16) else 0
    call.scratch(FLOAT_BYTES * per_thread * torch.get_num_threads(), "scores of a block")
    call.scratch(query.element_size() * reduced * torch.get_num_threads(), "scores in half precision")
    return out


def attention_backward(call: Call) -> Any:
    """Per thread the scores of one block and their gradient; sums of its rows [flash]."""
    query, key = call.args[1:3]
    out = call.run()
    queries, keys = _blocks(query, key)
    call.scratch(FLOAT_BYTES * 2 * queries * keys * torch.get_num_threads(), "scores of a block")
    call.scratch(FLOAT_BYTES * queries, "sums of rows")
    return out


def _blocks(query: torch.Tensor, key: torch.Tensor) -> tuple[int, int]:
    """Queries and keys taken at a time; query and key are batch, heads, positions, size."""
    length = query.size(2)
    block = next(block for least, block in QUERY_BLOCKS if length >= least)
    return min(block, length), min(KEY_BLOCK, key.size(2))


def convolution(call: Call) -> Any:
    """oneDNN copies input, weight and output into its own layouts and back [mkldnn].

    Leaves out kernels of oneDNN that work on plain layouts (depthwise, channels last, a few small ones).
    """
    source, weight = call.args[:2]
    if not _is_onednn(source, weight, call.args[3], call.args[5], call.args[6], call.args[8]):
        return call.run()
    copies = [call.scratch(_copied(source), "blocked input"), call.scratch(_padded(weight), "blocked weight")]
    call.scratch(call.func(*call.args).nbytes, "blocked output")
    for copy in reversed(copies):
        call.release(copy)
    return call.run()


def convolution_backward(call: Call) -> Any:
    """Gradient of the input, then of weight and bias, each through oneDNN's layouts [mkldnn].

    Leaves out what oneDNN needs to add up the weight gradients of several threads.
    """
    gradient, source, weight = call.args[:3]
    if not _is_onednn(source, weight, call.args[4], call.args[6], call.args[7], call.args[9]):
        return call.run()
    needs_source, needs_weight, needs_bias = call.args[10]
    grad_source = grad_weight = grad_bias = None
    if needs_source:
        copies = [call.scratch(gradient.nbytes, "blocked gradient"), call.scratch(_padded(weight), "blocked weight")]
        blocked = call.scratch(source.nbytes, "blocked gradient of the input")
        for copy in reversed(copies):
            call.release(copy)
        grad_source = call.empty(source.size(), dtype=source.dtype)
        call.release(blocked)
    if needs_weight:
        copies = [call.scratch(gradient.nbytes, "blocked gradient"), call.scratch(_copied(source), "blocked input")]
        results = [call.scratch(_padded(weight), "blocked gradient of the weight")]
        results += [call.scratch(weight.size(0) * weight.element_size(), "gradient of the bias")] if needs_bias else []
        for copy in reversed(copies):
            call.release(copy)
        grad_bias = call.empty((weight.size(0),), dtype=weight.dtype) if needs_bias else None
        grad_weight = call.empty(weight.size(), dtype=weight.dtype)
        for result in results:
            call.release(result)
    return grad_source, grad_weight, grad_bias


def _is_onednn(
    source: torch.Tensor, weight: torch.Tensor, stride: list[int], dilation: list[int], transposed: bool, groups: int
) -> bool:
    """[mkldnn] `use_mkldnn`: small convolutions run in torch's own kernels."""
    is_wide = max(stride) > 1 or max(dilation) > 1 or source.size(0) >= 16 or torch.get_num_threads() > 1
    is_pointwise = all(size == 1 for size in weight.shape[2:])
    is_large = groups > 1 or min(weight.shape[2:]) > 3 or source.size(0) > 1 or source.numel() > 20480
    return (
        torch.backends.mkldnn.is_available() and source.dtype is torch.float32 and not transposed and groups == 1
        and (is_wide or not is_pointwise) and is_large
    )


def _copied(source: torch.Tensor) -> int:
    """Bytes of the blocked copy of an input; 0 where it is read as it is."""
    channels = source.size(1)
    if channels < FEW_CHANNELS:
        return 0
    return source.nbytes // channels * ceil_div(channels, BLOCK) * BLOCK


def _padded(weight: torch.Tensor) -> int:
    """Bytes of a weight whose channels fill whole blocks."""
    outputs, inputs = weight.shape[:2]
    blocked = inputs if inputs < FEW_CHANNELS else ceil_div(inputs, BLOCK) * BLOCK
    return FLOAT_BYTES * prod(weight.shape[2:]) * blocked * ceil_div(outputs, BLOCK) * BLOCK


RULES: Final[Mapping[str, Rule]] = {
    **engine.RULES,
    "aten._scaled_dot_product_flash_attention_for_cpu": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
}
