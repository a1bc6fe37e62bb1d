"""`torch.cuda` and `torch.accelerator` answer for the simulated cards: classes, constants, generators, properties.

[guide] CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
[generator] pytorch aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: `set_current_seed`, `get_state`, `set_state`
[matrix] pytorch RELEASE.md, release compatibility matrix
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch

from vramcast.catalogue.gpus import multiprocessors
from vramcast.domain.device import Gpu
from vramcast.errors import Unsupported
from vramcast.tracing.environment.native import Native
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.streams import Captures, StreamContext, make_graph_class, make_streams
from vramcast.tracing.environment.tensor_data import patch_legacy
from vramcast.tracing.memory import HOST, Memory
from vramcast.tracing.simulation import Simulation
from vramcast.units import KIB, MIB

WARP_SIZE: Final = 32
SHARED_PER_BLOCK_BYTES: Final = 48 * KIB  # without opting in, on every capability [guide]
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
        self.max_threads_per_block = 1024  # on every capability [guide]
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
        raise Unsupported("{} of {} is not known here; choose a card whose {} is known", name, self._gpu.name, name)

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
        raise Unsupported("{} has no compute capability, which torch.cuda asks for; choose an NVIDIA card", gpu.name)
    return int(digits[0]), int(digits[1])


def make_generator_class(real: type, memory: Memory) -> Any:
    """What stands for `torch.Generator`: also makes generators of cards; real ones count as instances."""

    class Meta(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Generator(real, metaclass=Meta):
        """A generator whose device may be a simulated card."""

        def __new__(cls, device: Any = "cpu", index: int | None = None) -> Any:
            place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            if place.type != "cuda":
                return real(place)
            made = super().__new__(cls)
            number = index if index is not None else place.index
            made.simulated = torch.device("cuda", memory.current if number is None else number)
            made.offset = 0
            if made.simulated.index < len(memory.devices):  # operators see the generator within, not this object
                memory.devices[made.simulated.index].generators[made._cdata] = made
            return made

        @property
        def device(self) -> Any:
            return self.simulated

        def manual_seed(self, seed: int) -> Any:
            self.offset = 0
            return super().manual_seed(seed)

        def seed(self) -> int:
            self.offset = 0
            return int(super().seed())

        def get_state(self) -> torch.Tensor:
            """Seed and offset, eight bytes each [generator]."""
            seed = self.initial_seed()
            numbers = [seed - (seed >> 63 << 64), self.offset]
            return torch.tensor(numbers, dtype=torch.int64, device=HOST).view(torch.uint8)

        def set_state(self, state: torch.Tensor) -> Any:
            seed, offset = state.view(torch.int64).tolist()
            self.manual_seed(seed % (1 << 64))
            self.offset = offset
            return self

        def set_offset(self, offset: int) -> None:
            self.offset = offset

        def get_offset(self) -> int:
            return int(self.offset)

    return Generator


CUDA_VERSION: Final = "13.0"  # that the wheels of torch 2.13 on PyPI are built with [matrix]
CUDNN_VERSION: Final = 91900  # of those wheels, as `torch.backends.cudnn.version()` writes it [matrix]
NVTX: Final = SimpleNamespace(
    rangePushA=lambda _text: 0, rangePop=lambda: 0, rangeStartA=lambda _text: 0, rangeEnd=lambda _range: None,
    markA=lambda _text: None,
)


def patch_cuda(patches: Patches, simulation: Simulation) -> None:
    """Replace what asks the CUDA library."""
    native = Native(simulation.memory)
    for name, function in native.table().items():
        patches.set(torch._C, name, function)
    patches.set(torch._C, "_has_cuda", True)
    patches.set(torch._C, "_has_cudnn", True)
    patches.set(torch.version, "cuda", CUDA_VERSION)
    patches.set(torch.backends.cudnn, "version", lambda: CUDNN_VERSION)
    patches.set(torch.backends.cudnn, "_init", lambda: True)
    _patch_module(patches, simulation, native)
    _patch_streams(patches, simulation)
    patch_legacy(patches)


def _patch_module(patches: Patches, simulation: Simulation, native: Native) -> None:
    cuda = torch.cuda
    generators = make_generator_class(torch.Generator, simulation.memory)
    captures = Captures(simulation)
    properties = [Properties(device.gpu, index) for index, device in enumerate(simulation.memory.devices) if device.gpu]

    def properties_of(device: Any = None) -> Properties:
        index = cuda._utils._get_device_index(device, True)
        native.device(index)
        return properties[index]

    answers: dict[str, Any] = {
        "_initialized": True, "_cached_device_count": None, "_queued_calls": [],
        "_exchange_device": native.exchange, "_maybe_exchange_device": native.exchange,
        "_is_in_bad_fork": lambda: False, "_device_count_nvml": lambda: -1, "_nvml_based_avail": lambda: False,
        "get_device_properties": properties_of,
        "get_device_name": lambda device=None: properties_of(device).name,
        "get_device_capability": lambda device=None: (properties_of(device).major, properties_of(device).minor),
        "cudart": lambda: _runtime(native),
        "default_generators": tuple(generators("cuda", index) for index in range(len(properties))),
        "CUDAGraph": make_graph_class(captures), "is_current_stream_capturing": captures.is_under_way,
    }
    for name, answer in answers.items():
        patches.set(cuda, name, answer)
    patches.set(cuda.graphs, "CUDAGraph", cuda.CUDAGraph)
    patches.set(cuda.graphs, "_graph_pool_handle", captures.new_pool)
    patches.set(cuda.graphs, "_cuda_isCurrentStreamCapturing", captures.is_under_way)
    patches.set(cuda.graphs.graph, "default_capture_stream", None)  # made by the first capture, kept by the class
    patches.set(cuda.nvtx, "_nvtx", NVTX)
    patches.set(torch, "Generator", generators)


def _patch_streams(patches: Patches, simulation: Simulation) -> None:
    memory = simulation.memory
    stream_class, event = make_streams(simulation)
    for owner in (torch, torch.cuda, torch.cuda.streams):
        patches.set(owner, "Stream", stream_class)
        patches.set(owner, "Event", event)

    def context(stream: Any) -> StreamContext:
        return StreamContext(memory, stream)

    patches.set(torch.cuda, "stream", context)
    patches.set(torch.cuda, "StreamContext", context)

    def record_stream(self: torch.Tensor, used: Any) -> None:
        resident = memory.of(self)
        if resident is not None and resident.block is not None:
            resident.device.use(resident.block, used.stream_id)

    patches.set(torch.Tensor, "record_stream", record_stream)


def _runtime(native: Native) -> Any:
    """What `torch.cuda.cudart()` is asked for."""
    return SimpleNamespace(
        cudaMemGetInfo=lambda index: native.device(index).memory_info(),
        cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0,
        cudaHostRegister=lambda _pointer, _size, _flags: 0, cudaHostUnregister=lambda _pointer: 0,
        cudaGetErrorString=lambda _code: "no error", cudaError=SimpleNamespace(success=0),
    )
