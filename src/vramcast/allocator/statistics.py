"""What `torch.cuda.memory_stats` counts of the present state.

[caching] pytorch c10/core/CachingDeviceAllocator.h, struct DeviceStats
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from vramcast.allocator.blocks import Block
from vramcast.allocator.heap import Heap

Part = Literal["all", "small_pool", "large_pool"]
PARTS: Final[tuple[Part, ...]] = ("all", "small_pool", "large_pool")


class Counted(Struct):
    """Current values of one part of the memory."""

    allocation: int = 0  # live blocks [count]
    active: int = 0  # live blocks and those that await their free [count]
    inactive_split: int = 0  # free blocks in segments that are not free as a whole [count]
    segment: int = 0  # cudaMalloc'ed segments; expandable ones do not count [count]
    allocated_bytes: int = 0
    active_bytes: int = 0
    inactive_split_bytes: int = 0
    requested_bytes: int = 0
    reserved_bytes: int = 0


class Statistics(Struct, frozen=True):
    """Current values, in all and by size class; private pools count with the others."""

    all: Counted
    small_pool: Counted
    large_pool: Counted


def statistics(heap: Heap) -> Statistics:
    """Count the blocks of a heap; as long as a walk over them takes."""
    found = Statistics(Counted(), Counted(), Counted())
    for block in heap.blocks.values():
        if block.is_mapped:
            _count(block, found.all)
            _count(block, found.small_pool if block.pool.pool.is_small else found.large_pool)
    return found


def _count(block: Block, part: Counted) -> None:
    size = block.size_bytes
    part.reserved_bytes += size
    part.segment += block.prev is None and block.virtual is None
    if block.requested_bytes:
        part.allocation += 1
        part.allocated_bytes += size
    if not block.is_free:
        part.active += 1
        part.active_bytes += size
        part.requested_bytes += block.view().requested_bytes
    elif block.virtual is None and not block.is_whole_segment:
        part.inactive_split += 1
        part.inactive_split_bytes += size
