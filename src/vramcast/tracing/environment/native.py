"""The functions of `torch._C` that a CPU build lacks, answered for simulated cards.

torch.cuda's own Python runs on top of them as it is. Statistics: see `statistics`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from vramcast.tracing.environment.snapshots import memory_snapshot
from vramcast.tracing.environment.statistics import nested_statistics
from vramcast.tracing.environment.streams import CUDA
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.rules.blas import handle_workspace_bytes, is_of_blas

CUDNN_BENCHMARK_LIMIT: Final = 10
"""Plans that cuDNN's search tries, as torch starts with [pytorch aten/src/ATen/Context.h `benchmark_limit_cudnn`]."""


class Native:
    """Devices, streams and statistics under their native names."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.fractions: dict[int, float] = {}
        self.benchmark_limit = CUDNN_BENCHMARK_LIMIT

    def table(self) -> Mapping[str, Callable[..., Any]]:
        """Name in `torch._C` -> function."""
        return {
            **self._devices(), **self._streams(), **self._allocator(), **self._accelerator(), **self._blas(),
            **_constants(),
        }

    def count(self) -> int:
        """Cards that the process sees: CUDA_VISIBLE_DEVICES may hide some of those simulated."""
        simulated = len(self._memory.devices)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return simulated
        known = 0
        for entry in visible.split(","):
            text = entry.strip()
            if text.isdecimal() and int(text) >= simulated:
                break  # as the driver reads it: what follows an entry that does not exist is not seen either
            if not text or text.startswith("-"):
                break
            known += 1
        return min(known, simulated)

    def exchange(self, index: int) -> int:
        """Choose a device; the one before. A negative one changes nothing."""
        before = self._memory.current
        if index >= 0:
            self.device(index)
            self._memory.current = index
        return before

    def device(self, index: int | None = None) -> Device:
        """A card by index, None for the current one.

        Raises: RuntimeError, as CUDA does, for one that does not exist
        """
        index = self._memory.current if index is None else index
        if not 0 <= index < self.count():
            raise RuntimeError(f"CUDA error: invalid device ordinal: cuda:{index} of {self.count()} simulated")
        return self._memory.devices[index]

    def _devices(self) -> dict[str, Callable[..., Any]]:
        return {
            "_cuda_getDeviceCount": self.count,
            "_cuda_getDevice": lambda: self._memory.current,
            "_cuda_setDevice": lambda index: self.exchange(index) and None,
            "_cuda_exchangeDevice": self.exchange,
            "_cuda_maybeExchangeDevice": self.exchange,
            "_cuda_synchronize": lambda: self.device().reach(),
            "_cuda_canDeviceAccessPeer": lambda _one, _other: True,
            "_cuda_get_cudnn_benchmark_limit": lambda: self.benchmark_limit,
            "_cuda_set_cudnn_benchmark_limit": self._set_benchmark_limit,
        }

    def _set_benchmark_limit(self, limit: int) -> None:
        self.benchmark_limit = limit

    def _streams(self) -> dict[str, Callable[..., Any]]:
        def choose(stream_id: int, device_index: int, device_type: int = CUDA) -> None:
            self._memory.current = device_index
            self.device(device_index).stream = stream_id

        return {
            "_cuda_getCurrentStream": lambda index: (self.device(index).stream, index, CUDA),
            "_cuda_getDefaultStream": lambda index: (0, index, CUDA),
            "_cuda_getStreamFromExternal": lambda pointer, index: (pointer, index, CUDA),
            "_cuda_getCurrentRawStream": lambda index: self.device(index).stream,
            "_cuda_setStream": choose,
        }

    def _allocator(self) -> dict[str, Callable[..., Any]]:
        pinned = self._memory.pinned
        return {
            "_cuda_memoryStats": lambda index: nested_statistics(self.device(index)),
            "_cuda_resetPeakMemoryStats": lambda index: self.device(index).allocator.reset_peaks(),
            "_cuda_resetAccumulatedMemoryStats": lambda index: self.device(index).forget_totals(),
            "_cuda_emptyCache": self._empty_caches,
            "_cuda_hostMemoryStats": pinned.statistics,
            "_cuda_resetPeakHostMemoryStats": pinned.reset_peaks,
            "_cuda_resetAccumulatedHostMemoryStats": pinned.reset_totals,
            "_host_emptyCache": pinned.empty_cache,
            "_cuda_memorySnapshot": lambda _pool=None: memory_snapshot(self._memory),
            "_cuda_record_memory_history": self._memory.history.record,
            "_cuda_record_memory_history_legacy": self._memory.history.record_legacy,
            "_cuda_allocationTraceback": lambda _pointer: None,
            "_cuda_attach_out_of_memory_observer": self._observe,
            "_cuda_isHistoryEnabled": lambda: self._memory.history.is_on,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_getMemoryFraction": lambda index: self.fractions.get(index, 1.0),
        }

    def _observe(self, observer: Callable[[int, int, int, int], None]) -> None:
        for device in self._memory.devices:
            device.observers.append(observer)

    def _empty_caches(self) -> None:
        for device in self._memory.devices:
            device.empty_cache()

    def _set_fraction(self, fraction: float, index: int) -> None:
        device = self.device(index)
        self.fractions[index] = fraction
        device.limit(fraction)

    def _blas(self) -> dict[str, Callable[..., Any]]:
        def choose(size: int | None) -> None:
            for device in self._memory.devices:
                device.blas_workspace = size

        return {
            "_cuda_getCublasWorkspaceSize": lambda: handle_workspace_bytes(self.device()),
            "_cuda_setCublasWorkspaceSize": choose,
            "_cuda_resetCublasWorkspaceSize": lambda: choose(None),
            "_cuda_clearCublasWorkspaces": self._clear_workspaces,
        }

    def _clear_workspaces(self) -> None:
        for device in self._memory.devices:
            for place in [place for place in device.workspaces if is_of_blas(place)]:
                device.give(device.workspaces.pop(place))

    def _accelerator(self) -> dict[str, Callable[..., Any]]:
        def stream(index: int) -> Any:
            return torch.cuda.current_stream(index)

        return {
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_getDeviceIndex": lambda: self._memory.current,
            "_accelerator_setDeviceIndex": lambda index: self.exchange(index) and None,
            "_accelerator_exchangeDevice": self.exchange,
            "_accelerator_maybeExchangeDevice": self.exchange,
            "_accelerator_getStream": stream,
            "_accelerator_setStream": lambda chosen: torch.cuda.set_stream(chosen),
            "_accelerator_synchronizeDevice": lambda index: self.device(index).reach(),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceStats": lambda index: nested_statistics(self.device(index)),
            "_accelerator_resetPeakStats": lambda index: self.device(index).allocator.reset_peaks(),
            "_accelerator_resetAccumulatedStats": lambda index: self.device(index).forget_totals(),
            "_accelerator_emptyCache": self._empty_caches,
            "_accelerator_emptyHostCache": self._memory.pinned.empty_cache,
            "_accelerator_getMemoryInfo": lambda index: self.device(index).memory_info(),
        }


def _constants() -> dict[str, Callable[..., Any]]:
    """What is the same whatever runs."""
    return {
        "_cuda_init": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_sleep": lambda _cycles: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_set_sync_debug_mode": lambda _mode: None,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getArchFlags": lambda: "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
        "_cuda_getMemoryMetadata": lambda: "",
        "_cuda_setMemoryMetadata": lambda _text: None,
        "_cuda_getCurrentBlasHandle": lambda: 0,
        "_cuda_getCurrentSolverHandle": lambda: 0,
        "_is_flash_attention_available": lambda: True,
    }
