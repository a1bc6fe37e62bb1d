"""Getting pages of expandable segments, and giving cached memory back to the driver.

Leaves out IPC, peer mappings and the kind of handle, none of which changes a size.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: find_expandable_block, map_block, unmap_block,
garbage_collect_cached_blocks, release_available_cached_blocks, release_cached_blocks
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from vramcast.allocator.heap import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    Block,
    BlockPool,
    FreeBlocks,
    Heap,
    PrivatePool,
    VirtualRange,
)
from vramcast.errors import OutOfMemory
from vramcast.units import GIB, ceil_div, round_up

UNKNOWN_DEVICE_BYTES: Final = 4096 * GIB
"""Assumed size of a device of which none is given; only address space is derived from it, no memory."""


def closed_gap_index(heap: Heap, free: FreeBlocks, index: int) -> int:
    """The free block to take instead of the one at `index`: the first that no follower beats in growable size.

    That size counts the unmapped memory behind a block, which it could grow into: a block at the end of the mapped
    part counts as large, so gaps between live blocks are filled first.
    """
    keys, blocks = free.keys, heap.blocks
    block = blocks[keys[index] & ADDRESS_MASK]
    after = block.next
    if after is None or after.is_mapped:
        return index  # followers are no smaller
    growable_bytes = block.size_bytes + after.size_bytes
    for follower in range(index + 1, len(keys)):
        if block.virtual is None:
            break
        block = blocks[keys[follower] & ADDRESS_MASK]
        after = block.next
        size_bytes = block.size_bytes + (after.size_bytes if after is not None and not after.is_mapped else 0)
        if size_bytes >= growable_bytes:
            break
        growable_bytes, index = size_bytes, follower
    return index


def expand(heap: Heap, free: FreeBlocks, size_bytes: int) -> Block | None:
    """A free block of at least the rounded size, in no set, from newly mapped pages; None where the device is full.

    Pages mapped before one fails stay mapped and free, as upstream's do.
    """
    candidate = _find(heap, free, size_bytes) or _reserve(heap, free, size_bytes)
    if candidate is None:
        return None
    if not candidate.is_mapped:
        grown = _map(heap, candidate, min(candidate.size_bytes, size_bytes))
        if grown is None:
            return None
        candidate = grown
    while candidate.size_bytes < size_bytes:
        after = candidate.next
        assert after is not None and not after.is_mapped
        grown = _map(heap, after, min(size_bytes - candidate.size_bytes, after.size_bytes))
        if grown is None:
            return None
        candidate = grown
    heap.remove(candidate)
    return candidate


def _find(heap: Heap, free: FreeBlocks, size_bytes: int) -> Block | None:
    """The lowest start of a run of free and unmapped blocks that holds the size."""
    for address in free.unmapped:
        start = heap.blocks[address]
        if start.prev is not None and start.prev.is_free:
            start = start.prev
        run_bytes = 0
        block: Block | None = start
        while block is not None and run_bytes < size_bytes and (block.is_free or not block.is_mapped):
            run_bytes += block.size_bytes
            block = block.next
        if run_bytes >= size_bytes:
            return start
    return None


def range_bytes(heap: Heap, free: FreeBlocks) -> int:
    """Address space of one expandable segment: an eighth more than the device has, in whole pages [bytes]."""
    total = UNKNOWN_DEVICE_BYTES if heap.total_bytes is None else heap.total_bytes
    return ceil_div(9 * total, 8 * free.pool.page_bytes) * free.pool.page_bytes


def _reserve(heap: Heap, free: FreeBlocks, size_bytes: int) -> Block | None:
    size = range_bytes(heap, free)
    if size < size_bytes:
        return None
    try:
        address = heap.driver.reserve(size)
    except OutOfMemory:
        return None
    block = Block(address, size, free, virtual=VirtualRange(address, size))
    block.is_mapped = False
    heap.add(block)
    insort(free.unmapped, address)
    return block


def _map(heap: Heap, block: Block, size_bytes: int) -> Block | None:
    """Back the start of an unmapped block with whole pages; the free block that results, merged and in its set."""
    free = block.pool
    mapped_bytes = round_up(size_bytes, free.pool.page_bytes)
    if not heap.fits_device(mapped_bytes):
        return None
    try:
        heap.driver.map(block.address, mapped_bytes)
    except OutOfMemory:
        return None
    _take_unmapped(block)
    if mapped_bytes < block.size_bytes:
        insort(free.unmapped, heap.cut(block, mapped_bytes).address)
    block.is_mapped = True
    heap.hold(mapped_bytes)
    heap.tell("segment_map", block.address, mapped_bytes)
    return heap.merge_free(block)


def unmap(heap: Heap, block: Block) -> None:
    """Return the whole pages strictly inside a free block; the edges stay mapped and free."""
    virtual, page = block.virtual, block.pool.pool.page_bytes
    assert virtual is not None
    first = virtual.address + round_up(block.address - virtual.address, page)
    end = virtual.address + (block.end - virtual.address) // page * page
    if first >= end:
        return
    heap.remove(block)
    if first > block.address:
        inner = heap.cut(block, first - block.address)
        heap.insert(block)
        block = inner
    if end < block.end:
        heap.insert(heap.cut(block, end - block.address))
    block.is_mapped = False
    heap.hold(first - end)
    heap.tell("segment_unmap", first, end - first)
    block = _merge_unmapped(heap, block)
    if block.is_whole_segment:
        del heap.blocks[block.address]
    else:
        insort(block.pool.unmapped, block.address)


def _merge_unmapped(heap: Heap, block: Block) -> Block:
    before, after = block.prev, block.next
    if before is not None and not before.is_mapped:
        _take_unmapped(before)
        heap.absorb_next(before)
        block = before
    if after is not None and not after.is_mapped:
        _take_unmapped(after)
        heap.absorb_next(block)
    return block


def _take_unmapped(block: Block) -> None:
    unmapped = block.pool.unmapped
    del unmapped[bisect_left(unmapped, block.address)]


def collect_garbage(heap: Heap) -> None:
    """Release whole large segments that have long gone unused, once the heap passes its share of the limit.

    Age is the number of searches in the pool since the block became free. A pass releases everything of mean age or
    more, even past the target, so that collections stay rare.
    """
    threshold, limit = heap.settings.garbage_collection_threshold, heap.limit_bytes
    if threshold is None or limit is None:
        return
    target_bytes = heap.reserved_bytes - int(threshold * limit)
    released_bytes = 0
    pool = heap.large
    old = [b for b in heap.free_blocks(pool) if b.is_whole_segment and b.virtual is None]
    while old and released_bytes < target_bytes:
        ages = [pool.searches - block.searches_at_free for block in old]
        total_age, count = sum(ages), len(old)
        kept: list[Block] = []
        for block, age in zip(old, ages, strict=True):
            if age * count >= total_age:
                heap.release(block)
                released_bytes += block.size_bytes
            else:
                kept.append(block)
        old = kept


def release_available(heap: Heap, free: FreeBlocks, size_bytes: int) -> bool:
    """Release just enough unsplittable blocks for a request; whether it was enough.

    Args:
        heap: where from
        free: the blocks that the request may use
    """
    max_split_bytes = heap.settings.max_split_bytes
    if max_split_bytes is None:
        return False
    wanted_bytes = max(size_bytes, max_split_bytes)
    blocks = [heap.blocks[key & ADDRESS_MASK] for key in free.keys]
    index = bisect_left(free.keys, wanted_bytes << ADDRESS_BITS)
    if index < len(blocks) and blocks[index].virtual is None:
        heap.release(blocks[index])
        return True
    released_bytes = 0
    for block in reversed(blocks[:index]):
        if released_bytes >= wanted_bytes or block.size_bytes < max_split_bytes:
            break
        if block.virtual is None:
            heap.release(block)
            released_bytes += block.size_bytes
    return released_bytes >= wanted_bytes


def release_default(heap: Heap) -> None:
    """Give back every free whole segment and every free page of the default pool, the large ones first."""
    release_pool(heap, heap.large)
    release_pool(heap, heap.small)


def release_private(heap: Heap, pool: PrivatePool) -> None:
    """The same for a private pool that nobody uses any more, the small ones first."""
    release_pool(heap, pool.small)
    release_pool(heap, pool.large)


def release_pool(heap: Heap, pool: BlockPool) -> None:
    """Whole segments in the order of the set, then the pages of what is expandable."""
    free = heap.free_blocks(pool)
    for block in free:
        if block.virtual is None and block.is_whole_segment:
            heap.release(block)
    for block in free:
        if block.virtual is not None:
            unmap(heap, block)
