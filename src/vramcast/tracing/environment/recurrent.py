"""`flatten_parameters` of recurrent modules: cuDNN wants all weights in one piece of memory.

[flatten] pytorch torch/nn/modules/rnn.py `RNNBase.flatten_parameters`; aten/src/ATen/native/cudnn/RNN.cpp
`_cudnn_rnn_flatten_weight`
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation


def patch_recurrent(patches: Patches, simulation: Simulation) -> None:
    """C++ compares addresses there, which tensors without data do not have."""
    flatten = torch.nn.RNNBase.flatten_parameters
    memory = simulation.memory

    def flattened(self: torch.nn.RNNBase) -> None:
        weights: list[Any] = self._flat_weights
        residents = [memory.of(weight) if isinstance(weight, torch.Tensor) else None for weight in weights]
        is_whole = len(weights) == len(self._flat_weights_names)
        if not is_whole or any(resident is None or resident.device.is_cpu for resident in residents):
            return flatten(self)
        storages = {weight.untyped_storage()._cdata for weight in weights}
        if len({weight.dtype for weight in weights}) > 1 or len(storages) < len(weights):
            return None  # already in one piece, or tied
        with torch.no_grad():
            total = sum(weight.numel() for weight in weights)
            whole = torch.empty(total, dtype=weights[0].dtype, device=weights[0].device)
            offset = 0
            for weight in weights:
                weight.data = whole[offset : offset + weight.numel()].view(weight.size())
                offset += weight.numel()
        return None

    patches.set(torch.nn.RNNBase, "flatten_parameters", flattened)
