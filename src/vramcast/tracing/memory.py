"""Where every storage without data lives, and what its device's allocator did for it; the history a script asked for.

[history] pytorch c10/cuda/CUDACachingAllocator.cpp, recordHistory and record_trace; torch/csrc/cuda/memory_snapshot.cpp
A freed block is kept for requests of its size. Leaves out that a block waits for the copies which use it: they are
taken to be over; and small pinned memory that operators take inside, as `.item()` does.
[pinned] pytorch 2.13 aten/src/ATen/core/CachingHostAllocator.h, CachingHostAllocatorImpl and HostStats
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Literal

import torch

from vramcast.allocator import Allocator, DeviceOutOfMemory, Settings
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES, Gpu
from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec
from vramcast.estimate.host_memory import power_of_two
from vramcast.timing.roofline import LAUNCH_QUEUE, Operation
from vramcast.tracing.origins import Origins
from vramcast.tracing.tape import STEP, Action, Block, Tape

META, HOST = torch.device("meta"), torch.device("cpu")

Context = Literal["state", "alloc", "all"]

WITHOUT_END: Final = 1 << 62
LEVELS: Final[dict[Context | None, int]] = {None: 0, "state": 1, "alloc": 2, "all": 3}
"""Which stacks are kept: of live blocks, of allocations among the events, of frees as well."""


class History:
    """Of all cards of a process; switched on and off by its script. Positions count events of a card's tape."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices = tuple(devices)
        self._since: list[int] | None = None  # of each card; None while it is off
        self._framed: list[list[tuple[int, int]]] = [[] for _ in self._devices]  # spans in which stacks were kept
        self.level = 0
        self.most_entries = WITHOUT_END
        self.skipped: frozenset[str] = frozenset()
        self.is_awaited = False  # it is on, and no snapshot has been taken since

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def record(
        self, enabled: str | None, context: Context | None, _stacks: str, most_entries: int, clear: bool = False,
        _compile_context: bool = False, _annotations: bool = False, skipped: Collection[str] = (),
    ) -> None:
        """`torch._C._cuda_record_memory_history`."""
        self._set(enabled is not None, LEVELS[context], most_entries if enabled == "all" else 1, clear, skipped)

    def record_legacy(
        self, enabled: bool, with_stacks: bool, most_entries: int, with_stacks_of_events: bool, _cpp: bool = False,
        clear: bool = False, _compile_context: bool = False, _annotations: bool = False,
        skipped: Collection[str] = (),
    ) -> None:
        """`torch._C._cuda_record_memory_history_legacy`."""
        level = 3 if with_stacks_of_events else int(with_stacks)
        self._set(enabled, level, most_entries, clear, skipped)

    def _set(self, on: bool, level: int, most_entries: int, clear: bool, skipped: Collection[str]) -> None:
        now = [len(device.tape.events) for device in self._devices]
        if self.is_on and self.level:
            for spans, position in zip(self._framed, now, strict=True):
                spans[-1] = (spans[-1][0], position)
        if on and level:
            for spans, position in zip(self._framed, now, strict=True):
                spans.append((position, WITHOUT_END))
        if not on:
            self._since = None  # and what was kept is gone
        elif self._since is None or clear:
            self._since = now
        self.level, self.most_entries, self.skipped = level if on else 0, most_entries, frozenset(skipped)
        self.is_awaited = on
        for device in self._devices:
            device.keeps_frees = self.level == LEVELS["all"]

    def first(self, device: int) -> int:
        """Position of the first event that is kept; without end where none is."""
        return WITHOUT_END if self._since is None else self._since[device]

    def has_stack(self, device: int, position: int) -> bool:
        """Whether the stack of an allocation there was kept."""
        return any(start <= position < end for start, end in self._framed[device])


class Device:
    """A simulated device: its allocator, driven live, and the tape of what it was asked."""

    def __init__(
        self, torch_device: torch.device, *, origins: Origins, gpu: Gpu | None = None, settings: Settings | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        """Holds nothing. gpu: None for the host; capacity: what the driver can give, None: without end [bytes]."""
        self.torch_device, self.gpu, self.origins = torch_device, gpu, origins
        self.is_cpu = torch_device.type == "cpu"
        self.allocator = Allocator(
            settings=settings or Settings(), capacity_bytes=capacity_bytes,
            total_bytes=gpu.visible_bytes if gpu and capacity_bytes is not None else None,
        )
        self.capacity_bytes = capacity_bytes
        self.counted_from = 0  # blocks before do not count in the totals that a script reads
        self.tape = Tape()
        self.stream = 0  # that operators run on now
        self.workspaces: dict[object, Block] = {}
        self.blas_workspace: int | None = None  # as a script sets it [bytes]
        self.generators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by `_cdata`
        self.observers: list[Callable[[int, int, int, int], None]] = []  # of requests that find no room
        self.keeps_frees = False  # the script wants the stacks of frees in its history
        self.communicators: set[str] = set()  # process groups of more than one rank that have communicated
        self._has_uses = False
        self._busy = False
        self._deferred: list[Block] = []
        self._waiting: deque[tuple[Block, int]] = deque()  # freed, but in use on other streams; since which event

    @property
    def sm(self) -> int:
        """Compute capability x 10; 0 on the host."""
        return (self.gpu.sm or 0) if self.gpu else 0

    def take(self, num_bytes: int, operator: str, *, category: Category | None = None, name: str = "") -> Block | None:
        """Allocate; None for zero bytes.

        Raises: torch.OutOfMemoryError with torch's own words, where a capacity is enforced
        """
        if num_bytes <= 0:
            return None
        if self._waiting:
            self.reach(len(self.tape.events) - LAUNCH_QUEUE)  # counted in allocations and frees
        origin = self.origins.now()
        self._busy = True  # a collection of cycles may free blocks at any moment, also within the allocator
        try:
            handle = self.allocator.allocate(num_bytes, self.stream)
        except DeviceOutOfMemory as error:
            self.tape.refuse(num_bytes, self.stream, origin)
            self._tell_observers(num_bytes)
            text = error.torch_message(self.allocator.settings.version, device=self.torch_device.index)
            raise torch.OutOfMemoryError(text) from error
        finally:
            self._busy = False
        block = self.tape.add(num_bytes, self.stream, operator, origin)
        block.handle, block.category, block.name = handle, category, name
        if self._deferred:
            self._catch_up()
        return block

    def _tell_observers(self, num_bytes: int) -> None:
        """As torch calls them: device, bytes asked for, memory of the card, and what is free of it."""
        for observer in self.observers:
            observer(self.torch_device.index, num_bytes, self.capacity_bytes or 0, self.memory_info()[0])

    def give(self, block: Block) -> None:
        if self._busy:
            self._deferred.append(block)
            return
        self._busy = True
        if self.keeps_frees:
            self.tape.freed_at[block.index] = self.origins.here()
        self.tape.end(block)
        self.allocator.free(block.handle)
        if self._has_uses and self.allocator.awaits_free(block.handle):
            self._waiting.append((block, len(self.tape.events)))
        self._busy = False
        if self._deferred:
            self._catch_up()

    def use(self, block: Block, stream: int) -> None:
        """Another stream uses the block: `Tensor.record_stream`."""
        self._has_uses = True
        self.allocator.record_stream(block.handle, stream)
        self.tape.tell(Action.USE, block=block.index, number=stream)

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`."""
        self.allocator.empty_cache()
        self.tape.tell(Action.EMPTY_CACHE)

    def begin_pool(self, number: int) -> None:
        """Requests go to a private pool from now on; see Allocator.begin_pool."""
        self.allocator.begin_pool((0, number))
        self.tape.tell(Action.BEGIN_POOL, number=number)

    def end_pool(self, number: int) -> None:
        """They go where they went before; the pool keeps its memory."""
        self.allocator.end_pool((0, number))
        self.tape.tell(Action.END_POOL, number=number)

    def release_pool(self, number: int) -> None:
        """One user of a pool less; without any, what is free in it is given back with the cache."""
        self.allocator.release_pool((0, number))
        self.tape.tell(Action.RELEASE_POOL, number=number)

    def limit(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`; without an enforced capacity nothing is limited."""
        if self.capacity_bytes is not None:
            self.allocator.limit(fraction)

    def memory_info(self) -> tuple[int, int]:
        """What the driver says of the card: free and total [bytes]."""
        total = self.gpu.visible_bytes if self.gpu else 0
        context = (self.gpu.context_bytes if self.gpu else None) or FALLBACK_CONTEXT_BYTES
        return max(0, total - context - self.allocator.reserved_bytes), total

    def forget_totals(self) -> None:
        """`torch.cuda.reset_accumulated_memory_stats`."""
        self.counted_from = len(self.tape.blocks)

    def wait(self) -> None:
        """The host waits until the card has done what it was given."""
        phase, module = self.origins.doing()
        self.tape.ran(Operation("wait", phase, module))

    def reach(self, moment: int | None = None) -> None:
        """The host waited for the device: blocks freed before, which other streams had used, are free now.

        What was waited for are so many events of the tape, by default all; every stream is taken to be as far.
        """
        waiting = self._waiting
        while waiting and (moment is None or waiting[0][1] <= moment):
            block, _ = waiting.popleft()
            if self.allocator.awaits_free(block.handle):
                self.allocator.complete(block.handle)
                self.tape.tell(Action.COMPLETE, block=block.index)

    def _catch_up(self) -> None:
        while self._deferred:
            self.give(self._deferred.pop(0))


class Resident:
    """A storage without data. On the host it has no block; `twin` holds its values where they are known."""

    __slots__ = ("block", "device", "operator", "ref", "twin")

    def __init__(self, device: Device, block: Block | None, ref: _Ref, operator: str) -> None:
        self.device, self.block, self.ref = device, block, ref
        self.operator = operator  # that made it; of a copy to the host, that of the original
        self.twin: torch.UntypedStorage | None = None


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows the key of its storage."""

    __slots__ = ("key",)
    key: int


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """A tensor's storage; of what torch.func wraps, that of the tensor within."""
    while _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return sparse_parts(tensor)[1].untyped_storage()
    except ValueError:  # what a lazy module holds until it is called lets nobody ask
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.untyped_storage()


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a sparse tensor, which has no storage of its own.

    Raises: InvalidSpec for other layouts
    """
    if tensor.layout is not torch.sparse_coo:
        raise InvalidSpec(
            "tensors of layout {} are not simulated; use torch.sparse_coo or dense tensors", tensor.layout
        )
    return tensor._indices(), tensor._values()


_is_wrapped: Final = torch._C._functorch.is_functorch_wrapped_tensor
_unwrapped: Final = torch._C._functorch.get_unwrapped


class Memory:
    """All devices of a simulated process and the storages on them."""

    def __init__(self, devices: tuple[Device, ...], host: Device) -> None:
        """The cards by index, and main memory: simulated storages there are known but not counted."""
        self.devices, self.host = devices, host
        self.pinned = Pinned()
        self.history = History(devices)
        self.current = 0  # index of the device that `torch.cuda.set_device` chose
        self.residents: dict[int, Resident] = {}  # key of a storage -> where it is
        self._died: Final = self._remove

    def of(self, tensor: torch.Tensor) -> Resident | None:
        """Where a tensor lives, None if it has real data or is the user's own meta tensor."""
        return self.residents.get(storage_of(tensor)._cdata)

    def card_of(self, tensor: torch.Tensor) -> Device | None:
        """The card that a tensor lives on; None for one of the host, real or simulated, and for the user's own."""
        resident = self.of(tensor)
        return None if resident is None or resident.device is self.host else resident.device

    def adopt(self, tensor: torch.Tensor, device: Device, operator: str) -> Resident:
        """Give a tensor's storage a place, unless it has one: then it is a view or written in place."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            indices, values = sparse_parts(tensor)
            self.adopt(indices, device, operator)
            return self.adopt(values, device, operator)
        key = storage._cdata
        resident = self.residents.get(key)
        if resident is None:
            block = None if device is self.host else device.take(storage.nbytes(), operator)
            ref = _Ref(storage, self._died)
            ref.key = key
            resident = self.residents[key] = Resident(device, block, ref, operator)
        return resident

    def resize(self, storage: torch.UntypedStorage, operator: str) -> None:
        """The storage has another size: a new block, as `storage.resize_` allocates before it frees."""
        resident = self.residents.get(storage._cdata)
        if resident is None or resident.device is self.host:
            return
        old, size = resident.block, storage.nbytes()
        if (old.num_bytes if old else 0) == size:
            return
        resident.block = resident.device.take(size, operator)
        resident.twin = None
        if old is not None:
            resident.device.give(old)

    def mark_step(self, optimizer: int = 0) -> None:
        """A step ends on all devices: the caller's, or that of an optimizer by number."""
        for device in self.devices:
            device.tape.mark(STEP, optimizer)

    def _remove(self, ref: Any) -> None:
        resident = self.residents.pop(ref.key)
        if resident.block is not None:
            resident.device.give(resident.block)


class Stat:
    """A count or a size: now, at most, and all that came and went."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    @property
    def figures(self) -> dict[str, int]:
        """As torch names them."""
        return {name: getattr(self, name) for name in ("current", "peak", "allocated", "freed")}


class Pinned:
    """The pinned memory of a process."""

    def __init__(self) -> None:
        self._held: dict[int, _PinnedRef] = {}  # key of a storage
        self._free: Counter[int] = Counter()  # bytes of a block -> blocks that are kept
        self._blocks, self._bytes = Stat(), Stat()
        self._active: dict[int, tuple[Stat, Stat]] = {}  # bytes of a block -> blocks and bytes in use

    def hold(self, storage: torch.UntypedStorage) -> None:
        """A storage is pinned from now on until it is gone."""
        if storage._cdata in self._held:
            return
        ref = _PinnedRef(storage, self._give_back)
        ref.key, ref.num_bytes = storage._cdata, power_of_two(storage.nbytes())
        self._held[ref.key] = ref
        if not ref.num_bytes:
            return
        if self._free[ref.num_bytes]:
            self._free[ref.num_bytes] -= 1
        else:
            self._blocks.increase(1)
            self._bytes.increase(ref.num_bytes)
        count, size = self._active.setdefault(ref.num_bytes, (Stat(), Stat()))
        count.increase(1)
        size.increase(ref.num_bytes)

    def holds(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._held

    def empty_cache(self) -> None:
        """`torch._C._host_emptyCache`: what is kept goes back."""
        for num_bytes, count in self._free.items():
            self._blocks.decrease(count)
            self._bytes.decrease(count * num_bytes)
        self._free.clear()

    def reset_peaks(self) -> None:
        """`torch.cuda.reset_peak_host_memory_stats`."""
        for stat in self._stats():
            stat.peak = stat.current

    def reset_totals(self) -> None:
        """`torch.cuda.reset_accumulated_host_memory_stats`."""
        for stat in self._stats():
            stat.allocated = stat.freed = 0

    def statistics(self) -> dict[str, Any]:
        """What `torch._C._cuda_hostMemoryStats` returns; calls take no time here.

        The peaks of what is in use are those of each size added up, as torch does.
        """
        made, freed = self._blocks.allocated, self._blocks.freed
        return {
            "allocations": self._blocks.figures, "allocated_bytes": self._bytes.figures,
            "active_requests": self._sum(0), "active_bytes": self._sum(1),
            "num_host_alloc": made, "num_host_free": freed,
            "host_alloc_time": _no_time(made), "host_free_time": _no_time(freed),
        }

    def _stats(self) -> list[Stat]:
        return [self._blocks, self._bytes, *(stat for stats in self._active.values() for stat in stats)]

    def _sum(self, place: int) -> dict[str, int]:
        total = Counter(dict.fromkeys(Stat().figures, 0))
        for stats in self._active.values():
            for name, value in stats[place].figures.items():
                total[name] += value
        return dict(total)

    def _give_back(self, ref: Any) -> None:
        del self._held[ref.key]
        if ref.num_bytes:
            count, size = self._active[ref.num_bytes]
            count.decrease(1)
            size.decrease(ref.num_bytes)
            self._free[ref.num_bytes] += 1


class _PinnedRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a pinned storage that knows its block."""

    __slots__ = ("key", "num_bytes")
    key: int
    num_bytes: int


def _no_time(count: int) -> dict[str, int]:
    return {"total": 0, "max": 0, "min": 0, "count": count, "avg": 0}
