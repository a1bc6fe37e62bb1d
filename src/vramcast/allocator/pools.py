"""Which pool a request goes to while graphs are captured or user pools are in use.

Leaves out checkpoints of pools (cudagraph trees), which place blocks by a list instead of by a search.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: beginAllocateToPool, endAllocateToPool, releasePool, get_pool
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from vramcast.allocator.blocks import BlockPool
from vramcast.allocator.heap import Heap
from vramcast.allocator.release import release_private
from vramcast.allocator.versions import NEWEST_POOL_FIRST_SINCE
from vramcast.domain.snapshot import PoolId
from vramcast.errors import InvalidSpec


class Context(NamedTuple):
    """A capture, or a block of code within `use_mem_pool`."""

    pool: PoolId
    streams: Collection[int] | None  # whose requests it takes; None: all


class Contexts:
    """Captures and uses of pools that are under way, and pools that nobody uses any more."""

    def __init__(self, heap: Heap) -> None:
        """None under way."""
        self._heap = heap
        self._under_way: list[Context] = []
        self._last_resort: list[PoolId] = []
        self._unused: list[PoolId] = []

    def __bool__(self) -> bool:
        """Whether any is under way; upstream then neither polls events nor gives the cache back."""
        return bool(self._under_way)

    def create(self, pool: PoolId, *, own_allocator: bool, use_on_oom: bool, no_split: bool) -> None:
        """Make a user pool with one user."""
        if pool in self._heap.private:
            raise InvalidSpec(f"pool {pool} exists already; create each once, or begin to allocate to it")
        self._heap.private_pool(pool, expands=not own_allocator, splits=not no_split)
        if use_on_oom:
            self._last_resort.append(pool)

    def begin(self, pool: PoolId, streams: Collection[int] | None) -> None:
        """Send requests of these streams to a pool, which gets one more user."""
        if any(context.pool == pool for context in self._under_way):
            raise InvalidSpec(f"pool {pool} is allocated to already; end that first")
        if pool in self._unused:
            raise InvalidSpec(f"pool {pool} was released by all its users; use a new id")
        if pool in self._heap.private:
            self._heap.private[pool].use_count += 1
        else:
            self._heap.private_pool(pool)
        self._under_way.append(Context(pool, streams))

    def end(self, pool: PoolId) -> None:
        """Send them where they went before."""
        for context in self._under_way:
            if context.pool == pool:
                self._under_way.remove(context)
                return
        raise InvalidSpec(f"pool {pool} is not allocated to; begin before you end")

    def release(self, pool: PoolId) -> None:
        """One user less: a graph was destroyed, a pool went out of scope."""
        private = self._heap.private.get(pool)
        if private is None or not private.use_count:
            raise InvalidSpec(f"pool {pool} has no users; release it once for each create and begin")
        private.use_count -= 1
        if not private.use_count:
            self._unused.append(pool)

    def pool_of(self, stream: int, *, is_small: bool) -> BlockPool:
        """Where a request of a stream goes."""
        heap = self._heap
        newest_first = heap.settings.version >= NEWEST_POOL_FIRST_SINCE
        for context in reversed(self._under_way) if newest_first else self._under_way:
            if context.streams is None or stream in context.streams:
                private = heap.private[context.pool]
                return private.small if is_small else private.large
        return heap.small if is_small else heap.large

    def last_resort(self, *, is_small: bool) -> list[BlockPool]:
        """Pools that requests of the default pool may search before they fail."""
        pools = [self._heap.private[pool] for pool in self._last_resort if pool in self._heap.private]
        return [pool.small if is_small else pool.large for pool in pools]

    def release_unused(self, only: PoolId | None = None) -> None:
        """Give back the memory of pools without users; a pool that holds nothing any more is gone."""
        for pool in [unused for unused in self._unused if only in (None, unused)]:
            private = self._heap.private[pool]
            release_private(self._heap, private)
            if not any(b.pool.pool in (private.small, private.large) for b in self._heap.blocks.values()):
                del self._heap.private[pool]
                self._unused.remove(pool)
