"""Streams, events and CUDA graphs of simulated cards.

Nothing runs; what matters is which stream a block belongs to, and when the host waits: then blocks that other streams
used are free again. The card is taken to be slower than the host, and to do its work in the order in which it is asked
for: waiting for an event waits for all that was asked of the card before it. What is captured runs once, in a private
pool that the graph keeps; a replay takes no memory: it runs in that of the capture. `torch.cuda.graph` and
`make_graphed_callables` are torch's.
Left out: what waits for what on the card itself, and what the driver keeps for a graph itself.
[graph] pytorch aten/src/ATen/cuda/CUDAGraph.cpp: capture_begin, capture_end, reset
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import torch

from vramcast.errors import Note
from vramcast.tracing.memory import Device, Memory
from vramcast.tracing.simulation import Simulation

CUDA: Final = 1  # c10::DeviceType::CUDA
ELAPSED_MS: Final = 1.0  # between any two events [ms]
NO_TIME: Final = Note("{:g} ms between events: time is not simulated", ELAPSED_MS)


def make_streams(simulation: Simulation) -> tuple[type, type]:
    """The classes that stand for `torch.Stream` and `torch.Event` and their namesakes of torch.cuda."""
    made, memory = count(1), simulation.memory

    class Stream:
        """A stream of a simulated card."""

        device_type = CUDA
        priority = 0

        def __init__(
            self, device: Any = None, priority: int = 0, *, stream_id: int | None = None,
            device_index: int | None = None, **_named: Any,
        ) -> None:
            index = torch.cuda._utils._get_device_index(device, True) if device_index is None else device_index
            self.device_index = index
            self.stream_id = next(made) if stream_id is None else stream_id
            self.priority = priority
            self._entered: list[StreamContext] = []

        @property
        def device(self) -> torch.device:
            return torch.device("cuda", self.device_index)

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        native_handle = cuda_stream

        def wait_event(self, event: Any) -> None:
            """Nothing to wait for."""

        def wait_stream(self, stream: Any) -> None:
            """Nothing to wait for."""

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def synchronize(self) -> None:
            memory.devices[self.device_index].reach()

        def __enter__(self) -> Stream:
            self._entered.append(StreamContext(memory, self))
            self._entered[-1].__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._entered.pop().__exit__(*error)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and _identity(self) == _identity(other)

        def __hash__(self) -> int:
            return hash(_identity(self))

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"

    class Event:
        """An event: a moment in the order of what was asked of the card."""

        def __init__(self, *_given: Any, **_named: Any) -> None:
            self.device = torch.device("cuda", memory.current)
            self.event_id = self.cuda_event = 0
            self._moment = 0  # events of the device's tape before it

        def record(self, stream: Any = None) -> None:
            if stream is not None:
                self.device = stream.device
            self._moment = len(memory.devices[self.device.index].tape.events)

        def wait(self, stream: Any = None) -> None:
            """Nothing to wait for."""

        def query(self) -> bool:
            return True

        def elapsed_time(self, end_event: Any) -> float:
            simulation.assumptions.note(NO_TIME, simulation.origins.place())
            return ELAPSED_MS

        def synchronize(self) -> None:
            memory.devices[self.device.index].reach(self._moment)

    return Stream, Event


class StreamContext:
    """`torch.cuda.stream(...)`: the stream's device keeps allocating on it until the end; None changes nothing."""

    def __init__(self, memory: Memory, stream: Any) -> None:
        self._memory, self.stream = memory, stream
        self._before = (0, 0)

    def __enter__(self) -> None:
        if self.stream is not None:
            device = self._memory.devices[self.stream.device_index]
            self._before = self._memory.current, device.stream
            self._memory.current, device.stream = self.stream.device_index, self.stream.stream_id

    def __exit__(self, *_error: Any) -> None:
        if self.stream is not None:
            self._memory.current, self._memory.devices[self.stream.device_index].stream = self._before


def _identity(stream: Any) -> tuple[int, int]:
    return stream.device_index, stream.stream_id


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
