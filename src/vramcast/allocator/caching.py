"""PyTorch's CUDA caching allocator, without CUDA.

One device, one stream, the rules of torch 1.10 to 2.13 where those agree.
Left out: other streams and `record_stream`, graph captures, private and user pools, free-memory callbacks.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc and free
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from vramcast.allocator.blocks import ADDRESS_BITS, ADDRESS_MASK, Block, Pool
from vramcast.allocator.expandable import closed_gap_index, expand
from vramcast.allocator.heap import Driver, Heap, Observer, RisingAddresses
from vramcast.allocator.release import collect_garbage, release_available, release_cached
from vramcast.allocator.rounding import LARGEST_REQUEST_BYTES, SMALL_BYTES, round_size, segment_bytes
from vramcast.allocator.settings import Settings
from vramcast.allocator.views import restore, segment_views
from vramcast.domain.snapshot import SegmentView
from vramcast.errors import InvalidSpec, OutOfMemory
from vramcast.units import format_bytes

_DEFAULTS: Final = Settings()


class DeviceOutOfMemory(OutOfMemory):
    """A request that even releasing the whole cache could not serve, with the numbers torch would print."""

    def __init__(
        self,
        *,
        requested_bytes: int,
        segment_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int,
        allowed: int | None,
    ) -> None:
        """The state at the failure.

        Args:
            requested_bytes: what was asked for, unrounded [bytes]
            segment_bytes: what the driver was asked for, the "Tried to allocate" of the message [bytes]
            allocated_bytes: in live blocks [bytes]
            reserved_bytes: held from the driver after everything releasable was released [bytes]
            allowed: the memory limit or else the capacity; None where neither is the cause [bytes]
        """
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.allowed_bytes = allowed
        room = "" if allowed is None else f" of {format_bytes(allowed)}"
        super().__init__(
            f"a request of {format_bytes(requested_bytes)} needs {format_bytes(segment_bytes)} from the device, where "
            f"{format_bytes(reserved_bytes)}{room} are reserved and {format_bytes(allocated_bytes)} allocated; "
            "free memory first, ask for less or use a larger device"
        )


class Allocator:
    """Blocks, segments and statistics of one process on one device."""

    __slots__ = (
        "_allocated_bytes",
        "_blocks",
        "_divisions",
        "_heap",
        "_is_plain",
        "_large",
        "_max_non_split_rounding_bytes",
        "_max_split_bytes",
        "_peak_allocated_bytes",
        "_peak_requested_bytes",
        "_requested_bytes",
        "_small",
        "num_alloc_retries",
        "num_ooms",
    )

    def __init__(
        self,
        *,
        settings: Settings = _DEFAULTS,
        capacity_bytes: int | None = None,
        total_bytes: int | None = None,
        driver: Driver | None = None,
        observer: Observer | None = None,
    ) -> None:
        """An allocator that holds nothing yet.

        Args:
            settings: the options of PYTORCH_CUDA_ALLOC_CONF
            capacity_bytes: what the driver can give to this allocator; None = everything it asks for [bytes]
            total_bytes: what the driver reports as the size of the card, which memory fraction and expandable address
                space derive from; None = the capacity [bytes]
            driver: size of a segment [bytes] to its address, raises OutOfMemory where there is no more; None = a new,
                higher address for each
            observer: called with (action, address, size [bytes]) for each segment taken, returned, mapped or unmapped
        """
        self._heap = heap = Heap(
            settings=settings,
            capacity_bytes=capacity_bytes,
            total_bytes=total_bytes,
            driver=RisingAddresses() if driver is None else driver,
            observer=observer,
        )
        self._blocks, self._small, self._large = heap.blocks, heap.small, heap.large
        self._divisions = settings.roundup_power2_divisions if settings.rounds_to_divisions else ()
        max_split_bytes = settings.max_split_bytes
        self._max_split_bytes = 2 * LARGEST_REQUEST_BYTES if max_split_bytes is None else max_split_bytes
        self._max_non_split_rounding_bytes = settings.max_non_split_rounding_bytes
        self._is_plain = self._has_default_search(settings)
        self._allocated_bytes = self._peak_allocated_bytes = 0
        self._requested_bytes = self._peak_requested_bytes = 0
        self.num_alloc_retries = 0
        self.num_ooms = 0

    def _has_default_search(self, settings: Settings) -> bool:
        """Whether the best fit is the first free block that is large enough, and ages are of no interest."""
        return not (
            settings.expandable_segments
            or self._divisions
            or settings.max_split_size_mb is not None
            or settings.garbage_collection_threshold is not None
        )

    def allocate(self, num_bytes: int) -> int:
        """Serve a request.

        The common case, a search without options, stands in line here: calls would take longer than the work.

        Args:
            num_bytes: size of the storage, unrounded [bytes]

        Returns: the address of the block, which is its handle; 0 for an empty request, which holds nothing
        Raises: DeviceOutOfMemory
        Source: [caching] DeviceCachingAllocator::malloc, get_free_block, should_split
        """
        if not 0 < num_bytes <= LARGEST_REQUEST_BYTES:
            return self._without_block(num_bytes)
        if self._is_plain:
            size = (num_bytes + 511) & -512
            pool = self._small if size <= SMALL_BYTES else self._large
            keys = pool.keys
            index = bisect_left(keys, size << ADDRESS_BITS)
            if index < len(keys):
                block = self._blocks[keys.pop(index) & ADDRESS_MASK]
            else:
                block = self._grow(pool, size, num_bytes)
        else:
            size = round_size(num_bytes, self._divisions)
            pool = self._small if size <= SMALL_BYTES else self._large
            block = self._best_fit(pool, size) or self._grow(pool, size, num_bytes)
        block_bytes = block.size_bytes
        if block_bytes - size > pool.slack_bytes and (size < self._max_split_bytes or pool.slack_bytes == 0):
            self._split(block, size)
            block_bytes = size
        block.is_free = False
        block.requested_bytes = num_bytes
        self._requested_bytes += num_bytes
        if self._requested_bytes > self._peak_requested_bytes:
            self._peak_requested_bytes = self._requested_bytes
        self._allocated_bytes += block_bytes
        if self._allocated_bytes > self._peak_allocated_bytes:
            self._peak_allocated_bytes = self._allocated_bytes
        return block.address

    def free(self, handle: int) -> None:
        """Take a block back and merge it with its free neighbours; 0 is ignored, as a null pointer is.

        The merging stands in line for the same reason as the search in allocate does.

        Args:
            handle: what allocate returned

        Raises: InvalidSpec for a handle that is not live.
        Source: [caching] DeviceCachingAllocator::free_block, try_merge_blocks
        """
        block = self._blocks.get(handle)
        if block is None or not block.requested_bytes:
            return self._without_free(handle)
        pool = block.pool
        keys = pool.keys
        size = block.size_bytes
        self._allocated_bytes -= size
        self._requested_bytes -= block.requested_bytes
        block.requested_bytes = 0
        before, after = block.prev, block.next
        if before is not None and before.is_free:
            del keys[bisect_left(keys, before.size_bytes << ADDRESS_BITS | before.address)]
            del self._blocks[handle]
            size += before.size_bytes
            before.next = after
            if after is not None:
                after.prev = before
            block = before
        if after is not None and after.is_free:
            del keys[bisect_left(keys, after.size_bytes << ADDRESS_BITS | after.address)]
            del self._blocks[after.address]
            size += after.size_bytes
            block.next = beyond = after.next
            if beyond is not None:
                beyond.prev = block
        block.size_bytes = size
        block.is_free = True
        block.searches_at_free = pool.searches
        insort(keys, size << ADDRESS_BITS | block.address)
        return None

    def limit_to(self, capacity_bytes: int) -> None:
        """What the driver can give from now on, when others on the device have taken or returned memory [bytes]."""
        self._heap.capacity_bytes = capacity_bytes

    def empty_cache(self) -> None:
        """Give every unused segment and page back to the driver."""
        release_cached(self._heap)

    def _without_block(self, num_bytes: int) -> int:
        if num_bytes < 0:
            raise InvalidSpec(f"a request of {num_bytes} bytes is negative; ask for 0 bytes or more")
        if num_bytes > LARGEST_REQUEST_BYTES:
            raise self._out_of_memory(num_bytes, num_bytes)
        return 0

    def _without_free(self, handle: int) -> None:
        if handle:
            raise InvalidSpec(f"handle {handle:#x} is not a live block; free each handle of allocate once")

    def _split(self, block: Block, size: int) -> None:
        """Keep the low part for the request; the rest becomes a free block right behind it."""
        heap = self._heap
        heap.insert(heap.cut(block, size))

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """The free block for a rounded request under any options, taken out of its set."""
        pool.searches += 1
        keys = pool.keys
        index = bisect_left(keys, size << ADDRESS_BITS)
        index = self._passable_index(pool, index)
        if index == len(keys):
            return None
        block = self._blocks[keys[index] & ADDRESS_MASK]
        max_split = self._max_split_bytes
        if size < max_split <= block.size_bytes:
            return None  # a block this large is kept whole for large requests
        if size >= max_split and block.size_bytes >= size + self._max_non_split_rounding_bytes:
            return None  # too much of it would lie idle, as it must not be split
        del keys[index]
        return block

    def _passable_index(self, pool: Pool, index: int) -> int:
        """From the first block that is large enough to the one that the state of expandable segments prefers."""
        keys, blocks = pool.keys, self._blocks
        if index == len(keys) or blocks[keys[index] & ADDRESS_MASK].virtual is None:
            return index
        if self._heap.settings.expandable_segments:
            return closed_gap_index(self._heap, pool, index)
        while index < len(keys) and blocks[keys[index] & ADDRESS_MASK].virtual is not None:
            index += 1
        return index

    def _grow(self, pool: Pool, size: int, num_bytes: int) -> Block:
        """New device memory, after releasing as little of the cache as it takes [caching] malloc."""
        heap = self._heap
        collect_garbage(heap)
        block = self._take(pool, size)
        if block is None and release_available(heap, pool, size):
            block = self._take(pool, size)
        if block is None:
            release_cached(heap)
            self.num_alloc_retries += 1
            block = self._take(pool, size)
        if block is None:
            self.num_ooms += 1
            raise self._out_of_memory(num_bytes, segment_bytes(size, heap.settings.large_segment_bytes))
        return block

    def _take(self, pool: Pool, size: int) -> Block | None:
        """One attempt to get memory from the driver."""
        heap = self._heap
        if not heap.fits_limit(segment_bytes(size, heap.settings.large_segment_bytes)):
            return None
        if heap.settings.expandable_segments:
            return expand(heap, pool, size)
        return heap.new_segment(pool, size)

    def _out_of_memory(self, num_bytes: int, wanted_bytes: int) -> DeviceOutOfMemory:
        heap = self._heap
        return DeviceOutOfMemory(
            requested_bytes=num_bytes,
            segment_bytes=wanted_bytes,
            allocated_bytes=self._allocated_bytes,
            reserved_bytes=heap.reserved_bytes,
            allowed=heap.capacity_bytes if heap.limit_bytes is None else heap.limit_bytes,
        )

    @property
    def allocated_bytes(self) -> int:
        """In live blocks: rounding and slack included [bytes]."""
        return self._allocated_bytes

    @property
    def requested_bytes(self) -> int:
        """What the live requests asked for, unrounded [bytes]."""
        return self._requested_bytes

    @property
    def reserved_bytes(self) -> int:
        """Held from the driver: segments and mapped pages [bytes]."""
        return self._heap.reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The largest allocated_bytes since the start or reset_peaks [bytes]."""
        return self._peak_allocated_bytes

    @property
    def peak_requested_bytes(self) -> int:
        """The largest requested_bytes since the start or reset_peaks [bytes]."""
        return self._peak_requested_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The largest reserved_bytes since the start or reset_peaks [bytes]."""
        return self._heap.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Let the peaks start again from the present values."""
        self._peak_allocated_bytes = self._allocated_bytes
        self._peak_requested_bytes = self._requested_bytes
        self._heap.peak_reserved_bytes = self._heap.reserved_bytes

    def segments(self) -> tuple[SegmentView, ...]:
        """Everything held from the driver, by address, with its blocks."""
        return tuple(segment_views(self._heap))

    def restore(self, segments: Iterable[SegmentView]) -> None:
        """Start from the state of another process, as a snapshot lists it, instead of from nothing.

        Args:
            segments: what `segments` of that process would return

        Raises: InvalidSpec where the allocator already holds memory or the blocks do not tile their segments.
        """
        if self._blocks:
            raise InvalidSpec("the allocator already holds memory; restore into a new one")
        restore(self._heap, segments)
        # Expandable memory of another process is passed over by a search without the option.
        self._is_plain = self._is_plain and all(block.virtual is None for block in self._blocks.values())
        live = [block for block in self._blocks.values() if block.requested_bytes]
        self._allocated_bytes = sum(block.size_bytes for block in live)
        self._requested_bytes = sum(block.requested_bytes for block in live)
        self.reset_peaks()
