"""An allocator that can be told what a real one did, and where it put blocks and segments.

Replays of recordings use it: what differs is counted there, and put right here, so that it does not spread.
"""

from __future__ import annotations

from bisect import bisect_left

from vramcast.allocator.caching import Allocator
from vramcast.allocator.heap import ADDRESS_BITS, ADDRESS_MASK, Block, FreeBlocks, Heap
from vramcast.allocator.search import NOWHERE
from vramcast.allocator.settings import SMALL_BYTES, round_size


def place(heap: Heap, free: FreeBlocks, address: int, size_bytes: int) -> Block | None:
    """Cut a block out of the free one around an address.

    Args:
        free: the set that the free block lies in
        address: where the block shall begin
        size_bytes: its rounded request [bytes]

    Returns: the block, in no set, with what is too little to split off; None where that memory is not free
    """
    for key in free.keys:
        around = heap.blocks[key & ADDRESS_MASK]
        if around.address <= address and address + size_bytes <= around.end:
            break
    else:
        return None
    heap.remove(around)
    block = around
    if around.address < address:
        block = heap.cut(around, address - around.address)
        heap.insert(around)
    if block.size_bytes - size_bytes > free.slack_bytes:
        heap.insert(heap.cut(block, size_bytes))
    return block


class FollowingAllocator(Allocator):
    """The allocator of a recorded process."""

    __slots__ = ()

    def has_fit(self, num_bytes: int, stream: int = 0) -> bool:
        """Whether a request would find a free block, without new memory from the driver [bytes]."""
        size = round_size(num_bytes, self._divisions)
        pool = self._contexts.pool_of(is_small=size <= SMALL_BYTES)
        free = pool.on(stream)
        index = bisect_left(free.keys, size << ADDRESS_BITS)
        return index < len(free.keys) and self._search.preferred(free, size, index, pool.expands) != NOWHERE

    def allocate_anew(self, num_bytes: int, stream: int = 0) -> int:
        """Serve a request from new device memory even where free memory would do, as the real allocator sometimes has.

        It does not search again after it has waited for other streams while it gave its cache back.
        """
        size = round_size(num_bytes, self._divisions)
        pool = self._contexts.pool_of(is_small=size <= SMALL_BYTES)
        block = self._grow(pool.on(stream), size, num_bytes)
        if block.size_bytes - size > pool.slack_bytes and (size < self._max_split_bytes or pool.slack_bytes == 0):
            self._split(block, size)
        self._hand_out(block, num_bytes)
        return block.address

    def move(self, handle: int, address: int) -> int:
        """Give a live block the memory at another address, as a record of a real process has it.

        Args:
            handle: what allocate returned
            address: where it really was

        Returns: where it is now: at the address, if that memory was free; an empty request is nowhere
        """
        if not handle:
            return handle
        block = self._blocks[handle]
        num_bytes, free = block.requested_bytes, block.pool
        self.free(handle)
        placed = place(self._heap, free, address, round_size(num_bytes, self._divisions))
        if placed is None:
            return self.allocate(num_bytes, free.stream)
        self._hand_out(placed, num_bytes)
        return address

    def cut_from(self, handle: int) -> int:
        """The free memory that a block was just cut from: its own and the free rest behind it [bytes]."""
        block = self._blocks[handle]
        rest = block.next.size_bytes if block.next is not None and block.next.is_free else 0
        return block.size_bytes + rest

    @property
    def releasable(self) -> list[int]:
        """Addresses of the segments that giving the cache back returns, in that order."""
        heap = self._heap
        free = [block for pool in (heap.large, heap.small) for block in heap.free_blocks(pool)]
        return [block.address for block in free if block.virtual is None and block.is_whole_segment]

    def release_segment(self, address: int) -> None:
        """Give one segment back, as a record of a real process says; ignored where it holds a live block."""
        block = self._blocks.get(address)
        if block is not None and block.is_free and block.virtual is None and block.is_whole_segment:
            self._heap.release(block)

    def adopt_segment(self, address: int, size_bytes: int, *, is_small: bool) -> None:
        """Hold a segment that a record of a real process has and this one lacks, all of it free, if it has room."""
        heap, end = self._heap, address + size_bytes
        if any(block.address < end and address < block.end for block in heap.blocks.values() if block.is_mapped):
            return
        block = Block(address, size_bytes, (heap.small if is_small else heap.large).on(0))
        heap.add(block)
        heap.hold(size_bytes)
        heap.insert(block)

    def _hand_out(self, block: Block, num_bytes: int) -> None:
        """Count a block as live; allocate does the same in line."""
        block.is_free = False
        block.requested_bytes = num_bytes
        self.requested_bytes += num_bytes
        self.allocated_bytes += block.size_bytes
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
