"""Cards and clusters of one kind of card."""

from __future__ import annotations

from collections import Counter

from vramcast.domain.model import Noun
from vramcast.domain.price import Price
from vramcast.domain.topology import UNBOUNDED
from vramcast.errors import InvalidSpec

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
            raise InvalidSpec(f"dtype {dtype!r} has no rate; use one of {', '.join(RATED_DTYPES)}")
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
    def has_fp8(self) -> bool:
        """Whether there are products in fp8: NVIDIA's from Ada on."""
        return self.sm >= FP8_SM if self.sm is not None else self.fp8_flops is not None


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
                f"a cluster of {self.num_nodes} x {self.gpus_per_node} cards must have 1 to {LARGEST_CLUSTER} in all"
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
