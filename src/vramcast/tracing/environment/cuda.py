"""`torch.cuda` and `torch.accelerator` answer for the simulated cards: native functions, classes, constants.

[matrix] pytorch RELEASE.md, release compatibility matrix
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import torch

from vramcast.tracing.environment.generators import make_generator_class
from vramcast.tracing.environment.graphs import Captures, make_graph_class
from vramcast.tracing.environment.legacy import patch_legacy
from vramcast.tracing.environment.native import Native
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.properties import Properties
from vramcast.tracing.environment.streams import StreamContext, make_streams
from vramcast.tracing.simulation import Simulation

CUDA_VERSION: Final = "13.0"
"""That the wheels of torch 2.13 on PyPI are built with [matrix]."""
CUDNN_VERSION: Final = 91900
"""Of those wheels, as `torch.backends.cudnn.version()` writes it [matrix]."""
NVTX: Final = SimpleNamespace(
    rangePushA=lambda _text: 0, rangePop=lambda: 0, rangeStartA=lambda _text: 0, rangeEnd=lambda _range: None,
    markA=lambda _text: None,
)


def patch_cuda(patches: Patches, simulation: Simulation) -> None:
    """Replace what asks the CUDA library."""
    memory = simulation.memory
    if memory.devices[0].is_cpu:
        return
    native = Native(memory)
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
    stream, event = make_streams(simulation)
    for owner in (torch, torch.cuda, torch.cuda.streams):
        patches.set(owner, "Stream", stream)
        patches.set(owner, "Event", event)

    def context(chosen: Any) -> StreamContext:
        return StreamContext(memory, chosen)

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
