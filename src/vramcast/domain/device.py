"""Cards and clusters of one kind of card; how links join cards, and so how much of them a group of cards can use.

Behind a switch any group uses all of them. Where links join pairs of cards directly, a group uses those among its own
cards only, and a message to one card those between the two.

Symbols:  n cards of a group   N cards that are joined
[rccl] ROCm/rccl README.md, "Improving performance on MI300 when using less than 8 GPUs": every pair of eight has a link
of its own; ROCm/rccl#1210: 48 GB/s each, 144 GB/s for four cards.
[cube] NVIDIA, DGX-1 system architecture (WP-08437-002): the hybrid cube mesh of eight P100 (4 links) and V100 (6).
[gpu-topology] Alibaba Cloud, overview of topology-aware GPU scheduling: V100 0 has 2 links to 3 and 4, 1 to 1 and 2.
[frontier] OLCF, Frontier user guide: 200 GB/s between the dies of an MI250X, 50 to 100 GB/s to those of others.

What a machine costs, and what a job costs on it. No currency is ever converted into another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from vramcast.domain.model import Noun
from vramcast.errors import InvalidSpec

ONE_HOP: Final = 1
"""In place of a group's cards: a message to one of them [count]."""


def all_links(cards: int, joined: int) -> float:
    """Of a switch."""
    return 1.0


def mesh_links(cards: int, joined: int) -> float:
    """Of a full mesh: (n - 1) / (N - 1), one link for one hop.

    >>> round(896 / 2 * mesh_links(2, 8)), round(896 / 2 * mesh_links(8, 8))
    (64, 448)
    """
    return max(cards - 1, 1) / (joined - 1)


def _counted(links: int, used: dict[int, int]) -> Callable[[int, int], float]:
    """Of an irregular topology: the links that a ring through so many neighbouring cards uses of each."""

    def share(cards: int, joined: int) -> float:
        return used[max(size for size in used if size <= cards)] / links

    return share


TOPOLOGIES: Final[dict[str, Callable[[int, int], float]]] = {
    "switch": all_links,
    "mesh": mesh_links,
    "bridge": mesh_links,  # sold apart from the cards
    "cube mesh of 4 links": _counted(4, {ONE_HOP: 1, 2: 1, 3: 2, 4: 3, 8: 4}),
    "cube mesh of 6 links": _counted(6, {ONE_HOP: 1, 2: 1, 3: 2, 4: 4, 8: 6}),
    # four of a die's eight links go to the other die of the card, one to the host
    "pairs of dies": _counted(8, {ONE_HOP: 1, 2: 4, 3: 3}),
}
"""Name in `gpus.csv` -> share of a card's links that a group of n out of N joined cards uses [rccl, cube, frontier]."""

UNBOUNDED: Final = ("switch",)
"""Topologies that join all cards of a machine, however many."""


def used_share(topology: str | None, *, cards: int, joined: int) -> float:
    """Share of a card's links that a group of neighbouring cards uses; all where the topology is not known.

    Args:
        topology: key of `TOPOLOGIES`, None where it is not known
        cards: of the group, or `ONE_HOP` [count]
        joined: cards that the links join [count]
    """
    return TOPOLOGIES[topology](cards, joined) if topology else 1.0


FALLBACK_CONTEXT_BYTES = 500 << 20
"""Where the catalogue has no measured context for a card's generation [bytes]."""

LARGEST_CLUSTER = 10**6
"""More cards than any machine has; a larger number is a slip of the keyboard [count]."""


class Gpu(Noun, frozen=True, kw_only=True):
    """One card as a process sees it. A card of two dies that frameworks see as two devices is two of these.

    Rates are those of the data sheet: dense (no sparsity), with fp32 accumulation, links in both directions together.
    What is unknown is None.
    """

    name: str
    vendor: str
    arch: str  # "Hopper"
    product: str = ""  # as the vendor writes it
    compute_capability: str | None = None  # "9.0", "gfx942"
    memory_nameplate: str = ""  # as printed on the box, "80 GB"
    visible_bytes: int  # what a process can use: cudaMemGetInfo's total, torch's "total capacity"
    visible_is_measured: bool = False  # False: derived from smi_total_bytes
    smi_total_bytes: int | None = None  # memory.total of nvidia-smi and its kin, drivers from R510 on
    context_bytes: int | None = None  # CUDA context and library images of one PyTorch process
    nccl_bytes: int | None = None  # buffers of one NCCL communicator over the card's links
    bandwidth_bytes_per_s: int | None = None
    fp64_flops: float | None = None
    fp32_flops: float | None = None
    tf32_flops: float | None = None
    fp16_flops: float | None = None
    bf16_flops: float | None = None
    fp8_flops: float | None = None
    fp4_flops: float | None = None
    int8_flops: float | None = None
    link: str | None = None  # "NVLink4"; None: only PCIe
    link_bytes_per_s: int | None = None
    link_topology: str | None = None  # key of `topology.TOPOLOGIES`; None: only PCIe, or not known
    link_cards: tuple[int, ...] = ()  # that the link joins, by what is sold; empty: all of a machine
    link_source: str = ""  # of the topology
    bridged: bool = False  # whoever describes the machine says that its bridges are fitted
    pcie_generation: int | None = None
    tdp_w: int | None = None
    segment: str = ""  # "datacentre", "workstation", "consumer"
    held_bytes: int = 0  # that others hold on it: the desktop, other processes
    limit: str = ""  # what keeps a process from the rest of a unified memory, one sentence
    source: str = ""
    checked: str = ""  # ISO date
    confidence: str = ""  # "high", "medium", "low"

    def flops_per_s(self, dtype: str) -> float | None:
        """Dense operations per second for a dtype name of `units.DTYPE_BITS`, None where the card has none.

        >>> Gpu(name="x", vendor="NVIDIA", arch="Volta", visible_bytes=1, fp16_flops=125e12).flops_per_s("fp16")
        125000000000000.0
        """
        if dtype not in RATED_DTYPES:
            raise InvalidSpec("dtype {!r} has no rate; use one of {}", dtype, ", ".join(RATED_DTYPES))
        rate: float | None = getattr(self, f"{dtype}_flops")
        return rate

    @property
    def sm(self) -> int | None:
        """Compute capability as one number: 90 for Hopper; None for cards that are not NVIDIA's."""
        digits = (self.compute_capability or "").replace(".", "")
        return int(digits) if digits.isdecimal() else None

    @property
    def multiplies_as(self) -> str:
        """Architecture whose matrix products a card runs.

        Desktop Blackwell (12.x) has the instructions of Ada, and none of the tensor memory that data-centre Blackwell
        multiplies from [PTX ISA 8.7, tcgen05: sm_100, sm_101].

        >>> Gpu(name="x", vendor="NVIDIA", arch="Blackwell", visible_bytes=1, compute_capability="12.0").multiplies_as
        'Ada'
        """
        return "Ada" if self.arch == "Blackwell" and (self.sm or 0) >= 120 else self.arch

    @property
    def stands_alone(self) -> bool:
        """Whether a machine has one and nothing joins two machines: the GPU of a Mac."""
        return self.vendor == "Apple"

    @property
    def is_linked(self) -> bool:
        """Whether the card has its link here: a bridge is sold apart, so only where somebody says so."""
        return bool(self.link_bytes_per_s) and (self.link_topology != "bridge" or self.bridged)

    def joined(self, cards: int) -> int:
        """Cards that the link joins in a machine of so many: the smallest mesh that holds them, else the largest.

        >>> card = Gpu(name="x", vendor="", arch="", visible_bytes=1, link_topology="bridge", link_cards=(2, 4))
        >>> card.joined(2), card.joined(8)
        (2, 4)
        """
        if self.link_topology is None or self.link_topology in UNBOUNDED:
            return cards
        return next((size for size in self.link_cards if size >= cards), self.link_cards[-1])

    @property
    def free_bytes(self) -> int:
        """What others leave of it."""
        return max(0, self.visible_bytes - self.held_bytes)

    @property
    def unmodelled(self) -> str:
        """Why nothing here says what PyTorch takes of the card; "": it is modelled."""
        return UNMODELLED.get(self.vendor, "")

    @property
    def has_bf16(self) -> bool:
        """Whether products in bf16 run on tensor cores: NVIDIA's from Ampere on; older cards emulate them in fp32."""
        if self.sm is not None:
            return self.sm >= BF16_SM
        return self.bf16_flops is not None or self.fp16_flops is None

    @property
    def shares_memory(self) -> bool:
        """Whether its memory is the machine's: what waits on the host is beside what it holds."""
        return self.vendor == "NVIDIA" and self.compute_capability in INTEGRATED

    @property
    def has_fp8(self) -> bool:
        """Whether there are products in fp8: NVIDIA's from Ada on."""
        return self.sm >= FP8_SM if self.sm is not None else self.fp8_flops is not None


INTEGRATED: Final = ("7.2", "8.7", "11.0", "12.1")
"""Compute capabilities of Jetson Xavier, Orin and Thor, and of GB10 (`cudaDeviceProp.integrated`)
[developer.nvidia.com/cuda-gpus]."""

UNMODELLED = {
    "Google": "a TPU runs programs of XLA, which plans their memory when it compiles: PyTorch's allocator and CUDA's "
              "kernels, whose memory is predicted here, are not there",
    "Apple": "PyTorch's Metal backend has another allocator and other kernels than CUDA's, and is not modelled",
}
"""Vendor -> why what PyTorch takes there is not predicted."""

BF16_SM = 80
"""Oldest compute capability x 10 with products in bf16."""

FP8_SM = 89
"""Oldest compute capability x 10 with products in fp8 (Ada)."""

RATED_DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Dtypes that data sheets give a rate for."""


class Network(Noun, frozen=True):
    """What connects machines."""

    bytes_per_s: int  # of one machine, one direction, all its adapters together
    rdma: str | None = None  # "InfiniBand", "RoCE", "EFA", "eRDMA"; None: TCP
    source: str = ""


class Cluster(Noun, frozen=True):
    """`num_nodes` machines with `gpus_per_node` equal cards, or one with unequal ones. What is not known is None."""

    gpu: Gpu
    gpus_per_node: int
    num_nodes: int = 1
    instance: str | None = None  # what is rented: "aws:p5.48xlarge"
    network: Network | None = None
    host_bytes: int | None = None  # main memory of one machine
    nvme_bytes: int | None = None  # local disks of one machine
    price: Price | None = None  # of one machine; where there are several, the one the question asks for
    notes: tuple[str, ...] = ()  # what is assumed about the machine
    cautions: tuple[str, ...] = ()  # what about the cards changes how an answer is to be read
    cards: tuple[Gpu, ...] = ()  # of the machine, where they differ; `gpu` then has the least of all their figures

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1 or self.num_nodes < 1 or self.count > LARGEST_CLUSTER:
            raise InvalidSpec(
                "a cluster of {} x {} cards must have 1 to {} in all",
                self.num_nodes, self.gpus_per_node, LARGEST_CLUSTER
            )

    @property
    def count(self) -> int:
        """Cards in all."""
        return self.gpus_per_node * self.num_nodes

    @property
    def node_cards(self) -> int:
        """Cards of one machine, or of one rack where switches join machines."""
        rack = self.gpu.link_cards[-1] if self.gpu.link_cards and self.gpu.link_topology in UNBOUNDED else 0
        return max(self.gpus_per_node, min(rack, self.count))

    @property
    def name(self) -> str:
        """As the command line writes it: '8xh100-sxm-80gb', '2x8xh100-sxm-80gb', '2xaws:p5.48xlarge'."""
        if self.cards:
            return "+".join(f"{count}x{name}" for name, count in Counter(card.name for card in self.cards).items())
        nodes = f"{self.num_nodes}x" if self.num_nodes > 1 else ""
        if self.instance is not None:
            return nodes + self.instance
        return f"{nodes}{self.gpus_per_node}x{self.gpu.name}"


Tariff = Literal["on-demand", "spot"]


class Price(Noun, frozen=True):
    """One published or given price of one machine for one hour."""

    KEYS = (...,)
    SHOWN = ("tariff",)

    per_hour: float  # of the whole machine, in `currency`
    currency: str  # ISO 4217: "USD", "CNY"
    tariff: Tariff = "on-demand"
    region: str = ""  # "us-east-1", "cn-beijing"
    date: str = ""  # ISO date the price was read
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.per_hour < 1e6:
            raise InvalidSpec("price per hour {!r} must be more than 0 and less than 1,000,000", self.per_hour)
        if len(self.currency) != 3 or not self.currency.isascii() or not self.currency.isupper():
            raise InvalidSpec("currency {!r} must be an ISO 4217 code such as USD or CNY", self.currency[:20])


class Cost(Noun, frozen=True):
    """What a job costs, in the currency of its price. What was not asked for or is not known is None."""

    KEYS = (
        "per_hour", ("currency", "price.currency"), ("tariff", "price.tariff"), "machines",
        ("machine_per_hour", "price.per_hour"), "per_million_tokens", "per_run", "run_hours",
        ("region", "price.region"), ("date", "price.date"), "age_days", ("source", "price.source"),
    )
    SHOWN = ("tariff",)

    price: Price  # of one machine
    machines: int  # rented for it
    per_hour: float  # all of them
    per_million_tokens: float | None = None  # trained, or generated
    per_run: float | None = None  # of the number of tokens the question names
    run_hours: float | None = None
    age_days: int | None = None  # of the price, on the day of the report
