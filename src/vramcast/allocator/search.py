"""Where a request's block comes from: its pool, blocks that other streams are done with, the best fit, else new memory.

How far the GPU is decides when a block that another stream uses becomes free: it is the only input of the allocator
that a record of its calls does not hold. Callers say it, block by block: `complete`.
Leaves out checkpoints of pools (cudagraph trees), which place blocks by a list instead of by a search.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: get_free_block, alloc_block and the order of attempts in malloc;
beginAllocateToPool, endAllocateToPool, releasePool, get_pool; insert_events, process_events,
synchronize_and_free_events, insert_events_deferred_until_no_capture
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from vramcast.allocator.device_memory import (
    closed_gap_index,
    collect_garbage,
    expand,
    release_available,
    release_private,
)
from vramcast.allocator.heap import ADDRESS_BITS, ADDRESS_MASK, Block, BlockPool, ForeignUse, FreeBlocks, Heap
from vramcast.allocator.settings import (
    LARGEST_REQUEST_BYTES,
    NEWEST_POOL_FIRST_SINCE,
    segment_bytes,
)
from vramcast.domain.snapshot import PoolId
from vramcast.errors import InvalidSpec


class Contexts:
    """Captures and uses of pools that are under way, and pools that nobody uses any more."""

    def __init__(self, heap: Heap) -> None:
        """None under way."""
        self._heap = heap
        self._under_way: list[PoolId] = []
        self._unused: list[PoolId] = []

    def __bool__(self) -> bool:
        """Whether any is under way; upstream then neither polls events nor gives the cache back."""
        return bool(self._under_way)

    def begin(self, pool: PoolId) -> None:
        """Send requests to a pool, which gets one more user."""
        if pool in self._under_way:
            raise InvalidSpec("pool {} is allocated to already; end that first", pool)
        if pool in self._unused:
            raise InvalidSpec("pool {} was released by all its users; use a new id", pool)
        if pool in self._heap.private:
            self._heap.private[pool].use_count += 1
        else:
            self._heap.private_pool(pool)
        self._under_way.append(pool)

    def end(self, pool: PoolId) -> None:
        """Send them where they went before."""
        if pool not in self._under_way:
            raise InvalidSpec("pool {} is not allocated to; begin before you end", pool)
        self._under_way.remove(pool)

    def release(self, pool: PoolId) -> None:
        """One user less: a graph was destroyed, a pool went out of scope."""
        private = self._heap.private.get(pool)
        if private is None or not private.use_count:
            raise InvalidSpec("pool {} has no users; release it once for each create and begin", pool)
        private.use_count -= 1
        if not private.use_count:
            self._unused.append(pool)

    def pool_of(self, *, is_small: bool) -> BlockPool:
        """Where a request goes."""
        heap = self._heap
        if not self._under_way:
            return heap.small if is_small else heap.large
        newest_first = heap.settings.version >= NEWEST_POOL_FIRST_SINCE
        private = heap.private[self._under_way[-1 if newest_first else 0]]
        return private.small if is_small else private.large

    def release_unused(self) -> None:
        """Give back the memory of pools without users; a pool that holds nothing any more is gone."""
        for pool in list(self._unused):
            private = self._heap.private[pool]
            release_private(self._heap, private)
            if not any(b.pool.pool in (private.small, private.large) for b in self._heap.blocks.values()):
                del self._heap.private[pool]
                self._unused.remove(pool)


def record_use(block: Block, stream: int, *, is_capturing: bool) -> None:
    """Note that a stream uses the block; its own stream needs no note."""
    if stream == block.pool.stream:
        return
    if block.foreign is None:
        block.foreign = ForeignUse()
    if stream not in block.foreign.streams:
        block.foreign.streams.append(stream)
    if is_capturing:
        block.foreign.captured.add(stream)


class AwaitedFrees:
    """Freed blocks that other streams still use, and those of them whose wait begins after a capture."""

    def __init__(self, free: Callable[[Block], None]) -> None:
        """None yet.

        Args:
            free: completes the free of a block whose wait is over
        """
        self._free = free
        self._waiting: dict[ForeignUse, Block] = {}
        self._deferred: list[ForeignUse] = []

    def __bool__(self) -> bool:
        """Whether any block waits."""
        return bool(self._waiting)

    def add(self, block: Block, *, is_capturing: bool) -> None:
        """A freed block with foreign uses."""
        foreign = block.foreign
        assert foreign is not None
        self._waiting[foreign] = block
        if is_capturing:
            self._deferred.append(foreign)

    def poll(self) -> None:
        """Free what only a capture used: that is over when the capture is, as the graph orders its streams itself."""
        deferred, self._deferred = self._deferred, []
        for foreign in deferred:
            if foreign in self._waiting and foreign.captured.issuperset(foreign.streams):
                self._end(foreign)

    def synchronize(self) -> None:
        """Wait for everything."""
        self._deferred.clear()
        for foreign in list(self._waiting):
            self._end(foreign)

    def complete(self, block: Block) -> None:
        """Free one block now."""
        assert block.foreign is not None
        self._end(block.foreign)

    def _end(self, foreign: ForeignUse) -> None:
        self._free(self._waiting.pop(foreign))


NOWHERE: Final = -1
"""Index where no free block may serve a request."""


class Search:
    """The searches of one device, and how often they came to nothing."""

    __slots__ = (
        "_contexts",
        "_heap",
        "_large_segment_bytes",
        "_max_non_split_rounding_bytes",
        "_release_all",
        "max_split_bytes",
        "num_alloc_retries",
        "num_ooms",
    )

    def __init__(self, heap: Heap, contexts: Contexts, release_all: Callable[[], None]) -> None:
        """Nothing searched yet.

        Args:
            contexts: captures and pools in use
            release_all: gives the whole cache back
        """
        settings = heap.settings
        self._heap = heap
        self._contexts = contexts
        self._release_all = release_all
        self._large_segment_bytes = settings.large_segment_bytes
        self._max_non_split_rounding_bytes = settings.max_non_split_rounding_bytes
        limit = settings.max_split_bytes
        self.max_split_bytes = 2 * LARGEST_REQUEST_BYTES if limit is None else limit
        self.num_alloc_retries = 0
        self.num_ooms = 0

    def best_fit(self, free: FreeBlocks, size: int, *, expands: bool) -> Block | None:
        """The free block for a rounded request, taken out of its set."""
        free.pool.searches += 1
        index = bisect_left(free.keys, size << ADDRESS_BITS)
        if index < len(free.keys):
            index = self.preferred(free, size, index, expands)
            if index != NOWHERE:
                return self._heap.blocks[free.keys.pop(index) & ADDRESS_MASK]
        return None

    def preferred(self, free: FreeBlocks, size: int, index: int, expands: bool) -> int:
        """From the first block that is large enough to the one that the options allow, or NOWHERE."""
        keys, blocks = free.keys, self._heap.blocks
        block = blocks[keys[index] & ADDRESS_MASK]
        if block.virtual is not None:
            if expands:
                index = closed_gap_index(self._heap, free, index)
            else:  # expandable memory of a process that has switched the option off serves nothing new
                while index < len(keys) and blocks[keys[index] & ADDRESS_MASK].virtual is not None:
                    index += 1
                if index == len(keys):
                    return NOWHERE
            block = blocks[keys[index] & ADDRESS_MASK]
        limit = self.max_split_bytes
        if size < limit:
            # A block beyond the limit is kept whole for requests beyond it.
            return index if block.size_bytes < limit else NOWHERE
        # Too much of a block that must not be split would lie idle.
        return index if block.size_bytes < size + self._max_non_split_rounding_bytes else NOWHERE

    def grow(self, free: FreeBlocks, size: int) -> Block | None:
        """New device memory for a rounded request, after releasing as little of the cache as it takes.

        Returns: a block in no set; None: memory is out
        """
        heap = self._heap
        wanted_bytes = self.segment_bytes(size)
        collect_garbage(heap)
        if heap.settings.throw_on_cudamalloc_oom and not heap.fits_limit(wanted_bytes):
            return None
        block = self._take(free, size, wanted_bytes)
        if block is None and release_available(heap, free, size):
            block = self._take(free, size, wanted_bytes)
        if block is None and not self._contexts:
            self._release_all()
            self.num_alloc_retries += 1
            block = self._take(free, size, wanted_bytes)
        self.num_ooms += block is None
        return block

    def segment_bytes(self, size: int) -> int:
        """What the driver is asked for on behalf of a rounded request [bytes]."""
        return segment_bytes(size, self._large_segment_bytes)

    def _take(self, free: FreeBlocks, size: int, wanted_bytes: int) -> Block | None:
        """One attempt to get memory from the driver."""
        heap = self._heap
        if not heap.fits_limit(wanted_bytes):
            return None
        return expand(heap, free, size) if free.pool.expands else heap.new_segment(free, size)
