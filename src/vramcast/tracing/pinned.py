"""Pinned main memory, as the host's caching allocator keeps it: blocks of powers of two that are never split.

A freed block is kept for requests of its size. Leaves out that a block waits for the copies which use it: they are
taken to be over; and small pinned memory that operators take inside, as `.item()` does.
[pinned] pytorch 2.13 aten/src/ATen/core/CachingHostAllocator.h, CachingHostAllocatorImpl and HostStats
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

from vramcast.estimate.host_memory import power_of_two


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
        self._held: dict[int, _Ref] = {}  # key of a storage
        self._free: Counter[int] = Counter()  # bytes of a block -> blocks that are kept
        self._blocks, self._bytes = Stat(), Stat()
        self._active: dict[int, tuple[Stat, Stat]] = {}  # bytes of a block -> blocks and bytes in use

    def hold(self, storage: torch.UntypedStorage) -> None:
        """A storage is pinned from now on until it is gone."""
        if storage._cdata in self._held:
            return
        ref = _Ref(storage, self._give_back)
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


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a pinned storage that knows its block."""

    __slots__ = ("key", "num_bytes")
    key: int
    num_bytes: int


def _no_time(count: int) -> dict[str, int]:
    return {"total": 0, "max": 0, "min": 0, "count": count, "avg": 0}
