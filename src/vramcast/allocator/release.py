"""Giving cached memory back to the driver.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: garbage_collect_cached_blocks, release_available_cached_blocks,
release_cached_blocks
"""

from __future__ import annotations

from bisect import bisect_left

from vramcast.allocator.blocks import ADDRESS_BITS, ADDRESS_MASK, Block, BlockPool, FreeBlocks, PrivatePool
from vramcast.allocator.expandable import unmap
from vramcast.allocator.heap import Heap


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
        size_bytes: the rounded request [bytes]
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
