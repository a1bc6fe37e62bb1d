"""Convolutions: cuDNN or ATen's own kernels; pooling, resampling, padding and windows. Copies into layouts.

A workspace of cuDNN lives as long as the call; how large it is stands in `catalogue/cudnn_workspaces.csv`. Left out:
the search of `torch.backends.cudnn.benchmark`, which tries every plan once; kernels of its choice are assumed to need
what the heuristics' choice needs.

[conv] pytorch aten/src/ATen/native/Convolution.cpp: `use_cudnn_depthwise`, `is_depthwise`, `_convolution`,
`convolution_backward`
[shared] pytorch aten/src/ATen/native/cudnn/ConvShared.cpp; `cudnn_conv_suggest_memory_format` in native/ConvUtils.h
[v8] pytorch aten/src/ATen/native/cudnn/Conv_v8.cpp `run_conv_plan`
[depthwise] pytorch aten/src/ATen/native/cuda/DepthwiseConv2d.cu
[max] pytorch aten/src/ATen/native/cuda/DilatedMaxPool2d.cu, DilatedMaxPool3d.cu
[mean] pytorch aten/src/ATen/native/cuda/AveragePool2d.cu, AveragePool3d.cu, AdaptiveAveragePooling.cu
[most] pytorch aten/src/ATen/native/cuda/AdaptiveMaxPooling2d.cu, AdaptiveMaxPooling3d.cu
[upsample] pytorch aten/src/ATen/native/cuda/UpSample*.cu
[grid] pytorch aten/src/ATen/native/cuda/GridSampler.cpp
[random] pytorch aten/src/ATen/native/cuda/FractionalMaxPool2d.cu, FractionalMaxPool3d.cu: any strides
[unpool] pytorch aten/src/ATen/native/cuda/MaxUnpooling.cu
[columns] pytorch aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from vramcast.catalogue.contexts import Kernel, Phase, workspace_share
from vramcast.operators.eager import kernel_of_convolution
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import CONTIGUOUS, allows_tf32, contiguous_copy, empty_in, num_bytes, suggested
from vramcast.units import round_up

CHANNELS_AT_ONCE: Final = 16
"""Tensor cores read channels in multiples of 8 16-bit or 4 TF32 numbers: NVIDIA, Convolutional Layers User's Guide,
section 1. Narrower tensors are padded [bytes]."""
OLDEST_TF32: Final = 80
OLDEST_TENSOR_CORES: Final = 70
LEAST_DEPTHWISE_CHANNELS: Final = 32
LEAST_DEPTHWISE_WIDTH: Final = 7
LARGEST_DEPTHWISE_FILTER: Final = 5


class Problem(NamedTuple):
    """One convolution: tensors with two or more spatial dimensions."""

    x: torch.Tensor
    weight: torch.Tensor
    stride: Sequence[int]
    dilation: Sequence[int]
    is_transposed: bool
    groups: int

    @property
    def is_depthwise(self) -> bool:
        """[conv `is_depthwise`]"""
        channels = self.x.size(1)
        is_grouped = not self.is_transposed and channels == self.groups > 1
        return is_grouped and self.weight.size(0) % channels == 0

    @property
    def kernel(self) -> Kernel:
        """What kind of kernel the heuristics take it for."""
        if self.groups > 1:
            return "grouped"
        return kernel_of_convolution(self.weight.size(1), self.weight.size()[2:], self.stride)

    @property
    def layout(self) -> torch.memory_format:
        """[shared `cudnn_conv_suggest_memory_format`]"""
        if torch.float64 in (self.x.dtype, self.weight.dtype):
            return CONTIGUOUS
        formats = suggested(self.x), suggested(self.weight)
        return next((found for found in formats if found is not CONTIGUOUS), CONTIGUOUS)

    @property
    def is_cudnn(self) -> bool:
        """Whether cuDNN runs it; else a kernel of ATen that needs no workspace [conv `use_cudnn_depthwise`]."""
        if not self.is_depthwise or self.layout is not CONTIGUOUS:
            return True
        return self.x.dtype is torch.float16 and self.x.dim() == 4 and _is_fast_in_cudnn(self)


def _is_fast_in_cudnn(problem: Problem) -> bool:
    """[conv `check_cudnn_depthwise_workload_with_filter`]"""
    x, stride, size = problem.x, problem.stride, problem.weight.size(-1)
    batch, channels, height, width = x.size()
    is_square = stride[0] == stride[1] or height == 1
    if any(step != 1 for step in problem.dilation) or not is_square or channels < LEAST_DEPTHWISE_CHANNELS:
        return False
    if size not in (1, 3, LARGEST_DEPTHWISE_FILTER) or width < LEAST_DEPTHWISE_WIDTH or stride[1] not in (1, 2):
        return False
    if stride[1] == 1:
        return True
    if size == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= LEAST_DEPTHWISE_WIDTH
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def convolution(call: Call) -> Any:
    """The output, then a workspace; a bias is added in place."""
    _check_channels(call)
    problem = _problem(call, *call.args[:2], call.args[3], *call.args[5:7], call.args[8])
    layout = problem.layout if problem.is_cudnn else CONTIGUOUS
    contiguous_copy(call, problem.x, layout)
    shape = call.simulation.on_meta(call.func, call.args, call.kwargs, call.device).size()
    out = empty_in(call, shape, problem.x.dtype, layout)
    contiguous_copy(call, problem.weight, layout)
    if problem.is_cudnn:
        # Transposed, it runs the gradient of the data.
        phase: Phase = "data" if problem.is_transposed else "forward"
        call.release(_workspace(call, problem, out, phase))
    return out


def _check_channels(call: Call) -> None:
    """Of a transposed convolution, whose meta kernel takes any [pytorch aten/src/ATen/native/Convolution.cpp
    `check_shape_forward`]."""
    x, weight, is_transposed = call.args[0], call.args[1], call.args[6]
    batched = x.dim() == weight.dim()
    if is_transposed and batched and x.size(1) != weight.size(0):
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.size())}, expected input{list(x.size())} to have "
            f"{weight.size(0)} channels, but got {x.size(1)} channels instead"
        )


def convolution_backward(call: Call) -> Any:
    """Gradients of input, weight and bias, each with its workspace."""
    grad, x, weight, _, stride, _, dilation, is_transposed, _, groups, mask = call.args
    problem = _problem(call, x, weight, stride, dilation, is_transposed, groups)
    grad_image = grad.unsqueeze(2) if grad.dim() == 3 else grad
    layout = problem.layout if problem.is_cudnn else CONTIGUOUS
    copies = [contiguous_copy(call, problem.x, layout), contiguous_copy(call, grad_image, layout)]
    if problem.is_cudnn:
        dx, dweight = _cudnn_gradients(call, problem, grad_image, mask)
    else:
        dweight = empty_in(call, weight.size(), weight.dtype, CONTIGUOUS) if mask[1] else None
        dx = empty_in(call, x.size(), x.dtype, CONTIGUOUS) if mask[0] else None
    for copy in reversed(copies):
        call.release(copy)
    dbias = None
    if mask[2]:
        with call.simulation:
            dbias = grad.sum([dim for dim in range(grad.dim()) if dim != 1])
    return dx, dweight, dbias


def _cudnn_gradients(
    call: Call, problem: Problem, grad: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """[shared `cudnn_convolution_backward`]"""
    x, weight, layout = problem.x, problem.weight, problem.layout
    dx = dweight = None
    if mask[0]:
        dx = empty_in(call, call.args[1].size(), x.dtype, layout)
        copy = contiguous_copy(call, weight, layout)
        # The gradient of a transposed convolution's input is a convolution.
        call.release(_workspace(call, problem, grad, "forward" if problem.is_transposed else "data"))
        call.release(copy)
    if mask[1]:
        dweight = empty_in(call, call.args[2].size(), weight.dtype, layout)
        call.release(_workspace(call, problem, grad, "filter"))
    return dx, dweight


def _problem(
    call: Call, x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], *rest: Any
) -> Problem:
    """One spatial dimension becomes two, as ATen does; it makes such an input contiguous first."""
    dilation, is_transposed, groups = rest
    if x.dim() == 3:
        if not x.is_contiguous():
            call.scratch(num_bytes(x), "contiguous copy")
            x = torch.empty(x.size(), dtype=x.dtype, device="meta")
        x, weight, stride, dilation = x.unsqueeze(2), weight.unsqueeze(2), [1, *stride], [1, *dilation]
    return Problem(x, weight, stride, dilation, is_transposed, groups)


def _workspace(call: Call, problem: Problem, other: torch.Tensor, phase: Phase) -> Any:
    """What cuDNN takes for one call: room for tensors in the layout its tensor-core kernels read."""
    if not _converts(call, problem):
        return None
    version = call.device.allocator.settings.version
    share = workspace_share(problem.kernel, phase, version)
    moved = num_bytes(problem.x) + num_bytes(problem.weight) + (0 if phase == "forward" else num_bytes(other))
    least = _padded_bytes(problem.x) + _padded_bytes(other) if share and phase == "filter" else 0
    return call.scratch(max(round(share * moved), least), f"cuDNN {problem.kernel} convolution, {phase}")


def _padded_bytes(image: torch.Tensor) -> int:
    """Channels last, rounded up to what a tensor core reads at once."""
    channels = image.size(1)
    return num_bytes(image) // channels * round_up(channels, CHANNELS_AT_ONCE // image.dtype.itemsize)


def _converts(call: Call, problem: Problem) -> bool:
    """Tensor cores read channels last; other kernels of cuDNN read what they are given."""
    if problem.layout is not CONTIGUOUS or problem.x.dim() != 4:
        return False
    if problem.x.dtype is torch.float32:
        return call.device.sm >= OLDEST_TF32 and allows_tf32("conv")
    return problem.x.dtype.itemsize == 2 and call.device.sm >= OLDEST_TENSOR_CORES


IN_SPACE: Final = 5  # dimensions of volumes: sample, channel, depth, height, width
READS_ITS_LAYOUT: Final = (
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d", "upsample_nearest2d_backward",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact2d_backward", "upsample_bilinear2d",
    "upsample_bilinear2d_backward",
)
"""Contiguous and channels last are read as they are, anything else is copied."""
READS_CONTIGUOUS: Final = (
    "max_pool3d_with_indices", "max_pool3d_with_indices_backward", "avg_pool3d", "avg_pool3d_backward",
    "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d", "adaptive_max_pool3d_backward", "im2col", "col2im", "reflection_pad1d", "reflection_pad2d",
    "reflection_pad3d", "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "replication_pad1d_backward",
    "replication_pad2d_backward", "replication_pad3d_backward", "upsample_nearest1d", "upsample_nearest1d_backward",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact1d_backward", "upsample_linear1d_backward",
    "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
    "upsample_nearest3d_backward", "_upsample_nearest_exact3d_backward", "upsample_trilinear3d_backward",
)
WRITES_CONTIGUOUS: Final = (
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_nearest3d", "_upsample_nearest_exact3d",
)
"""A result that lies otherwise is copied from a contiguous one."""


def in_its_layout(call: Call) -> Any:
    """[max] [mean] [upsample]"""
    return _after_copies(call, suggested(_tensors(call)[-1]))


def read_contiguous(call: Call) -> Any:
    """[most] [columns] [upsample]: of a gradient, which a concatenation's backward hands on as a slice, too"""
    return _after_copies(call, CONTIGUOUS)


def written_contiguous(call: Call) -> Any:
    """[upsample] `output_c`"""
    out = call.run()
    x = call.args[0]
    if x.dim() == IN_SPACE:
        contiguous_copy(call, x)
    if not out.is_contiguous():
        call.scratch(num_bytes(out), "contiguous result")
    return out


def unpooled(call: Call) -> Any:
    """Values and their places are read contiguous; so is the result, whatever the input's layout [unpool]."""
    x, indices, size = call.args[:3]
    for tensor in (x, indices):
        contiguous_copy(call, tensor)
    return call.empty((*x.size()[: -len(size)], *size), dtype=x.dtype)


def _after_copies(call: Call, layout: torch.memory_format) -> Any:
    """Outputs come first, as structured kernels make them before they run."""
    out = call.run()
    for tensor in _tensors(call):
        contiguous_copy(call, tensor, layout if tensor.dim() == 4 else CONTIGUOUS)
    return out


def _tensors(call: Call) -> list[torch.Tensor]:
    """Images among the arguments; of a backward: gradient, then input."""
    found = [arg for arg in call.args if isinstance(arg, torch.Tensor) and _has_kernel(call, arg.dtype)]
    if not found:
        raise NotImplementedError(f'"{call.name.partition(".")[2]}" not implemented for {call.args[0].dtype} on CUDA')
    return found


def _has_kernel(call: Call, dtype: torch.dtype) -> bool:
    """Masks of bytes are resampled to the nearest."""
    return dtype.is_floating_point or dtype.is_complex or (dtype is torch.uint8 and "nearest" in call.name)


RULES: Final[Mapping[str, Rule]] = {
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
    "aten.max_unpool2d": unpooled,
    "aten.max_unpool3d": unpooled,
    **{f"aten.{name}": in_its_layout for name in READS_ITS_LAYOUT},
    **{f"aten.{name}": read_contiguous for name in READS_CONTIGUOUS},
    **{f"aten.{name}": written_contiguous for name in WRITES_CONTIGUOUS},
}


PLAIN: Final = frozenset(
    f"aten.{name}" for name in (
        "channel_shuffle", "constant_pad_nd", "fractional_max_pool2d", "fractional_max_pool2d_backward",
        "fractional_max_pool3d", "fractional_max_pool3d_backward", "grid_sampler_2d", "grid_sampler_2d_backward",
        "grid_sampler_3d", "grid_sampler_3d_backward", "pixel_shuffle", "pixel_unshuffle", "upsample_bicubic2d",
        "upsample_linear1d", "upsample_trilinear3d",
    )
)
"""Kernels that read any strides."""
