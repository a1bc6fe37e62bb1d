"""What cards, and a machine's processors, reach of their data sheets: matrix products and reading memory.

[MAMF] stas00/ml-engineering compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS": best shapes.
[gpt-fast] pytorch-labs/gpt-fast @0f925b5 README.md: A100-80GB reads about 1,700 of 2,039 GB/s; one die of an MI250X
1,029 of 1,638 GB/s while it decodes Llama-2-7B.
[L20] DefTruth/CUDA-Learn-Notes hgemm/README.md: cuBLAS reaches 105 to 115 of 119.5 TFLOPS.
[JEDEC] a channel of DDR moves 8 bytes a transfer: channels x transfers/s x 8 B

Collectives between the cards of a tensor-parallel group.

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
from vramcast.timing.work import Work
from vramcast.units import ceil_div


class Share(Struct, frozen=True):
    """A measured share of a data sheet's figure."""

    value: float
    source: str


MATMUL: Final[dict[tuple[str, str], Share]] = {
    ("Ampere", "16"): Share(0.87, "[MAMF] A100 SXM 271.2 of 312"),
    ("Ada", "16"): Share(0.92, "[L20] cuBLAS 105-115 of 119.5"),
    ("Hopper", "16"): Share(0.80, "[MAMF] H100 SXM 794.5 of 989"),
    ("Hopper", "8"): Share(0.72, "[MAMF] H100 SXM 1402.6, H200 1453.4 of 1979"),
    ("Blackwell", "16"): Share(0.78, "[MAMF] B200 1745 of 2250"),
    ("Blackwell", "8"): Share(0.76, "[MAMF] B200 3432.5 of 4500"),
    ("Blackwell", "4"): Share(0.45, "fitted: full load of B200 with NVFP4 in truth/speeds.csv"),
    ("CDNA2", "16"): Share(0.77, "[MAMF] MI250X 147 of 191.5"),
    ("CDNA3", "16"): Share(0.55, "[MAMF] MI300X 668.4, MI325X 784.9 of 1300"),
    ("CDNA4", "16"): Share(0.68, "[MAMF] MI355X 1565 of 2300"),
    ("Gaudi2", "16"): Share(0.97, "[MAMF] Gaudi 2 418.7 of 432"),
    ("Gaudi3", "16"): Share(0.68, "[MAMF] Gaudi 3 1243 of 1835"),
}
"""Architecture and operand bits -> the best matrix product anybody measured."""

OTHER_MATMUL: Final = Share(0.75, "assumed: no public measurement of this card's products")

SHAPES: Final = Share(0.75, "real layers beside the best shape: first tokens on A100 in truth/speeds.csv, 0.78")
"""Products of a model's own shapes, with the kernels between them, relative to the best shape."""

OF_FASTEST: Final = Share(0.83, "fitted: one half of the configurations of benchmarks.serving_times")
"""Of the rate of the fastest kernel, measured on its own, where operations bound it: a card that computes without pause
lowers its clock, and an engine does not choose the fastest everywhere."""

BANDWIDTH: Final[dict[str, Share]] = {
    "NVIDIA": Share(0.83, "[gpt-fast] A100 1,700 of 2,039 GB/s"),
    "AMD": Share(0.70, "[gpt-fast] MI250X 1,029 of 1,638 GB/s with its launches"),
}

READS: Final[dict[str, Share]] = {
    "Ampere": Share(0.87, "[aic] the best of 42 products with more than 1 GB of weights on A100, 0.84 at the median"),
}
"""What no measured kernel of a generation reads faster: TensorRT-LLM's attention on A100 was measured at up to 1.02 of
the data sheet, vLLM's at 0.84. Elsewhere nothing large is above 0.97."""

OTHER_BANDWIDTH: Final = Share(0.75, "assumed: no public measurement of this card's memory")

OPERANDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("fp8", ("fp8",)),
    ("nvfp4", ("fp4",)),
    ("int8-bnb", ()),
    ("int8", ("int8",)),
    ("q", ("int8",)),
)
"""Beginning of a format's name -> dtypes its products run in where the card has a rate for them; else 16 bits.

FP8 on cards without FP8 and all 4-bit integers are unpacked to 16 bits (Marlin, vllm
model_executor/layers/quantization); llama.cpp multiplies quantised weights with activations in int8
[ggml/src/ggml-cuda/mmq.cu]."""


BITS: Final = {"fp4": "4", "fp8": "8", "int8": "8", "fp32": "32"}


class Rates(Struct, frozen=True):
    """What a card reaches in one kind of product."""

    dtype: str
    flops_per_s: float
    source: str


def best_product(gpu: Gpu, bits: str) -> Share:
    """What the best product of a card reaches, with operands of so many bits: of its own kind, else of its nearest."""
    kinds = (gpu.multiplies_as, gpu.arch.split()[0])  # "Blackwell Ultra", "Blackwell"
    measured = (MATMUL.get((kind, width)) for width in dict.fromkeys((bits, "16")) for kind in kinds)
    return next(filter(None, measured), OTHER_MATMUL)


def product_rate(gpu: Gpu, stored: str, whole: str) -> Rates | None:
    """Operations per second of products with weights of a format; None where the card has no known rate.

    Args:
        stored: key of `states.storage.FORMATS`
        whole: dtype of the activations
    """
    preferred = next((dtypes for prefix, dtypes in OPERANDS if stored.startswith(prefix)), ())
    plain = ("fp32",) if whole == "fp32" else ("bf16", "fp16", "fp32")
    for dtype in (*preferred, *plain):
        peak = gpu.flops_per_s(dtype)
        if peak:
            bits = BITS.get(dtype, "16")
            share = best_product(gpu, bits)
            source = Note(
                "{} products reach {:.0%} of {:,.0f} TFLOPS ({})", dtype, share.value, peak / 1e12, share.source
            )
            return Rates(dtype, peak * share.value, source)
    return None


def is_measured(gpu: Gpu) -> bool:
    """Whether anybody measured what cards of its kind reach of their data sheet."""
    return gpu.vendor in BANDWIDTH or (gpu.arch, "16") in MATMUL


def bandwidth(gpu: Gpu) -> tuple[float, str] | None:
    """Bytes per second that kernels read, and what that rests on; None where the data sheet is unknown."""
    peak = gpu.bandwidth_bytes_per_s
    if not peak:
        return None
    share = BANDWIDTH.get(gpu.vendor, OTHER_BANDWIDTH)
    return peak * share.value, Note("memory reaches {:.0%} of {:,.0f} GB/s ({})", share.value, peak / 1e9, share.source)


CHANNEL_BYTES: Final = 8
ACHIEVED: Final = Share(0.75, "assumed; STREAM reaches 0.7 to 0.85 of the data sheet")
PCIE_SHARE: Final = Share(0.8, "copies from pinned memory reach 25 of 32 GB/s on A100; assumed elsewhere")
CORE_FLOPS: Final = 50e9
"""Of quantised products on one core, the unpacking of weights included; assumed [operations/s]."""


class Processors(Struct, frozen=True):
    """Processors and main memory of a kind of machine."""

    name: str
    channels: int
    transfers_per_s: float
    cores: int
    source: str

    @property
    def bytes_per_s(self) -> float:
        """Of main memory, as reached."""
        return self.channels * self.transfers_per_s * CHANNEL_BYTES * ACHIEVED.value


SERVER: Final = Processors(
    "one Xeon of the fourth generation", 8, 4.8e9, 48, "Intel Xeon Scalable data sheet: 8 channels of DDR5-4800"
)
MACHINES: Final[dict[str, Processors]] = {
    "consumer": Processors(
        "a desktop with two channels of DDR5-5600", 2, 5.6e9, 8, "data sheets of Intel Core 14 and AMD Ryzen 9000"
    ),
    "workstation": Processors(
        "a workstation with eight channels of DDR5-5200", 8, 5.2e9, 32, "AMD Ryzen Threadripper Pro 7000 data sheet"
    ),
}
"""What stands around cards of a segment where nobody says; around others a server."""


class Beside(Struct, frozen=True):
    """What of a network lies in main memory, and how fast the machine is there."""

    shares: dict[str, float]  # of "experts", "layers", "head", "cache"; by bytes
    bytes_per_s: float
    flops_per_s: float
    pcie_bytes_per_s: float
    micro_batch: int  # tokens for which weights are brought to a card once
    brought_from: int | None  # rows of a product from which its weights are; None: never
    assumed: str  # what is assumed of the machine, one sentence; "": all of it was said

    def share(self, work: Work) -> float:
        """Of one operator's bytes."""
        if work.name.startswith("moe.experts"):
            return self.shares["experts"]
        if work.cache_bytes:
            return self.shares["cache"]
        return self.shares["head"] if work.name == "head" else self.shares["layers"] if work.weight_bytes else 0.0

    def brings(self, work: Work, rows: int) -> bool:
        """Whether weights come to the card for a product of so many rows; else they are multiplied where they are."""
        return self.brought_from is not None and rows >= self.brought_from and not work.cache_bytes

    def seconds(self, work: Work, rows: int) -> tuple[str, float]:
        """What the part of an operator costs that lies here, and the cause that it counts as."""
        share = self.share(work)
        if self.brings(work, rows):
            return "offload", share * work.weight_bytes * ceil_div(rows, self.micro_batch) / self.pcie_bytes_per_s
        reading = (work.weight_bytes + work.cache_bytes) / self.bytes_per_s
        return "main_memory", share * max(reading, work.flops / self.flops_per_s)


def machine_around(gpu: Gpu, *, bytes_per_s: float | None, cores: int | None) -> tuple[float, float, str]:
    """Bytes/s of main memory and operations/s of the processors around a card, and what is assumed for it.

    Args:
        bytes_per_s: of main memory, as measured; None: not said
        cores: that compute; None: not said
    """
    machine = MACHINES.get(gpu.segment, SERVER)
    rate, count = bytes_per_s or machine.bytes_per_s, cores or machine.cores
    assumed = "" if bytes_per_s and cores else (
        Note(
            "the host is taken for {}: {} cores that read {:.0f} GB/s; --engine-option host-bandwidth=GB/s and "
            "threads=N say otherwise", machine.name, count, rate / 1e9
        )
    )
    return rate, count * CORE_FLOPS, assumed


class Link(Struct, frozen=True):
    """What connects two cards of one node."""

    bytes_per_s: float  # one direction, achieved
    latency_s: float  # of one small collective
    source: str


PATTERNS: Final[dict[str, float]] = {"all-reduce": 2.0, "all-gather": 1.0, "all-to-all": 1.0, "send": 1.0}
"""Collective -> how often (n - 1) / n b crosses a link [ring]."""

LINKS_ACHIEVE: Final = 0.77
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
    pcie = Link(pcie_bytes_per_s(gpu) * LINKS_ACHIEVE, PCIE_LATENCY_S, f"{name} at {LINKS_ACHIEVE:.0%}")
    if not gpu.is_linked or gpu.link_bytes_per_s is None:
        return Links(node_cards, pcie, node_cards, None, pcie)
    rate = gpu.link_bytes_per_s / 2
    whole = Link(rate * LINKS_ACHIEVE, NVLINK_LATENCY_S, f"{gpu.link} at {LINKS_ACHIEVE:.0%} of {rate / 1e9:,.0f} GB/s")
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
        return Note(
            "no {} between the cards, which is sold apart: they talk over {}; link and link_gb_per_s in a "
            "--hardware file say that there is one", gpu.link, pcie_name(gpu)
        ),
    if gpu.link_topology is None:
        return (Note("how {} joins the cards is not known: every group is given all of a card's links", gpu.link),)
    return ()


def link_between_nodes() -> Link:
    """The network between machines, assumed."""
    source = "400 Gb/s between machines for each card (assumed)"
    return Link(BETWEEN_NODES_BYTES_PER_S * LINKS_ACHIEVE, BETWEEN_NODES_LATENCY_S, source)


def collective_s(num_bytes: float, *, ranks: int, pattern: str, link: Link) -> float:
    """Seconds of one collective.

    >>> round(1e6 * collective_s(2**20, ranks=8, pattern="all-reduce", link=Link(346.5e9, 8e-6, "NVLink4")), 1)
    13.3
    """
    if ranks == 1:
        return 0.0
    crossing = 1.0 if pattern == "send" else PATTERNS[pattern] * (ranks - 1) / ranks
    return link.latency_s + crossing * num_bytes / link.bytes_per_s
