"""Seconds of what happens once a step: reducing gradients, clipping, the update, gathering weights.

Stable: `Update`, `update_s`, `update_bytes`.

[fused] apex csrc/multi_tensor_adam.cu and torch fused AdamW: every tensor is read and written once.
[foreach] pytorch torch/optim/adamw.py `_multi_tensor_adamw`: one kernel for every operation, 20 passes over fp32 tensors.
[clip] torch.nn.utils.clip_grad_norm_: gradients are read once for the norm, and read and written once to scale them.
[CPUAdam] Ren et al., arXiv:2101.06840 (ZeRO-Offload), table 3: 10 billion weights take 2.57 s with CPU-Adam on two Xeon
8168: 0.26 ns a weight, which are 28 bytes: 109 GB/s.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

KERNEL_FACTOR: Final[dict[str, float]] = {"fused": 1.0, "foreach": 2.8, "loop": 2.8}
"""Implementation -> passes over the states relative to one [foreach]."""

HOST_BYTES_PER_S: Final = 109e9
"""What CPU-Adam moves [CPUAdam]."""

NVME_BYTES_PER_S: Final = 6e9
"""Assumed: two local disks, read and written at once."""


class Update(NamedTuple):
    """Bytes of one weight in the update."""

    weight: float = 4.0  # the copy the optimizer updates
    gradient: float = 4.0  # as the optimizer reads it
    states: float = 8.0
    copy: float = 2.0  # 16-bit weight written from it; 0: none
    kernel: str = "fused"
    clips: bool = True


def update_bytes(update: Update) -> float:
    """Bytes moved for every weight of a rank's share, clipping included.

    >>> update_bytes(Update())
    42.0
    """
    states = update.gradient + 2 * update.weight + 2 * update.states + update.copy
    clipping = 3 * update.gradient if update.clips else 0.0
    return states * KERNEL_FACTOR[update.kernel] + clipping


def update_s(elements: Any, *, update: Update, bytes_per_s: float) -> Any:
    """Seconds of clipping and update of so many weights; floats or arrays."""
    return elements * (update_bytes(update) / bytes_per_s)
