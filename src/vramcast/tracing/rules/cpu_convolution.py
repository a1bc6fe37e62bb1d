"""Convolutions on the CPU: oneDNN's copies in its own layouts, or columns of the image.

oneDNN's kernels of vectors read channels in blocks of one register; tensors are copied there and back. Inputs of few
channels are read as they lie. Where a bias does not fill whole blocks, it is padded in a scratchpad.

Leaves out scratchpads of oneDNN whose sizes differ by machine: sums of weight gradients of several threads, transposed
convolutions, bfloat16.

[mkldnn] pytorch aten/src/ATen/native/mkldnn/Conv.cpp; aten/src/ATen/native/Convolution.cpp: ConvParams::use_mkldnn
[slow] pytorch aten/src/ATen/native/ConvolutionMM2d.cpp: `slow_conv2d_forward_cpu`, `slow_conv2d_backward_out_cpu`
[tags] oneDNN v3.12 src/cpu/x64/jit_avx512_common_conv_kernel.cpp and jit_avx2_conv_kernel_f32.cpp: `init_conf`;
`is_1stconv`, `max_filter_width`; src/common/memory_tracking.hpp: `key_conv_padded_bias`
[strided] oneDNN v3.12 src/cpu/x64/jit_brgemm_conv_bwd_strided.cpp, jit_brgemm_conv_bwd_utils.cpp
`get_inp_block_size`, `init_conf`: `inp_buffer_size`, `out_buffer_size`; torch's `mkldnn_to_dense` copies it once more
[gathered] oneDNN v3.12 src/cpu/x64/jit_uni_1x1_conv_utils.hpp `rtus_prepare_space_info`
[columns] oneDNN v3.12 src/cpu/gemm_convolution_utils.cpp `init_conf`: `key_conv_gemm_col`, `key_conv_wei_reduction`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy
from vramcast.tracing.rules.memory_formats import dense_strides, suggested
from vramcast.units import ceil_div, round_up

IS_WIDE: Final = torch.backends.cpu.get_cpu_capability() == "AVX512"
BLOCK: Final = 16 if IS_WIDE else 8
"""Channels in a block of oneDNN's layouts: what a vector register holds."""
FEW_CHANNELS: Final = 16 if IS_WIDE else 4
"""oneDNN reads inputs of fewer channels as they are [tags]."""
ALIGNMENT_BYTES: Final = 128
"""That an array in a scratchpad may be shifted by [tags]."""
HALF_BLOCK: Final = 8
IMAGE: Final = 4  # dimensions
IMAGE_CHANNELS: Final = 3
WIDEST: Final = 14
WIDEST_DEPTHWISE: Final = 4
"""Widest filters whose weights' gradient a kernel of vectors makes [tags]."""
PAGE: Final = 4096
"""That the scratchpads of strided filters are rounded up to, in elements, and aligned to, in bytes [strided]."""
PAGES: Final = 5
"""Pages of their masks, lists of blocks and alignment [strided]."""
SUMS: Final = 4
"""Copies of a weight's gradient that columns are summed into: its bytes are booked as a number of floats [columns]."""


class Problem(NamedTuple):
    """One convolution."""

    source: torch.Tensor
    weight: torch.Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    is_transposed: bool
    groups: int
    has_bias: bool

    @property
    def is_depthwise(self) -> bool:
        """One channel a group."""
        return self.groups == self.source.size(1) == self.weight.size(0) > 1

    @property
    def is_pointwise(self) -> bool:
        """A filter of one pixel."""
        return all(size == 1 for size in self.weight.shape[2:])

    @property
    def is_onednn(self) -> bool:
        """[mkldnn] `use_mkldnn`: small convolutions run in torch's own kernels."""
        source, weight = self.source, self.weight
        if not (torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()):
            return False
        if source.dtype in (torch.bfloat16, torch.float16):
            return True
        is_strided = max(self.stride) > 1 or max(self.dilation) > 1 or source.size(0) >= 16
        is_wide = is_strided or torch.get_num_threads() > 1 or not self.is_pointwise
        height = weight.size(-2) if weight.dim() >= IMAGE else 1
        is_large = self.groups > 1 or min(height, weight.size(-1)) > 3 or source.size(0) > 1 or source.numel() > 20480
        return source.dtype is torch.float32 and is_wide and is_large

    @property
    def is_strided(self) -> bool:
        """Then the gradient of the input, which a transposed convolution is, is made channels last [strided]."""
        return self.groups == 1 and max(self.stride) > 1

    @property
    def gathered(self) -> int:
        """Bytes of the pixels that a strided filter of one pixel reads, a thread [gathered]."""
        if not self.is_pointwise or not self.is_strided or self.is_transposed:
            return 0
        pixels = prod(-(-size // step) for size, step in zip(self.source.shape[2:], self.stride, strict=True))
        one = round_up(self.source.size(1), BLOCK) * pixels * self.source.itemsize
        return one * torch.get_num_threads() + ALIGNMENT_BYTES

    @property
    def strided_scratchpad(self) -> int:
        """Bytes a strided filter's gradient of the input takes: one padded image of the output's gradient, and rows of
        the input where the stride does not divide them [strided].

        Leaves out that oneDNN splits some rows of many channels into shorter ones, which takes less; masks and lists of
        blocks of large volumes.
        """
        if not self.is_strided or self.is_transposed or self.is_pointwise:
            return 0
        outputs, inputs = self.weight.shape[:2]
        size, steps = self.source.shape[2:], self.stride
        padded = 1
        for pixels, step, pad, taps, apart in zip(
            size, steps, self.padding, self.weight.shape[2:], self.dilation, strict=True
        ):
            shift = pad % step
            padded *= ceil_div(pixels + shift, step) + ((taps - 1) * apart - shift) // step
        elements = round_up(padded * outputs, PAGE)
        num_pages = PAGES
        if size[-1] % steps[-1]:
            elements += round_up(round_up(size[-1], steps[-1]) * steps[-1] * inputs, PAGE)
            num_pages += 1
        return elements * self.source.itemsize * torch.get_num_threads() + num_pages * PAGE

    @property
    def is_channels_last(self) -> bool:
        """Then images are read as they lie, and only weights are copied [mkldnn `mkldnn_conv_use_channels_last`]."""
        return self.source.dim() == IMAGE and any(
            suggested(tensor) is torch.channels_last for tensor in (self.source, self.weight)
        )

    @property
    def is_apart(self) -> bool:
        """Groups whose channels fill no half blocks: oneDNN makes columns of them."""
        outputs, inputs = self.weight.shape[:2]
        groups_outputs = outputs // self.groups
        is_grouped = self.groups > 1 and not self.is_depthwise
        return is_grouped and bool(inputs % HALF_BLOCK or groups_outputs % HALF_BLOCK) and not self.is_transposed

    def image(self, tensor: torch.Tensor, block: int = BLOCK) -> int:
        """Bytes of a blocked image; channels of groups fill blocks only where a group is one channel."""
        channels = tensor.size(1)
        padded = channels if self.groups > 1 and not self.is_depthwise else round_up(channels, block)
        return tensor.numel() // channels * padded * tensor.itemsize

    def filters(self, *, reads_few: bool, block: int = BLOCK) -> int:
        """Bytes of the blocked weight.

        Args:
            reads_few: few input channels stay as they are; in 16-bit types they come in pairs
            block: channels that are rounded up to
        """
        weight = self.weight
        outputs, inputs = weight.shape[:2]
        pixels = prod(weight.shape[2:]) * weight.itemsize
        if self.is_depthwise:
            return round_up(outputs, block) * pixels
        if self.groups > 1:
            return weight.nbytes
        few = reads_few and self.reads_few
        return round_up(outputs, block) * round_up(inputs, 4 // weight.itemsize if few else block) * pixels

    def columns(self, out_size: torch.Size) -> int:
        """Bytes of one signal or image of a group as columns, of one slice of a volume."""
        return prod(self.weight.shape[1:]) * prod(out_size[2:][-2:]) * self.source.itemsize

    @property
    def reads_few(self) -> bool:
        """Whether the input is read as it lies."""
        return self.groups == 1 and self.source.size(1) < FEW_CHANNELS and not self.is_transposed

    def padded_bias(self, block: int = BLOCK) -> int:
        """Bytes of a bias that fills whole blocks, 0 where it does anyway [tags]."""
        outputs = self.weight.size(0)
        if not self.has_bias or self.is_transposed or outputs % block == 0:
            return 0
        return round_up(outputs, block) * self.weight.itemsize + ALIGNMENT_BYTES


def convolution(call: Call) -> Any:
    """Copies of input and weight, the output blocked, then as torch wants it [mkldnn]."""
    source, weight, bias, stride, padding, dilation, is_transposed, _, groups = call.args
    problem = Problem(source, weight, stride, padding, dilation, is_transposed, groups, bias is not None)
    if not problem.is_onednn:
        return _columns(call, problem)
    if problem.is_channels_last:
        _copy_channels_last(call, source, weight)
        out = _new_channels_last(call, call.func(*call.args).size(), source.dtype)
        call.scratch(problem.filters(reads_few=True), "blocked weight")
        return out
    contiguous_copy(call, source)
    shape = call.func(*call.args)
    if problem.is_apart:
        columns = call.scratch(problem.columns(shape.size()) + ALIGNMENT_BYTES, "columns")
        call.scratch(shape.nbytes, "output before its copy")
        call.release(columns)
        return call.run()
    copies = [call.scratch(problem.padded_bias() + problem.gathered, "padded bias and pixels that are read")]
    copies.append(call.scratch(0 if problem.reads_few else problem.image(source), "blocked input"))
    copies.append(call.scratch(problem.filters(reads_few=True), "blocked weight"))
    is_copied = is_transposed and problem.is_strided
    blocked = call.scratch(shape.nbytes if is_copied else problem.image(shape), "blocked output")
    for copy in reversed(copies):
        call.release(copy)
    dense = call.scratch(shape.nbytes if is_copied else 0, "output before its copy")
    out = call.run()
    call.release(dense)
    call.release(blocked)
    return out


def _columns(call: Call, problem: Problem) -> Any:
    """torch's own kernel: every patch of the image a column, unless the image is that [slow]."""
    if _has_columns(problem):
        out_size = call.func(*call.args).size()
        columns = call.scratch(_columns_bytes(problem, out_size), "columns")
        out = call.run()
        call.release(columns)
        return out
    return call.run()


def _has_columns(problem: Problem) -> bool:
    is_plain = problem.is_pointwise and max(problem.stride) == 1 and not any(problem.padding)
    is_known = not problem.is_transposed and problem.groups == 1 and problem.source.dim() <= IMAGE
    return is_known and not is_plain and max(problem.dilation) == 1


def _columns_bytes(problem: Problem, out_size: torch.Size) -> int:
    patch = prod(problem.weight.shape[1:])
    return out_size[0] * patch * prod(out_size[2:]) * problem.source.itemsize


def convolution_backward(call: Call) -> Any:
    """Gradient of the input, then of weight and bias, each through oneDNN's layouts [mkldnn]."""
    gradient, source, weight, _, stride, padding, dilation, is_transposed, _, groups, needs = call.args
    problem = Problem(source, weight, stride, padding, dilation, is_transposed, groups, needs[2])
    if not problem.is_onednn:
        out = call.run()
        if _has_columns(problem) and (needs[0] or needs[1]):
            call.scratch(_columns_bytes(problem, gradient.size()), "columns")
        return out
    if problem.is_channels_last:
        return _backward_channels_last(call, problem)
    contiguous_copy(call, source)
    contiguous_copy(call, gradient)
    grad_source = _source_gradient(call, problem) if needs[0] else None
    grad_weight, grad_bias = _weight_gradients(call, problem) if needs[1] else (None, None)
    return grad_source, grad_weight, grad_bias


def _source_gradient(call: Call, problem: Problem) -> torch.Tensor:
    gradient, source = call.args[:2]
    is_copied = problem.is_strided and not problem.is_transposed
    if problem.is_apart:
        copies = [call.scratch(problem.columns(gradient.size()) + ALIGNMENT_BYTES, "columns")]
    else:
        copies = [
            call.scratch(gradient.nbytes if is_copied else problem.image(gradient), "blocked gradient"),
            call.scratch(problem.filters(reads_few=False), "blocked weight"),
        ]
    blocked = call.scratch(source.nbytes if is_copied else problem.image(source), "blocked gradient of the input")
    call.release(call.scratch(problem.strided_scratchpad, "padded gradient and rows of the input"))
    for copy in reversed(copies):
        call.release(copy)
    dense = call.scratch(source.nbytes if is_copied else 0, "gradient of the input before its copy")
    out = call.empty(source.size(), dtype=source.dtype)
    call.release(dense)
    call.release(blocked)
    return out


def _weight_gradients(call: Call, problem: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    gradient, source, weight = call.args[:3]
    outputs = gradient.size(1)
    block = HALF_BLOCK if problem.reads_few and source.size(1) > IMAGE_CHANNELS else BLOCK
    if _sums_columns(problem):
        results = [call.scratch(weight.nbytes, "gradient of the weight")]
        sums = SUMS * weight.nbytes + problem.columns(gradient.size()) + 2 * ALIGNMENT_BYTES
        copies = [call.scratch(sums, "columns and sums")]
    else:
        few = problem.reads_few and source.size(1) <= IMAGE_CHANNELS
        copies = [
            call.scratch(problem.image(gradient, block), "blocked gradient"),
            call.scratch(0 if few else problem.image(source, block), "blocked input"),
        ]
        results = [call.scratch(problem.filters(reads_few=few, block=block), "blocked gradient of the weight")]
        if not problem.is_depthwise:
            copies.append(call.scratch(problem.padded_bias(block) + problem.gathered, "padded bias and pixels read"))
    if problem.has_bias:
        results.append(call.scratch(outputs * weight.itemsize, "gradient of the bias"))
    for copy in reversed(copies):
        call.release(copy)
    grad_bias = call.empty((outputs,), dtype=weight.dtype) if problem.has_bias else None
    grad_weight = call.empty(weight.size(), dtype=weight.dtype)
    for result in results:
        call.release(result)
    return grad_weight, grad_bias


def _sums_columns(problem: Problem) -> bool:
    """Filters that no kernel of vectors takes the gradient of [columns]."""
    if problem.is_transposed or problem.source.dtype is not torch.float32:
        return False
    width = problem.weight.size(-1)
    is_thin_volume = problem.source.dim() > IMAGE and IMAGE_CHANNELS < problem.source.size(1) < FEW_CHANNELS
    is_wide = width > (WIDEST_DEPTHWISE if problem.is_depthwise else WIDEST)
    return is_wide or problem.is_apart or (is_thin_volume and problem.groups == 1)


def _backward_channels_last(call: Call, problem: Problem) -> Any:
    """Images as they lie; the weight and its gradient in oneDNN's layout and back.

    Of wide depthwise filters every group fills a block of inputs and one of outputs.
    """
    weight, needs = problem.weight, call.args[10]
    _copy_channels_last(call, call.args[0], problem.source, weight)
    grad_source = grad_weight = grad_bias = None
    if needs[0]:
        grad_source = _new_channels_last(call, problem.source.size(), problem.source.dtype)
        call.release(call.scratch(problem.filters(reads_few=False), "blocked weight"))
    if needs[1]:
        is_squared = problem.is_depthwise and weight.size(-1) > WIDEST_DEPTHWISE
        num_bytes = BLOCK * BLOCK * weight.nbytes if is_squared else problem.filters(reads_few=True)
        blocked = call.scratch(num_bytes, "blocked gradient of the weight")
        bias = call.scratch(weight.size(0) * weight.itemsize if needs[2] else 0, "gradient of the bias")
        grad_bias = call.empty((weight.size(0),), dtype=weight.dtype) if needs[2] else None
        dense = call.scratch(weight.nbytes, "gradient of the weight")
        grad_weight = call.empty(weight.size(), dtype=weight.dtype)
        for block in (dense, bias, blocked):
            call.release(block)
    return grad_source, grad_weight, grad_bias


def _copy_channels_last(call: Call, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=torch.channels_last):
            call.scratch(tensor.nbytes, "copy, channels last")


def _new_channels_last(call: Call, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    return call.empty(size, dtype=dtype, strides=dense_strides(size, torch.channels_last))


RULES: Final[Mapping[str, Rule]] = {
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
}
