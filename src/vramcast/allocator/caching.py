"""PyTorch's CUDA caching allocator, without CUDA.

One device, all streams, the rules of torch 1.10 to 2.13.
Left out: free-memory callbacks (none is registered by default), IPC, peers, checkpoints of private pools.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc and free
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from vramcast.allocator.device_memory import release_default
from vramcast.allocator.failure import DeviceOutOfMemory, Figures
from vramcast.allocator.heap import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    Block,
    Driver,
    FreeBlocks,
    Heap,
    Observer,
    RisingAddresses,
)
from vramcast.allocator.search import NOWHERE, AwaitedFrees, Contexts, Search, record_use
from vramcast.allocator.settings import LARGEST_REQUEST_BYTES, SMALL_BYTES, Settings, round_size
from vramcast.allocator.views import Statistics, restore, segment_views, statistics
from vramcast.domain.snapshot import PoolId, SegmentView
from vramcast.errors import InvalidSpec

_DEFAULTS: Final = Settings()


class Allocator:
    """Blocks, segments and statistics of one process on one device."""

    __slots__ = (
        "_ages",
        "_awaited",
        "_blocks",
        "_contexts",
        "_divisions",
        "_has_default_search",
        "_heap",
        "_is_quiet",
        "_large",
        "_max_split_bytes",
        "_search",
        "_small",
        "allocated_bytes",
        "peak_allocated_bytes",
        "peak_requested_bytes",
        "requested_bytes",
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
            settings: the options of PYTORCH_CUDA_ALLOC_CONF, and the version of torch
            capacity_bytes: what the driver can give to this allocator; None = everything it asks for [bytes]
            total_bytes: what the driver reports as the size of the card, which memory fraction and expandable address
                space derive from; None = the capacity [bytes]
            driver: who gives addresses and may say that memory is out; None = a new, higher address each time
            observer: called with (action, address, size [bytes]) for each segment taken, returned, mapped or unmapped
        """
        self._heap = heap = Heap(
            settings=settings,
            capacity_bytes=capacity_bytes,
            total_bytes=total_bytes,
            driver=RisingAddresses() if driver is None else driver,
            observer=observer,
        )
        self._blocks, self._small, self._large = heap.blocks, heap.small.on(0), heap.large.on(0)
        self._awaited = AwaitedFrees(self._complete)
        self._contexts = Contexts(heap)
        self._search = Search(heap, self._contexts, self._release_all)
        self._max_split_bytes = self._search.max_split_bytes
        self._divisions = settings.roundup_power2_divisions if settings.rounds_to_divisions else ()
        # Whether the best fit is the first free block that is large enough.
        self._has_default_search = not settings.expandable_segments and settings.max_split_size_mb is None
        self._ages = settings.garbage_collection_threshold is not None  # whether searches are counted
        self._refresh()
        # In live blocks, rounding and slack included; peaks since the start or reset_peaks [bytes].
        self.allocated_bytes = self.peak_allocated_bytes = 0
        # What the requests behind the active blocks asked for, unrounded [bytes].
        self.requested_bytes = self.peak_requested_bytes = 0

    def allocate(self, num_bytes: int, stream: int = 0) -> int:
        """Serve a request.

        The common case, a search in the default pool, stands in line here: calls would take longer than the work.

        Args:
            num_bytes: size of the storage, unrounded [bytes]
            stream: which asks, as a pointer; 0 is the default stream

        Returns: the address of the block, which is its handle; 0 for an empty request, which holds nothing
        Raises: DeviceOutOfMemory
        Source: [caching] DeviceCachingAllocator::malloc, get_free_block, should_split
        """
        if not 0 < num_bytes <= LARGEST_REQUEST_BYTES:
            return self._without_block(num_bytes)
        if self._is_quiet:
            size = (num_bytes + 511) & -512 if not self._divisions else round_size(num_bytes, self._divisions)
            free = self._small if size <= SMALL_BYTES else self._large
            if stream:
                free = free.pool.on(stream)
            if self._ages:
                free.pool.searches += 1
            keys = free.keys
            index = bisect_left(keys, size << ADDRESS_BITS)
            if index < len(keys) and not self._has_default_search:
                index = self._search.preferred(free, size, index, free.pool.expands)
            if NOWHERE < index < len(keys):
                block = self._blocks[keys.pop(index) & ADDRESS_MASK]
            else:
                block = self._grow(free, size, num_bytes)
                free = block.pool
        else:
            size, block = self._find(num_bytes, stream)
            free = block.pool
        block_bytes = block.size_bytes
        if block_bytes - size > free.slack_bytes and (size < self._max_split_bytes or free.slack_bytes == 0):
            self._split(block, size)
            block_bytes = size
        block.is_free = False
        block.requested_bytes = num_bytes
        self.requested_bytes += num_bytes
        if self.requested_bytes > self.peak_requested_bytes:
            self.peak_requested_bytes = self.requested_bytes
        self.allocated_bytes += block_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block.address

    def free(self, handle: int) -> None:
        """Take a block back and merge it with its free neighbours; 0 is ignored, as a null pointer is.

        A block that other streams use waits until they are done: see `complete`. The merging stands in line for the
        same reason as the search in allocate does.

        Args:
            handle: what allocate returned

        Raises: InvalidSpec for a handle that is not live.
        Source: [caching] DeviceCachingAllocator::free, free_block, try_merge_blocks
        """
        block = self._blocks.get(handle)
        if block is None or not block.requested_bytes:
            return self._without_free(handle)
        if block.foreign is not None:
            return self._await(block)
        free = block.pool
        keys = free.keys
        size = block.size_bytes
        self.allocated_bytes -= size
        self.requested_bytes -= block.requested_bytes
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
        block.searches_at_free = free.pool.searches
        insort(keys, size << ADDRESS_BITS | block.address)
        return None

    def record_stream(self, handle: int, stream: int) -> None:
        """Note that a stream other than its own uses a block: its free waits for that stream.

        Args:
            handle: what allocate returned; 0 is ignored
            stream: which uses it, as a pointer

        Raises: InvalidSpec for a handle that is not live.
        """
        block = self._blocks.get(handle)
        if block is None or not block.requested_bytes:
            return self._without_free(handle)
        return record_use(block, stream, is_capturing=bool(self._contexts))

    def complete(self, handle: int) -> None:
        """End the wait of one freed block: the streams that used it are done.

        Raises: InvalidSpec for a block that does not wait.
        """
        block = self._blocks.get(handle)
        if block is None or not block.awaits_free:
            raise InvalidSpec("block {:#x} does not wait for another stream; free a live block instead", handle)
        self._awaited.complete(block)
        self._refresh()

    def is_live(self, handle: int) -> bool:
        """Whether a handle is that of a block which nobody freed yet."""
        block = self._blocks.get(handle)
        return block is not None and block.requested_bytes > 0

    def awaits_free(self, handle: int) -> bool:
        """Whether a block was freed and waits for another stream."""
        block = self._blocks.get(handle)
        return block is not None and block.awaits_free

    def begin_pool(self, pool: PoolId) -> None:
        """Send requests to a private pool from now on: a capture of a graph, or `torch.cuda.use_mem_pool`.

        Raises: InvalidSpec where requests go there already.
        """
        self._contexts.begin(pool)
        self._refresh()

    def end_pool(self, pool: PoolId) -> None:
        """The end of what `begin_pool` began; the pool keeps its memory until it is released."""
        self._contexts.end(pool)
        self._refresh()

    def release_pool(self, pool: PoolId) -> None:
        """One user less: a graph was destroyed or a pool went out of scope.

        Without users, what is free in it goes back to the driver whenever the cache does.
        """
        self._contexts.release(pool)

    def empty_cache(self) -> None:
        """Give every unused segment and page back to the driver."""
        if self._contexts:
            self._contexts.release_unused()
        else:
            self._release_all()

    def expand(self, *, expands: bool) -> None:
        """Switch expandable segments from now on: `torch.cuda.memory._set_allocator_settings`. What is there stays."""
        for pool in (self._heap.small, self._heap.large):
            pool.expands = expands
            pool.slack_bytes = 0 if pool.is_small or expands else SMALL_BYTES
        self._has_default_search = self._has_default_search and not expands  # once there are both kinds it looks

    def limit(self, fraction: float) -> None:
        """Allow only a part of the card from now on: `torch.cuda.set_per_process_memory_fraction`.

        Raises: InvalidSpec for a fraction outside 0 to 1, or where the size of the card is not known
        """
        self._heap.limit(fraction)

    def _without_block(self, num_bytes: int) -> int:
        if num_bytes < 0:
            raise InvalidSpec("a request of {} bytes is negative; ask for 0 bytes or more", num_bytes)
        if num_bytes > LARGEST_REQUEST_BYTES:
            raise self._out_of_memory(num_bytes, num_bytes)
        return 0

    def _without_free(self, handle: int) -> None:
        if handle:
            raise InvalidSpec("handle {:#x} is not a live block; free each handle of allocate once", handle)

    def _split(self, block: Block, size: int) -> None:
        """Keep the low part for the request; the rest becomes a free block right behind it.

        `Heap.cut` and `Heap.insert` in one, as most requests come here.
        """
        free, after = block.pool, block.next
        address, rest_bytes = block.address + size, block.size_bytes - size
        rest = Block(address, rest_bytes, free, block, after, block.virtual)
        rest.is_free = True
        if after is not None:
            after.prev = rest
        block.next = rest
        block.size_bytes = size
        self._blocks[address] = rest
        insort(free.keys, rest_bytes << ADDRESS_BITS | address)

    def _refresh(self) -> None:
        """Whether neither captures nor events are under way."""
        self._is_quiet = not (self._contexts or self._awaited)

    def _find(self, num_bytes: int, stream: int) -> tuple[int, Block]:
        """Rounded size and block of a request while captures or events are under way."""
        if self._awaited and not self._contexts:
            self._awaited.poll()
            self._refresh()
        size = round_size(num_bytes, self._divisions)
        pool = self._contexts.pool_of(is_small=size <= SMALL_BYTES)
        free = pool.on(stream)
        block = self._search.best_fit(free, size, expands=pool.expands)
        return size, self._grow(free, size, num_bytes) if block is None else block

    def _grow(self, free: FreeBlocks, size: int, num_bytes: int) -> Block:
        block = self._search.grow(free, size)
        if block is None:
            raise self._out_of_memory(num_bytes, self._search.segment_bytes(size))
        return block

    def _release_all(self) -> None:
        self._awaited.synchronize()
        self._refresh()
        release_default(self._heap)
        self._contexts.release_unused()

    def _await(self, block: Block) -> None:
        """Free a block that other streams use: it stays out of reach until they are done."""
        foreign = block.foreign
        assert foreign is not None
        self.allocated_bytes -= block.size_bytes
        foreign.requested_bytes, block.requested_bytes = block.requested_bytes, 0
        self._awaited.add(block, is_capturing=bool(self._contexts))
        self._refresh()

    def _complete(self, block: Block) -> None:
        foreign = block.foreign
        assert foreign is not None
        self.requested_bytes -= foreign.requested_bytes
        block.foreign = None
        self._heap.merge_free(block)

    def _out_of_memory(self, num_bytes: int, wanted_bytes: int) -> DeviceOutOfMemory:
        heap = self._heap
        total_bytes = heap.total_bytes
        capacity_bytes = heap.capacity_bytes if heap.capacity_bytes is not None else total_bytes
        pools = [pool for private in heap.private.values() for pool in (private.small, private.large)]
        figures = Figures(
            tried=wanted_bytes,
            total=total_bytes or 0,
            free=max(0, (capacity_bytes or 0) - heap.reserved_bytes),
            allocated=self.allocated_bytes,
            reserved=heap.reserved_bytes,
            allowed=heap.limit_bytes,
            pools=sum(block.size_bytes for pool in pools for block in heap.free_blocks(pool)),
        )
        return DeviceOutOfMemory(figures, requested_bytes=num_bytes, is_sized=total_bytes is not None)

    @property
    def settings(self) -> Settings:
        """What the process was started with."""
        return self._heap.settings

    @property
    def num_alloc_retries(self) -> int:
        """Requests for which the whole cache was given back [count]."""
        return self._search.num_alloc_retries

    @property
    def num_ooms(self) -> int:
        """Requests that failed although the whole cache was given back [count]."""
        return self._search.num_ooms

    @property
    def reserved_bytes(self) -> int:
        """Held from the driver: segments and mapped pages [bytes]."""
        return self._heap.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The largest reserved_bytes since the start or reset_peaks [bytes]."""
        return self._heap.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Let the peaks start again from the present values."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self._heap.peak_reserved_bytes = self._heap.reserved_bytes

    def statistics(self) -> Statistics:
        """Counts and bytes as `torch.cuda.memory_stats` gives them, by pool."""
        return statistics(self._heap)

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
        self._has_default_search &= all(block.virtual is None for block in self._blocks.values())
        live = [block for block in self._blocks.values() if block.requested_bytes]
        waiting = [block for block in live if block.foreign is not None]
        self.allocated_bytes = sum(block.size_bytes for block in live)
        self.requested_bytes = sum(block.requested_bytes for block in live)
        for block in waiting:
            self._await(block)
        self._refresh()
        self.reset_peaks()
