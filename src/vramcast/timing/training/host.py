"""Seconds of what lies on the host: transfers over PCIe, updates on processors, local disks.

Stable: `Host`, `host_of`, `update_on_host_s`.

[CPUAdam] Ren et al., arXiv:2101.06840 (ZeRO-Offload), table 3: CPU-Adam updates 10 billion weights in 2.57 s on two
Xeon 8168, which are 28 bytes each: 109 GB/s.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vramcast.domain.device import Cluster
from vramcast.timing.links import PCIE_BYTES_PER_S

PROCESSORS_BYTES_PER_S: Final = 109e9
"""What the processors of one machine move in an update [CPUAdam]."""

DISKS_BYTES_PER_S: Final = 6e9
"""Local disks of one machine, read and written at once; assumed."""

PCIE_SHARE: Final = 0.8
"""Of a direction's data sheet that copies from pinned memory reach: 25 of 32 GB/s on A100; assumed elsewhere."""

UPDATE_BYTES: Final = 28.0
"""Of a weight: gradient, weight and two moments read, weight and moments written, in fp32 [CPUAdam]."""

STATE_BYTES: Final = 12.0
"""Of a weight's fp32 copy and moments on disk."""


class Host(NamedTuple):
    """One card's part of its machine [bytes/s]."""

    pcie: float
    processors: float
    disks: float


def host_of(cluster: Cluster) -> Host:
    """All cards of a machine use its processors and disks at once; each has its own lanes."""
    lanes = PCIE_BYTES_PER_S.get(cluster.gpu.pcie_generation or 4, PCIE_BYTES_PER_S[4])
    cards = cluster.gpus_per_node
    return Host(lanes * PCIE_SHARE, PROCESSORS_BYTES_PER_S / cards, DISKS_BYTES_PER_S / cards)


def update_on_host_s(elements: Any, host: Host, *, disk: bool) -> Any:
    """Seconds of updating so many weights on the host, with their states on disk or in memory; floats or arrays."""
    on_disk = 2 * STATE_BYTES / host.disks if disk else 0.0
    return elements * (UPDATE_BYTES / host.processors + on_disk)
