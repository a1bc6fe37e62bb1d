"""How fast a machine's processors read its main memory and multiply what they read.

[JEDEC] a channel of DDR moves 8 bytes a transfer: channels x transfers/s x 8 B
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from vramcast.domain.device import Gpu
from vramcast.timing.achieved import Share
from vramcast.timing.work import Work
from vramcast.units import ceil_div

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
        gpu: the card
        bytes_per_s: of main memory, as measured; None: not said
        cores: that compute; None: not said
    """
    machine = MACHINES.get(gpu.segment, SERVER)
    rate, count = bytes_per_s or machine.bytes_per_s, cores or machine.cores
    assumed = "" if bytes_per_s and cores else (
        f"the host is taken for {machine.name}: {count} cores that read {rate / 1e9:.0f} GB/s; --engine-option "
        "host-bandwidth=GB/s and threads=N say otherwise"
    )
    return rate, count * CORE_FLOPS, assumed
