"""What `torch.cuda.get_device_properties` answers for a card of the catalogue.

[guide] CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
"""

from __future__ import annotations

import uuid
from typing import Any, Final, NamedTuple

from vramcast.catalogue.multiprocessors import multiprocessors
from vramcast.domain.device import Gpu
from vramcast.errors import Unsupported
from vramcast.units import KIB, MIB

WARP_SIZE: Final = 32
SHARED_PER_BLOCK_BYTES: Final = 48 * KIB
"""Without opting in, on every capability [guide]."""
_NAMESPACE: Final = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")


class Limits(NamedTuple):
    """Of one multiprocessor, by compute capability [guide]."""

    threads: int
    shared_bytes: int
    shared_per_block_bytes: int  # the most a block can opt in to


LIMITS: Final[dict[int, Limits]] = {
    60: Limits(2048, 64 * KIB, 48 * KIB),
    61: Limits(2048, 96 * KIB, 48 * KIB),
    70: Limits(2048, 96 * KIB, 96 * KIB),
    75: Limits(1024, 64 * KIB, 64 * KIB),
    80: Limits(2048, 164 * KIB, 163 * KIB),
    86: Limits(1536, 100 * KIB, 99 * KIB),
    89: Limits(1536, 100 * KIB, 99 * KIB),
    90: Limits(2048, 228 * KIB, 227 * KIB),
    100: Limits(2048, 228 * KIB, 227 * KIB),
    103: Limits(2048, 228 * KIB, 227 * KIB),
    120: Limits(1536, 100 * KIB, 99 * KIB),
}


class Properties:
    """Has the attributes of torch's `_CudaDeviceProperties` as far as they are known.

    Left out, as no catalogue has them: clock rates, bus width, caches, PCI addresses.
    """

    def __init__(self, gpu: Gpu, index: int) -> None:
        self._gpu = gpu
        self.name = device_name(gpu)
        self.major, self.minor = capability(gpu)
        self.total_memory = gpu.visible_bytes
        self.warp_size = WARP_SIZE
        self.is_integrated = self.is_multi_gpu_board = 0
        self.uuid = uuid.uuid5(_NAMESPACE, f"{gpu.name}:{index}")
        self.gcnArchName = self.name
        self.shared_memory_per_block = SHARED_PER_BLOCK_BYTES
        self.regs_per_multiprocessor = 65536  # on every capability since 5.0 [guide]
        limits = LIMITS.get(gpu.sm or 0)
        if limits is not None:
            self.max_threads_per_multi_processor = limits.threads
            self.shared_memory_per_multiprocessor = limits.shared_bytes
            self.shared_memory_per_block_optin = limits.shared_per_block_bytes
        count = multiprocessors(gpu.name)
        if count is not None:
            self.multi_processor_count = count

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Unsupported(f"{name} of {self._gpu.name} is not known here; choose a card whose {name} is known")

    def __repr__(self) -> str:
        known = self.__dict__
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // MIB}MB, "
            f"multi_processor_count={known.get('multi_processor_count', 'unknown')}, uuid={self.uuid})"
        )


def device_name(gpu: Gpu) -> str:
    """As the driver writes it: the vendor, then the product.

    >>> device_name(Gpu(name="x", vendor="NVIDIA", arch="Ampere", product="A100 SXM4 80GB", visible_bytes=1))
    'NVIDIA A100-SXM4-80GB'
    """
    product = gpu.product or gpu.name
    if product.startswith(("A100", "A800")):
        product = product.replace(" ", "-")
    return product if product.startswith((gpu.vendor, "Tesla")) else f"{gpu.vendor} {product}"


def capability(gpu: Gpu) -> tuple[int, int]:
    """Major and minor compute capability; of other vendors' cards, the first two digits of their architecture.

    Raises: Unsupported where there is nothing like it
    """
    text = gpu.compute_capability or ""
    major, dot, minor = text.partition(".")
    if dot:
        return int(major), int(minor)
    digits = "".join(filter(str.isdigit, text))
    if len(digits) < 2:
        raise Unsupported(f"{gpu.name} has no compute capability, which torch.cuda asks for; choose an NVIDIA card")
    return int(digits[0]), int(digits[1])
