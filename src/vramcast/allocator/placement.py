"""Putting blocks and segments where a recording says they were, instead of where a search would put them."""

from __future__ import annotations

from vramcast.allocator.blocks import ADDRESS_MASK, Block, FreeBlocks
from vramcast.allocator.heap import Heap


def place(heap: Heap, free: FreeBlocks, address: int, size_bytes: int) -> Block | None:
    """Cut a block out of the free one around an address.

    Args:
        heap: where
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


def adopt(heap: Heap, free: FreeBlocks, address: int, size_bytes: int) -> bool:
    """Add a segment that the recording has and the heap lacks, all of it free; whether there was room for it."""
    end = address + size_bytes
    if any(block.address < end and address < block.end for block in heap.blocks.values() if block.is_mapped):
        return False
    block = Block(address, size_bytes, free)
    heap.add(block)
    heap.hold(size_bytes)
    heap.insert(block)
    return True
