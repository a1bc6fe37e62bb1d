"""Links between the ranks of a group, and how long collectives over them take.

Ranks are placed as Megatron places them: tensor parallel ranks next to each other, then context, expert and data
parallel, pipeline stages farthest apart. `stride` says how far neighbours of a group lie apart.

Symbols:  n ranks of a group   q of them on one machine   g cards of a machine   b bytes of the whole tensor
[ring] Patarasu and Yuan, JPDC 2009: gathering or scattering moves (n - 1) / n b through every rank's link.
[hier] NCCL's rings and trees enter and leave every machine once: (1 - q / n) b cross its adapters, of which a group has
q / g.
[SimuMax] MooreThreads/SimuMax @4dcaae5 configs/system/b200_bf16_ceperm.json: NCCL on 8 x B200 reaches 67 to 80 % of the
link, 8 us a rank and 23 us once.
[DeepEP] deepseek-ai/DeepEP README.md: tokens cross the network once for every machine, then NVLink.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Cluster, Gpu
from vramcast.timing.links import PCIE_BYTES_PER_S

ROUNDS: Final[dict[str, float]] = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}
"""Collective -> how often the tensor goes round."""


class Share(NamedTuple):
    """A constant that is measured, and where."""

    value: float
    source: str


LINK_SHARE: Final = Share(0.75, "[SimuMax] B200 0.72 to 0.80 of NVLink in rings")
EXCHANGE_SHARE: Final = Share(0.65, "[SimuMax] B200 0.64 of NVLink in all-to-all")
PCIE_SHARE: Final = Share(0.6, "[SimuMax] a100_pcie.json: 0.64 to 0.70 of 32 GB/s for 2 and 4 cards, 0.4 for 8")
NETWORK_SHARE: Final = Share(0.8, "assumed: RDMA adapters reach four fifths")
TCP_SHARE: Final = Share(0.5, "assumed: sockets reach half")

RANK_LATENCY_S: Final = 8e-6
"""Of one step of a ring over NVLink or PCIe: 8.0 to 9.2 us [SimuMax]."""
NODE_LATENCY_S: Final = 15e-6
"""Of one step between machines, assumed."""
START_S: Final = 23e-6
"""Of a collective, whatever the number of ranks: 22 to 26 us [SimuMax]."""
SEND_S: Final = 16e-6
"""Of a message between two ranks [SimuMax]."""

LINK_DOMAINS: Final[dict[str, int]] = {"gb200": 72, "gb300": 72}
"""Beginning of a card's name -> cards that NVLink connects beyond one machine (NVL72 racks)."""

ASSUMED_ADAPTER: Final[dict[str, float]] = {"Volta": 12.5e9, "Ampere": 25e9, "Hopper": 50e9, "Blackwell": 50e9}
"""Where the network is not known: adapter of one card by its generation, one direction [bytes/s]."""

OTHER_ADAPTER: Final = 12.5e9


class Route(NamedTuple):
    """What a collective over a group costs: seconds = latency_s + bytes x s_per_byte."""

    latency_s: float
    s_per_byte: float

    def seconds(self, num_bytes: float) -> float:
        """Of a tensor of so many bytes."""
        return self.latency_s + num_bytes * self.s_per_byte


NOTHING: Final = Route(0.0, 0.0)


class Fabric(NamedTuple):
    """The links of a cluster, one direction, achieved [bytes/s]."""

    node_cards: int  # cards that the link connects
    link: float  # of one card to the others of its machine
    adapter: float  # of one card to other machines: the machine's network divided among its cards
    sources: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def collective(self, pattern: str, *, ranks: int, stride: int = 1) -> Route:
        """All-reduce, all-gather or reduce-scatter of `ranks` that lie `stride` apart."""
        if ranks == 1:
            return NOTHING
        inside = self._inside(ranks, stride)
        rounds = ROUNDS[pattern]
        seconds = (ranks - 1) / ranks / self.link if inside > 1 else 0.0
        latency = START_S + rounds * RANK_LATENCY_S * (inside - 1)
        if inside < ranks:
            machines = ranks / inside
            seconds = max(seconds, (1 - 1 / machines) / (self.adapter * inside))
            latency += rounds * NODE_LATENCY_S * min(machines - 1, 16)
        return Route(latency, rounds * seconds)

    def all_to_all(self, *, ranks: int, stride: int = 1) -> Route:
        """Every rank sends each other rank its part of b bytes."""
        if ranks == 1:
            return NOTHING
        inside = self._inside(ranks, stride)
        near = (inside - 1) / ranks / self.link * LINK_SHARE.value / EXCHANGE_SHARE.value
        latency = START_S + RANK_LATENCY_S * (inside - 1) + (NODE_LATENCY_S if inside < ranks else 0.0)
        return Route(latency, max(near, (1 - inside / ranks) / self.adapter))

    def dispatch(self, *, ranks: int, stride: int, copies: int) -> Route:
        """Tokens to their experts, each sent once to a machine however many of its experts it chose [DeepEP].

        Args:
            ranks, stride: as above
            copies: experts of a token; b counts every copy
        """
        if ranks == 1:
            return NOTHING
        inside = self._inside(ranks, stride)
        machines = ranks / inside
        met = machines * (1 - (1 - 1 / machines) ** copies)  # distinct machines of a token's experts
        near = (inside - 1) / inside / self.link * LINK_SHARE.value / EXCHANGE_SHARE.value
        far = met * (1 - 1 / machines) / copies / self.adapter
        return Route(START_S + (NODE_LATENCY_S if machines > 1 else 0.0), max(near, far))

    def send(self, *, stride: int) -> Route:
        """One rank to the next."""
        if 2 * stride <= self.node_cards:
            return Route(SEND_S, 1 / self.link)
        return Route(SEND_S + NODE_LATENCY_S, 1 / self.adapter)

    def _inside(self, ranks: int, stride: int) -> int:
        """Ranks of the group on one machine."""
        return min(ranks, max(1, self.node_cards // stride))


def fabric_of(cluster: Cluster) -> Fabric:
    """The links of a cluster; an assumed adapter where its network is not known."""
    link, source = _link(cluster.gpu)
    sources, assumptions = [source], []
    reached = next((cards for name, cards in LINK_DOMAINS.items() if cluster.gpu.name.startswith(name)), 0)
    domain = max(cluster.gpus_per_node, min(reached, cluster.count))
    network = cluster.network
    if network is not None:
        share = NETWORK_SHARE if network.rdma else TCP_SHARE
        adapter = network.bytes_per_s * share.value / cluster.gpus_per_node
        sources.append(f"{network.bytes_per_s * 8e-9:,.0f} Gb/s {network.rdma or 'TCP'} a machine, {share.source}")
    else:
        rate = ASSUMED_ADAPTER.get(cluster.gpu.arch.split()[0], OTHER_ADAPTER)
        adapter = rate * NETWORK_SHARE.value
        if cluster.count > domain:
            assumptions.append(f"network of {rate * 8e-9:,.0f} Gb/s RDMA for each card; the question names none")
    return Fabric(domain, link, adapter, tuple(sources), tuple(assumptions))


def _link(gpu: Gpu) -> tuple[float, str]:
    if gpu.link_bytes_per_s:
        name, rate, share = str(gpu.link), gpu.link_bytes_per_s / 2, LINK_SHARE
    else:
        generation = gpu.pcie_generation or 4
        name, share = f"PCIe {generation}", PCIE_SHARE
        rate = PCIE_BYTES_PER_S.get(generation, PCIE_BYTES_PER_S[4])
    return rate * share.value, f"{name} at {share.value:.0%} of {rate / 1e9:,.0f} GB/s a direction ({share.source})"
