"""Collectives between the cards of a tensor-parallel group.

Symbols:  n ranks   b bytes of one rank's tensor
[ring] Patarasu and Yuan, JPDC 2009: an all-reduce moves 2 (n - 1) / n b through every link, all-gather half of it.
[latency] NVIDIA/nccl#1259: about 6 us for two H100 over NVLink inside a CUDA graph; haohervchb/sglang-V100 pull 2: NCCL
over a PCIe switch takes 19 to 24 us for 4 to 32 KB on four cards.
[busbw] NVIDIA/nccl#1161: an all-reduce of 1 GB reaches 115.6 GB/s a direction over a bridge of 300 GB/s.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from vramcast.domain.device import Gpu


class Link(Struct, frozen=True):
    """What connects two cards of one node."""

    bytes_per_s: float  # one direction, achieved
    latency_s: float  # of one small collective
    source: str


PATTERNS: Final[dict[str, float]] = {"all-reduce": 2.0, "all-gather": 1.0, "all-to-all": 1.0, "send": 1.0}
"""Collective -> how often (n - 1) / n b crosses a link [ring]."""

ACHIEVED: Final = 0.77
"""Of a link's one-directional data sheet figure [busbw]."""

BETWEEN_NODES_BYTES_PER_S: Final = 50e9
"""One 400 Gb/s adapter for each card, one direction; the catalogue knows no networks."""

BETWEEN_NODES_LATENCY_S: Final = 30e-6

NVLINK_LATENCY_S: Final = 8e-6
PCIE_LATENCY_S: Final = 20e-6

PCIE_BYTES_PER_S: Final[dict[int, float]] = {3: 16e9, 4: 32e9, 5: 64e9, 6: 128e9}
"""Generation -> 16 lanes, one direction."""


def link_of(gpu: Gpu) -> Link:
    """The link between neighbours: NVLink and its kin where the card has it, else PCIe."""
    if gpu.link_bytes_per_s:
        rate = gpu.link_bytes_per_s / 2 * ACHIEVED
        return Link(rate, NVLINK_LATENCY_S, f"{gpu.link} at {ACHIEVED:.0%} of {gpu.link_bytes_per_s / 2e9:,.0f} GB/s")
    rate = PCIE_BYTES_PER_S.get(gpu.pcie_generation or 4, PCIE_BYTES_PER_S[4]) * ACHIEVED
    return Link(rate, PCIE_LATENCY_S, f"PCIe {gpu.pcie_generation or 4} at {ACHIEVED:.0%}")


def link_between_nodes() -> Link:
    """The network between machines, assumed."""
    source = "400 Gb/s between machines for each card (assumed)"
    return Link(BETWEEN_NODES_BYTES_PER_S * ACHIEVED, BETWEEN_NODES_LATENCY_S, source)


def collective_s(num_bytes: float, *, ranks: int, pattern: str, link: Link) -> float:
    """Seconds of one collective.

    >>> round(1e6 * collective_s(2**20, ranks=8, pattern="all-reduce", link=Link(346.5e9, 8e-6, "NVLink4")), 1)
    13.3
    """
    if ranks == 1:
        return 0.0
    crossing = 1.0 if pattern == "send" else PATTERNS[pattern] * (ranks - 1) / ranks
    return link.latency_s + crossing * num_bytes / link.bytes_per_s
