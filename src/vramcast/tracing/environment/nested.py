"""Nested tensors, which TransformerEncoder makes of padded batches in eval mode, are not simulated: padding stays in.

[encoder] torch/nn/modules/transformer.py `TransformerEncoder.forward` asks first whether the padding stands at the end
"""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

PADDED: Final = "TransformerEncoder keeps the padding of its batch; nested tensors without it need less"


def patch_nested(patches: Patches, simulation: Simulation) -> None:
    """Answer that padding does not stand at the end."""
    is_aligned = torch._nested_tensor_from_mask_left_aligned

    def asked(tensor: torch.Tensor, mask: torch.Tensor) -> Any:
        if simulation.memory.of(tensor) is None:
            return is_aligned(tensor, mask)
        simulation.assumptions.note(PADDED, simulation.origins.place())
        return False

    patches.set(torch, "_nested_tensor_from_mask_left_aligned", asked)
