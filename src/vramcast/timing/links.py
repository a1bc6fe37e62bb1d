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

from vramcast.domain.device import ONE_HOP, Gpu, used_share
from vramcast.errors import Note


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


class Links(Struct, frozen=True):
    """How the cards of one machine, or rack, reach each other and cards outside."""

    node_cards: int  # of the machine or rack
    whole: Link  # all links of a card to those that they join
    joined: int  # cards that these links join
    topology: str | None  # key of `TOPOLOGIES`
    pcie: Link  # to the other cards of the machine

    def between(self, ranks: int, pattern: str = "all-reduce") -> Link:
        """What connects so many neighbouring cards; of a send, the first and the last of them.

        A ring through cards that the links do not join is as fast as its hops over PCIe.
        """
        if ranks > self.node_cards:
            return link_between_nodes()
        if ranks > self.joined:
            return self.pcie
        used = used_share(self.topology, cards=ONE_HOP if pattern == "send" else ranks, joined=self.joined)
        if used == 1.0:
            return self.whole
        source = Note(
            "{}, {:.0%} of that among {} of {} ({})",
            self.whole.source, used, ranks, self.joined, Note(str(self.topology)),
        )
        return Link(self.whole.bytes_per_s * used, self.whole.latency_s, source)


def links_of(gpu: Gpu, *, node_cards: int) -> Links:
    """NVLink and its kin where the card has it in this machine, else PCIe.

    Args:
        gpu: the card as it is built in
        node_cards: of one machine, or of a rack where switches join machines [count]
    """
    name = pcie_name(gpu)
    pcie = Link(pcie_bytes_per_s(gpu) * ACHIEVED, PCIE_LATENCY_S, f"{name} at {ACHIEVED:.0%}")
    if not gpu.is_linked or gpu.link_bytes_per_s is None:
        return Links(node_cards, pcie, node_cards, None, pcie)
    rate = gpu.link_bytes_per_s / 2
    whole = Link(rate * ACHIEVED, NVLINK_LATENCY_S, f"{gpu.link} at {ACHIEVED:.0%} of {rate / 1e9:,.0f} GB/s")
    return Links(node_cards, whole, gpu.joined(node_cards), gpu.link_topology, pcie)


def pcie_name(gpu: Gpu) -> str:
    """With the generation, the fourth where the catalogue has none."""
    return f"PCIe {gpu.pcie_generation or 4}"


def pcie_bytes_per_s(gpu: Gpu) -> float:
    """16 lanes, one direction, of the data sheet."""
    return PCIE_BYTES_PER_S.get(gpu.pcie_generation or 4, PCIE_BYTES_PER_S[4])


def assumed_links(gpu: Gpu, *, node_cards: int) -> tuple[str, ...]:
    """What is not known of how the cards of a machine are joined, one sentence each."""
    if node_cards == 1 or gpu.link is None:
        return ()
    if not gpu.is_linked:
        return (
            Note(
                "no {} between the cards, which is sold apart: they talk over {}; link and link_gb_per_s in a "
                "--hardware file say that there is one", gpu.link, pcie_name(gpu)
            ),
        )
    if gpu.link_topology is None:
        return (Note("how {} joins the cards is not known: every group is given all of a card's links", gpu.link),)
    return ()


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
