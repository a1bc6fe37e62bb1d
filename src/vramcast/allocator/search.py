"""Where a request's block comes from: the best fit among free ones, else new memory.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: get_free_block, alloc_block and the order of attempts in malloc
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from vramcast.allocator.blocks import ADDRESS_BITS, ADDRESS_MASK, Block, FreeBlocks
from vramcast.allocator.expandable import closed_gap_index, expand
from vramcast.allocator.heap import Heap
from vramcast.allocator.pools import Contexts
from vramcast.allocator.release import collect_garbage, release_available
from vramcast.allocator.rounding import LARGEST_REQUEST_BYTES, segment_bytes
from vramcast.allocator.versions import LAST_RESORT_BEFORE_RELEASE_SINCE
from vramcast.domain.snapshot import DEFAULT_POOL

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
        "num_oom_rejections",
        "num_ooms",
    )

    def __init__(self, heap: Heap, contexts: Contexts, release_all: Callable[[], None]) -> None:
        """Nothing searched yet.

        Args:
            heap: where
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
        self.num_oom_rejections = 0

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

        Returns: a block in no set, of the pool or of one that stands in for it; None: memory is out
        """
        heap = self._heap
        wanted_bytes = self.segment_bytes(size)
        collect_garbage(heap)
        if heap.settings.throw_on_cudamalloc_oom and not heap.fits_limit(wanted_bytes):
            self.num_oom_rejections += 1
            return None
        overflows_early = heap.settings.version >= LAST_RESORT_BEFORE_RELEASE_SINCE
        block = self._take(free, size, wanted_bytes)
        if block is None and overflows_early:
            block = self._last_resort(free, size)
        if block is None and release_available(heap, free, size):
            block = self._take(free, size, wanted_bytes)
        if block is None and not self._contexts:
            self._release_all()
            self.num_alloc_retries += 1
            block = self._take(free, size, wanted_bytes)
        if block is None and not overflows_early:
            block = self._last_resort(free, size)
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

    def _last_resort(self, free: FreeBlocks, size: int) -> Block | None:
        """A free block of a pool that was made for that, for a request of the default pool."""
        if free.pool.owner != DEFAULT_POOL:
            return None
        for pool in self._contexts.last_resort(is_small=free.pool.is_small):
            block = self.best_fit(pool.on(free.stream), size, expands=False)
            if block is not None:
                return block
        return None
