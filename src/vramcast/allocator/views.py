"""The heap as frozen segments, as a memory snapshot holds it, and back; what `torch.cuda.memory_stats` counts of it.

[caching] pytorch c10/core/CachingDeviceAllocator.h, struct DeviceStats
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, Literal

from msgspec import Struct

from vramcast.allocator.device_memory import range_bytes
from vramcast.allocator.heap import Block, BlockPool, ForeignUse, FreeBlocks, Heap, RisingAddresses, VirtualRange
from vramcast.domain.snapshot import DEFAULT_POOL, BlockView, SegmentView
from vramcast.errors import InvalidSpec

OTHER_STREAM: Final = -1
"""Stream that a block of a snapshot waits for: snapshots do not say which."""


def segment_views(heap: Heap) -> Iterator[SegmentView]:
    """Segments by address; an expandable segment is listed as its mapped runs, as snapshots list it."""
    for chain in heap.chains():
        for is_mapped, run in groupby(chain, key=lambda block: block.is_mapped):
            if is_mapped:
                yield _view(list(run))


def _view(run: list[Block]) -> SegmentView:
    free = run[0].pool
    return SegmentView(
        address=run[0].address,
        size_bytes=run[-1].end - run[0].address,
        is_small=free.pool.is_small,
        is_expandable=run[0].virtual is not None,
        blocks=tuple(block.view() for block in run),
        stream=free.stream,
        pool=free.pool.owner,
    )


def restore(heap: Heap, segments: Iterable[SegmentView]) -> None:
    """Fill an empty heap.

    Mapped runs of one pool and stream are taken to lie in one address range that starts with the first of them: a
    snapshot does not say where a range begins. A run without size says it.

    Raises: InvalidSpec where the blocks do not tile their segment.
    """
    runs: dict[FreeBlocks, list[SegmentView]] = {}
    for segment in sorted(segments, key=lambda segment: segment.address):
        _check_tiling(segment)
        free = _pool(heap, segment).on(segment.stream)
        if segment.is_expandable:
            runs.setdefault(free, []).append(segment)
        else:
            _chain(heap, free, segment, None, None)
        heap.hold(segment.size_bytes)
    for free, views in runs.items():
        _restore_range(heap, free, views)
    if isinstance(heap.driver, RisingAddresses):
        heap.driver.start_above(max((block.end for block in heap.blocks.values()), default=0))


def _pool(heap: Heap, segment: SegmentView) -> BlockPool:
    if segment.pool == DEFAULT_POOL:
        return heap.small if segment.is_small else heap.large
    private = heap.private_pool(segment.pool)
    return private.small if segment.is_small else private.large


def _check_tiling(segment: SegmentView) -> None:
    address = segment.address
    for block in segment.blocks:
        if block.address != address or block.size_bytes <= 0:
            raise InvalidSpec(
                "block {:#x} does not follow its neighbour; blocks must tile their segment", block.address
            )
        address += block.size_bytes
    if address != segment.address + segment.size_bytes:
        raise InvalidSpec(
            "the blocks of segment {:#x} do not add up to its {} bytes", segment.address, segment.size_bytes
        )


def _restore_range(heap: Heap, free: FreeBlocks, runs: list[SegmentView]) -> None:
    start = address = runs[0].address
    span = runs[-1].address + runs[-1].size_bytes - start
    size = max(range_bytes(heap, free), span)
    virtual = VirtualRange(start, size)
    tail: Block | None = None
    for run in runs:
        if address < run.address:
            tail = _unmapped(heap, Block(address, run.address - address, free, tail, None, virtual))
        tail = _chain(heap, free, run, tail, virtual)
        address = run.address + run.size_bytes
    if address < start + size:
        _unmapped(heap, Block(address, start + size - address, free, tail, None, virtual))


def _unmapped(heap: Heap, block: Block) -> Block:
    block.is_mapped = False
    if block.prev is not None:
        block.prev.next = block
    heap.add(block)
    insort(block.pool.unmapped, block.address)
    return block


def _chain(
    heap: Heap, free: FreeBlocks, segment: SegmentView, tail: Block | None, virtual: VirtualRange | None
) -> Block | None:
    for view in segment.blocks:
        block = Block(view.address, view.size_bytes, free, tail, None, virtual)
        if tail is not None:
            tail.next = block
        heap.add(block)
        _fill(heap, block, view)
        tail = block
    return tail


def _fill(heap: Heap, block: Block, view: BlockView) -> None:
    if view.is_free:
        heap.insert(block)
        return
    block.requested_bytes = view.requested_bytes or view.size_bytes
    if view.awaits_free:
        block.foreign = ForeignUse()
        block.foreign.streams.append(OTHER_STREAM)


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
