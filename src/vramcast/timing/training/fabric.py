"""Links between the ranks of a group, and how long collectives over them take.

Ranks are placed as Megatron places them: tensor parallel ranks next to each other, then context, expert and data
parallel, pipeline stages farthest apart. `stride` says how far neighbours of a group lie apart.

Symbols:  n ranks of a group   q of them on one machine   g cards of a machine   b bytes of the whole tensor
Inside a machine links join all cards (switches) or some of them (bridges), and where each pair has its own, a group
uses only some of a card's [domain/device.py]. What they do not join talks over PCIe.
[ring] Patarasu and Yuan, JPDC 2009: gathering or scattering moves (n - 1) / n b through every rank's link.
[hier] NCCL's rings and trees enter and leave every machine once: (1 - q / n) b cross its adapters, of which a group has
q / g.
[SimuMax] MooreThreads/SimuMax @4dcaae5 configs/system/b200_bf16_ceperm.json: NCCL on 8 x B200 reaches 67 to 80 % of the
link, 8 us a rank and 23 us once.
[DeepEP] deepseek-ai/DeepEP README.md: tokens cross the network once for every machine, then NVLink.

Seconds of what happens once a step: reducing gradients, clipping, the update, gathers, transfers to the host.

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

from functools import lru_cache
from math import log, sqrt
from typing import Any, Final

from msgspec import Struct

from vramcast.domain.device import ONE_HOP, UNBOUNDED, Cluster, used_share
from vramcast.errors import Note
from vramcast.timing.rates import PCIE_SHARE, Share, assumed_links, pcie_bytes_per_s, pcie_name

ROUNDS: Final[dict[str, float]] = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}
"""Collective -> how often the tensor goes round."""


LINK_SHARE: Final = Share(0.75, "[SimuMax] B200 0.72 to 0.80 of NVLink in rings")
EXCHANGE_SHARE: Final = Share(0.65, "[SimuMax] B200 0.64 of NVLink in all-to-all")
COLLECTIVES_OVER_PCIE: Final = Share(
    0.6, "[SimuMax] a100_pcie.json: 0.64 to 0.70 of 32 GB/s for 2 and 4 cards, 0.4 for 8"
)
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

ASSUMED_ADAPTER: Final[dict[str, float]] = {"Volta": 12.5e9, "Ampere": 25e9, "Hopper": 50e9, "Blackwell": 50e9}
"""Where the network is not known: adapter of one card by its generation, one direction [bytes/s]."""

OTHER_ADAPTER: Final = 12.5e9

MOST_KNOWN: Final = 512
"""Clusters whose links are kept [count]."""


class Route(Struct, frozen=True):
    """What a collective over a group costs: seconds = latency_s + bytes x s_per_byte."""

    latency_s: float
    s_per_byte: float

    def seconds(self, num_bytes: float) -> float:
        """Of a tensor of so many bytes."""
        return self.latency_s + num_bytes * self.s_per_byte


NOTHING: Final = Route(0.0, 0.0)


class Fabric(Struct, frozen=True):
    """The links of a cluster, one direction, achieved [bytes/s]."""

    node_cards: int  # of one machine, or of a rack where switches join machines
    link: float  # of one card to those that its links join, all links together
    adapter: float  # of one card to other machines: the machine's network divided among its cards
    joined: int  # cards that the links join
    topology: str | None  # key of `TOPOLOGIES`
    pcie: float  # of one card to the others of its machine
    sources: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def collective(self, pattern: str, *, ranks: int, stride: int = 1) -> Route:
        """All-reduce, all-gather or reduce-scatter of `ranks` that lie `stride` apart."""
        if ranks == 1:
            return NOTHING
        inside = _within(self.node_cards, ranks, stride)
        rounds = ROUNDS[pattern]
        seconds = (ranks - 1) / ranks / self._ring(inside, stride) if inside > 1 else 0.0
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
        inside = _within(self.node_cards, ranks, stride)
        near = self._exchanged(inside, stride) / ranks
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
        inside = _within(self.node_cards, ranks, stride)
        machines = ranks / inside
        met = machines * (1 - (1 - 1 / machines) ** copies)  # distinct machines of a token's experts
        near = self._exchanged(inside, stride) / inside
        far = met * (1 - 1 / machines) / copies / self.adapter
        return Route(START_S + (NODE_LATENCY_S if machines > 1 else 0.0), max(near, far))

    def send(self, *, stride: int) -> Route:
        """One rank to the next."""
        if 2 * stride <= self.joined:
            return Route(SEND_S, 1 / (self.link * self._used(ONE_HOP)))
        if 2 * stride <= self.node_cards:
            return Route(SEND_S, 1 / self.pcie)
        return Route(SEND_S + NODE_LATENCY_S, 1 / self.adapter)

    def _ring(self, inside: int, stride: int) -> float:
        """Rate of a ring through ranks of one machine: that of PCIe where links do not join all of them."""
        return self.link * self._used(inside) if _within(self.joined, inside, stride) == inside else self.pcie

    def _exchanged(self, inside: int, stride: int) -> float:
        """Seconds for one byte from a rank to each other one of its machine, over links and PCIe at once."""
        joined = _within(self.joined, inside, stride)
        linked = (joined - 1) / self.link / self._used(joined) if joined > 1 else 0.0
        return max(linked, (inside - joined) / self.pcie) * LINK_SHARE.value / EXCHANGE_SHARE.value

    def _used(self, cards: int) -> float:
        return used_share(self.topology, cards=cards, joined=self.joined)


def _within(cards: int, ranks: int, stride: int) -> int:
    """Of `ranks` that lie `stride` apart, those among so many neighbouring cards."""
    return min(ranks, max(1, cards // stride))


@lru_cache(maxsize=MOST_KNOWN)
def fabric_of(cluster: Cluster) -> Fabric:
    """The links of a cluster; an assumed adapter where its network is not known."""
    gpu, domain, network = cluster.gpu, cluster.node_cards, cluster.network
    pcie, over_pcie = _achieved(pcie_name(gpu), pcie_bytes_per_s(gpu), COLLECTIVES_OVER_PCIE)
    link, source, joined, topology = pcie, over_pcie, domain, None
    if gpu.is_linked and gpu.link_bytes_per_s is not None:
        link, source = _achieved(str(gpu.link), gpu.link_bytes_per_s / 2, LINK_SHARE)
        joined, topology = gpu.joined(domain), gpu.link_topology
    sources, assumptions = [source], list(assumed_links(gpu, node_cards=domain))
    if topology is not None and topology not in UNBOUNDED:
        sources.append(Note(
            "{} joins {} cards as a {}: fewer use fewer links, more use {}", gpu.link, joined, Note(topology), over_pcie
        ))
    if network is not None:
        share = NETWORK_SHARE if network.rdma else TCP_SHARE
        adapter = network.bytes_per_s * share.value / cluster.gpus_per_node
        sources.append(Note(
            "{:,.0f} Gb/s {} a machine, {}", network.bytes_per_s * 8e-9, network.rdma or "TCP", share.source
        ))
    else:
        rate = ASSUMED_ADAPTER.get(gpu.arch.split()[0], OTHER_ADAPTER)
        adapter = rate * NETWORK_SHARE.value
        if cluster.count > domain:
            assumptions.append(Note("network of {:,.0f} Gb/s RDMA for each card; the question names none", rate * 8e-9))
    return Fabric(domain, link, adapter, joined, topology, pcie, tuple(sources), tuple(assumptions))


def _achieved(name: str, rate: float, share: Share) -> tuple[float, str]:
    return rate * share.value, Note(
        "{} at {:.0%} of {:,.0f} GB/s a direction ({})", name, share.value, rate / 1e9, share.source
    )


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


class Update(Struct, frozen=True):
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
