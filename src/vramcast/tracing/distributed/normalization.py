"""SyncBatchNorm's operators, which torch has only for devices.

Left out: the staging buffers of the channels-last kernels of large batches, below a megabyte.
[bn] pytorch aten/src/ATen/native/cuda/Normalization.cu and .cuh: statistics are kept in the type that sums are in
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule


def _summed_in(tensor: torch.Tensor) -> torch.dtype:
    """The accumulation type of CUDA."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def stats(call: Call) -> Any:
    """Mean and inverse deviation of every channel."""
    own = call.args[0]
    return tuple(call.empty([own.size(1)], dtype=_summed_in(own)) for _ in range(2))


def normalise(call: Call) -> Any:
    """A tensor like the input."""
    own = call.args[0]
    return call.empty(own.size(), dtype=own.dtype, strides=own.stride())


def backward_reduce(call: Call) -> Any:
    """Two sums for the input's gradient, then the gradients of weight and bias, each where it is asked for."""
    channels, mean, weight = call.args[1].size(1), call.args[2], call.args[4]
    wants_input, wants_weight, wants_bias = call.args[5:8]
    of_weight = weight.dtype if weight is not None else call.args[1].dtype
    wanted = ((wants_input, mean.dtype), (wants_input, mean.dtype), (wants_weight, of_weight), (wants_bias, of_weight))
    return tuple(call.empty([channels if is_wanted else 0], dtype=dtype) for is_wanted, dtype in wanted)


RULES: Final[Mapping[str, Rule]] = {
    "aten.batch_norm_stats": stats,
    "aten.batch_norm_gather_stats_with_counts": stats,
    "aten.batch_norm_elemt": normalise,
    "aten.batch_norm_backward_reduce": backward_reduce,
    "aten.batch_norm_backward_elemt": normalise,
}
