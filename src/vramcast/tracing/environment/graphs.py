"""CUDA graphs: what is captured runs once, in a private pool that the graph keeps.

A replay takes no memory: it runs in that of the capture. `torch.cuda.graph` and `make_graphed_callables` are torch's.
Left out: what the driver keeps for a graph itself.
[graph] pytorch aten/src/ATen/cuda/CUDAGraph.cpp: capture_begin, capture_end, reset
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import torch

from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.simulation import Simulation

NO_GRAPH: Final = "what the driver keeps for CUDA graphs themselves is not counted"
PoolHandle = tuple[int, int]


class Captures:
    """The captures of a run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._numbers: Iterator[int] = count(1)
        self._under_way: list[int] = []  # numbers of pools

    @property
    def memory(self) -> Memory:
        """On which captures run."""
        return self._simulation.memory

    def is_under_way(self) -> bool:
        """`torch.cuda.is_current_stream_capturing`."""
        return bool(self._under_way)

    def new_pool(self) -> PoolHandle:
        """`torch.cuda.graph_pool_handle`."""
        return 0, next(self._numbers)

    def begin(self, pool: PoolHandle) -> Device:
        """Requests go to a pool from now on; on which device.

        Raises: RuntimeError, as CUDA does, within another capture
        """
        if self._under_way:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._simulation.assumptions.note(NO_GRAPH, self._simulation.origins.place())
        device = self.memory.devices[self.memory.current]
        device.begin_pool(pool[1])
        self._under_way.append(pool[1])
        return device

    def end(self, device: Device, pool: PoolHandle) -> None:
        """The capture is over."""
        device.end_pool(pool[1])
        self._under_way.remove(pool[1])


def make_graph_class(captures: Captures) -> type:
    """What stands for `torch.cuda.CUDAGraph`."""

    class CUDAGraph:
        """A graph whose replay does nothing: the capture was the run."""

        def __init__(self, *_given: Any, **_named: Any) -> None:
            self._pool = captures.new_pool()
            self._device: Device | None = None

        def capture_begin(self, pool: Any = None, *_given: Any, **_named: Any) -> None:
            if pool is not None:
                self._pool = tuple(pool)
            self._device = captures.begin(self._pool)

        def capture_end(self) -> None:
            assert self._device is not None
            captures.end(self._device, self._pool)

        def instantiate(self) -> None:
            """Nothing to make."""

        def replay(self) -> None:
            """Uses the memory of the capture."""

        def reset(self) -> None:
            device, self._device = self._device, None
            if device is not None:
                device.release_pool(self._pool[1])

        __del__ = reset

        def pool(self) -> Any:
            return torch.cuda._POOL_HANDLE(self._pool)

        def enable_debug_mode(self) -> None:
            """Nothing to print."""

        def debug_dump(self, *_given: Any, **_named: Any) -> None:
            """Nothing to print."""

    return CUDAGraph
