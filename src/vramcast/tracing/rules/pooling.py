"""Pooling, resampling, padding and windows: copies into the layout their kernels read, then the outputs.

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

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import num_bytes
from vramcast.tracing.rules.memory_formats import CONTIGUOUS, suggested

IN_SPACE: Final = 5
"""Dimensions of volumes: sample, channel, depth, height, width."""
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
PLAIN: Final = frozenset(
    f"aten.{name}" for name in (
        "channel_shuffle", "constant_pad_nd", "fractional_max_pool2d", "fractional_max_pool2d_backward",
        "fractional_max_pool3d", "fractional_max_pool3d_backward", "grid_sampler_2d", "grid_sampler_2d_backward",
        "grid_sampler_3d", "grid_sampler_3d_backward", "pixel_shuffle", "pixel_unshuffle", "upsample_bicubic2d",
        "upsample_linear1d", "upsample_trilinear3d",
    )
)
"""Kernels that read any strides."""


def in_its_layout(call: Call) -> Any:
    """[max] [mean] [upsample]"""
    return _after_copies(call, suggested(_tensors(call)[-1]))


def contiguous(call: Call) -> Any:
    """[most] [columns] [upsample]: of a gradient, which a concatenation's backward hands on as a slice, too"""
    return _after_copies(call, CONTIGUOUS)


def written_contiguous(call: Call) -> Any:
    """[upsample] `output_c`"""
    out = call.run()
    x = call.args[0]
    if x.dim() == IN_SPACE and not x.is_contiguous():
        call.scratch(num_bytes(x), "contiguous copy")
    if not out.is_contiguous():
        call.scratch(num_bytes(out), "contiguous result")
    return out


def unpooled(call: Call) -> Any:
    """Values and their places are read contiguous; so is the result, whatever the input's layout [unpool]."""
    if call.device.is_cpu:
        return call.run()
    x, indices, size = call.args[:3]
    for tensor in (x, indices):
        if not tensor.is_contiguous():
            call.scratch(tensor.numel() * tensor.dtype.itemsize, "contiguous copy")
    return call.empty((*x.size()[: -len(size)], *size), dtype=x.dtype)


def _after_copies(call: Call, layout: torch.memory_format) -> Any:
    """Outputs come first, as structured kernels make them before they run."""
    out = call.run()
    for tensor in _tensors(call):
        if not tensor.is_contiguous(memory_format=layout if tensor.dim() == 4 else CONTIGUOUS):
            call.scratch(tensor.numel() * tensor.dtype.itemsize, "contiguous copy")
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
    "aten.max_unpool2d": unpooled,
    "aten.max_unpool3d": unpooled,
    **{f"aten.{name}": in_its_layout for name in READS_ITS_LAYOUT},
    **{f"aten.{name}": contiguous for name in READS_CONTIGUOUS},
    **{f"aten.{name}": written_contiguous for name in WRITES_CONTIGUOUS},
}
