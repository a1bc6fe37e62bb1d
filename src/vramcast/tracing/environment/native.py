"""The functions of `torch._C` that a CPU build lacks, answered for simulated cards.

torch.cuda's own Python runs on top of them as it is. Statistics come in the nested form that torch flattens: peaks of
the whole are those of the allocator; peaks of counts and of the two pools are not kept, the present values stand for
them. Snapshots hold segments, blocks and the history that was asked for, with Python stacks.
[snapshot] pytorch torch/csrc/cuda/memory_snapshot.cpp
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from vramcast.allocator.settings import round_size
from vramcast.allocator.views import PARTS
from vramcast.domain.snapshot import COUNTS_EVENTS, OWN_KEY, PREDICTED, Action, BlockView, Frame, SegmentView, Snapshot
from vramcast.tracing.environment.streams import CUDA
from vramcast.tracing.memory import LEVELS, Device, Memory
from vramcast.tracing.origins import without_start
from vramcast.tracing.rules.blas import handle_workspace_bytes, is_of_blas
from vramcast.tracing.tape import bare, recording

COUNTS: Final = ("allocation", "segment", "active", "inactive_split")
SIZES: Final = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")


def nested_statistics(device: Device) -> dict[str, Any]:
    """What `torch._C._cuda_memoryStats` returns."""
    allocator = device.allocator
    now = allocator.statistics()
    peaks = {
        "allocated_bytes": allocator.peak_allocated_bytes, "reserved_bytes": allocator.peak_reserved_bytes,
        "requested_bytes": allocator.peak_requested_bytes, "active_bytes": allocator.peak_allocated_bytes,
    }
    totals = {"allocation": _counted(device), "allocated_bytes": _allocated(device)}
    found: dict[str, Any] = {}
    for name in (*COUNTS, *SIZES):
        found[name] = {part: _figures(getattr(getattr(now, part), name)) for part in PARTS}
        whole = found[name]["all"]
        whole["peak"] = max(whole["current"], peaks.get(name, 0))
        if name in totals:
            whole["allocated"] = totals[name]
            whole["freed"] = totals[name] - whole["current"]
    found["oversize_allocations"] = _figures(0)
    found["oversize_segments"] = _figures(0)
    return {
        **found, "num_alloc_retries": allocator.num_alloc_retries, "num_ooms": allocator.num_ooms,
        "num_sync_all_streams": 0, "num_device_alloc": now.all.segment, "num_device_free": 0, "max_split_size": -1,
    }


def _figures(current: int) -> dict[str, int]:
    return {"current": current, "peak": current, "allocated": current, "freed": 0}


def _counted(device: Device) -> int:
    return len(device.tape.blocks) - device.counted_from


def _allocated(device: Device) -> int:
    return sum(round_size(block.num_bytes) for block in device.tape.blocks[device.counted_from :])


STATES: Final = {(True, False): "inactive", (False, True): "active_awaiting_free", (False, False): "active_allocated"}
"""(is free, awaits its free) -> state"""
OWN: Final = {"format": PREDICTED, "remarks": [COUNTS_EVENTS]}
"""What torch has no key for, and its viewers pass over: that nothing of this was measured."""
Frames = list[dict[str, Any]]


def memory_snapshot(memory: Memory) -> dict[str, Any]:
    """What `torch._C._cuda_memorySnapshot` returns: segments, and the events that the script asked to be kept."""
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    history = memory.history
    for index, device in enumerate(memory.devices):
        recorded = recording(
            device.tape, stacks=stacks_of(device), labels=[""] * len(device.tape.blocks),
            name=f"cuda:{index}", settings=device.allocator.settings, capacity_bytes=device.capacity_bytes,
            first=history.first(index), has_stack=partial(history.has_stack, index),
        )
        stacks = [[_frame(frame) for frame in stack] for stack in recorded.stacks]
        view = recorded.devices[0]
        segments += [_segment(segment, index, stacks) for segment in view.segments]
        events = _events(recorded, stacks if history.level >= LEVELS["alloc"] else [[] for _ in stacks])
        kept = [event for event in events if event["action"] not in history.skipped]
        traces.append(kept[max(0, len(kept) - history.most_entries) :])
    history.is_awaited = False
    return {
        "segments": segments, "device_traces": traces, "external_annotations": [],
        "allocator_settings": _settings(memory.devices[0]), OWN_KEY: OWN,
    }


def stacks_of(device: Device) -> tuple[tuple[Frame, ...], ...]:
    """All stacks of a run as torch records them."""
    return tuple(tuple(map(bare, without_start(stack))) for stack in device.origins.stacks.frames())


def _frame(frame: Frame) -> dict[str, Any]:
    return {"name": frame.name, "filename": frame.filename, "line": frame.line}


def _segment(segment: SegmentView, device: int, stacks: list[Frames]) -> dict[str, Any]:
    live = [block for block in segment.blocks if not block.is_free]
    return {
        "device": device, "address": segment.address, "total_size": segment.size_bytes,
        "allocated_size": sum(block.size_bytes for block in live if not block.awaits_free),
        "active_size": sum(block.size_bytes for block in live),
        "requested_size": sum(block.requested_bytes for block in live),
        "stream": segment.stream, "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": segment.pool, "is_expandable": segment.is_expandable, "frames": [],
        "blocks": [_block(block, stacks) for block in segment.blocks],
    }


def _block(block: BlockView, stacks: list[Frames]) -> dict[str, Any]:
    return {
        "address": block.address, "size": block.size_bytes, "requested_size": block.requested_bytes,
        "state": STATES[block.is_free, block.awaits_free], "frames": stacks[block.stack],
    }


def _events(recorded: Snapshot, stacks: list[Frames]) -> list[dict[str, Any]]:
    """The events as torch writes them; their times count events."""
    trace, pools = recorded.devices[0].trace, recorded.pools
    return [
        {
            "action": Action(action).name.lower(), "device_free" if action == Action.OOM else "addr": address,
            "size": trace.sizes[at], "stream": trace.streams[at], "time_us": trace.times_us[at],
            "compile_context": "N/A", "user_metadata": "", "pool_id": pools[trace.pools[at]],
            "frames": stacks[trace.stacks[at]],
        }
        for at, (action, address) in enumerate(zip(trace.actions, trace.addresses, strict=True))
    ]


def _settings(device: Device) -> dict[str, Any]:
    settings = device.allocator.settings
    return {"expandable_segments": settings.expandable_segments, "max_split_size": settings.max_split_size_mb or -1}


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
