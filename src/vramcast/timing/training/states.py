"""Seconds of what happens once a step: reducing gradients, clipping, the update, gathers, transfers to the host.

Stable: `Update`, `update_s`, `update_bytes`.

Stable: `Host`, `host_of`, `update_on_host_s`.

[fused] apex csrc/multi_tensor_adam.cu and torch fused AdamW: every tensor is read and written once.
[foreach] pytorch torch/optim/adamw.py `_multi_tensor_adamw`: a kernel for every operation, 20 passes over fp32
tensors.
[clip] torch.nn.utils.clip_grad_norm_: gradients are read once for the norm, and read and written once to scale them.
[muon] Jordan et al., kellerjordan.github.io/posts/muon: five Newton-Schulz steps of three products each.
[CPUAdam] Ren et al., arXiv:2101.06840 (ZeRO-Offload), table 3: CPU-Adam updates 10 billion weights in 2.57 s on two
Xeon 8168, which are 28 bytes each: 109 GB/s.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Any, Final, NamedTuple

from msgspec import Struct

from vramcast.domain.device import Cluster
from vramcast.timing.links import pcie_bytes_per_s
from vramcast.timing.rates import PCIE_SHARE

KERNEL_FACTOR: Final[dict[str, float]] = {"fused": 1.0, "foreach": 2.8, "loop": 2.8}
"""Implementation -> passes over the states relative to one [foreach]."""

DEVIATION: Final = 0.015
"""Standard deviation of machines' speed: MegaScale, arXiv:2402.15627, section 5.2, shows a spread of a few percent and
stragglers of 10 %; fitted on the growth of mpt-h100's steps from 16 to 64 machines in truth/step_times.csv."""


def spread_of(machines: int) -> float:
    """How much slower than the mean the slowest of so many machines is: the expected maximum of as many normal values.

    >>> round(spread_of(1), 3), round(spread_of(64), 3)
    (0.0, 0.043)
    """
    return DEVIATION * sqrt(2 * log(machines))


class Update(NamedTuple):
    """Bytes of one weight in the update."""

    weight: float = 4.0  # the copy the optimizer updates
    gradient: float = 4.0  # as the optimizer reads it
    states: float = 8.0
    copy: float = 2.0  # 16-bit weight written from it; 0: none
    kernel: str = "fused"
    clips: bool = True
    flops: float = 0.0  # of one weight: orthogonalisation


def update_bytes(update: Update) -> float:
    """Bytes moved for every weight of a rank's share, clipping included.

    >>> update_bytes(Update())
    42.0
    """
    states = update.gradient + 2 * update.weight + 2 * update.states + update.copy
    clipping = 3 * update.gradient if update.clips else 0.0
    return states * KERNEL_FACTOR[update.kernel] + clipping


def orthogonalisation_flops(rows: int, columns: int) -> float:
    """Operations of Newton-Schulz for every element of a matrix: five times X X^T, its square, and their sum with X.

    >>> orthogonalisation_flops(4096, 4096) / 4096
    30.0
    """
    short, long = min(rows, columns), max(rows, columns)
    return 5 * (4.0 * short * short * long + 2.0 * short**3) / (rows * columns)


def update_s(elements: Any, *, update: Update, bytes_per_s: float, flops_per_s: float) -> Any:
    """Seconds of clipping and update of so many weights; floats or arrays."""
    return elements * (update_bytes(update) / bytes_per_s + update.flops / flops_per_s)


PROCESSORS_BYTES_PER_S: Final = 109e9
"""What the processors of one machine move in an update [CPUAdam]."""

DISKS_BYTES_PER_S: Final = 6e9
"""Local disks of one machine, read and written at once; assumed."""

UPDATE_BYTES: Final = 28.0
"""Of a weight: gradient, weight and two moments read, weight and moments written, in fp32 [CPUAdam]."""

STATE_BYTES: Final = 12.0
"""Of a weight's fp32 copy and moments on disk."""


class Host(Struct, frozen=True):
    """One card's part of its machine [bytes/s]."""

    pcie: float
    processors: float
    disks: float


def host_of(cluster: Cluster) -> Host:
    """All cards of a machine use its processors and disks at once; each has its own lanes."""
    cards, lanes = cluster.gpus_per_node, pcie_bytes_per_s(cluster.gpu)
    return Host(lanes * PCIE_SHARE.value, PROCESSORS_BYTES_PER_S / cards, DISKS_BYTES_PER_S / cards)


def update_on_host_s(elements: Any, host: Host, *, disk: bool) -> Any:
    """Seconds of updating so many weights on the host, with their states on disk or in memory; floats or arrays."""
    on_disk = 2 * STATE_BYTES / host.disks if disk else 0.0
    return elements * (UPDATE_BYTES / host.processors + on_disk)
