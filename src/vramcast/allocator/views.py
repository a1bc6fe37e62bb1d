"""The heap as frozen segments, and back: what a memory snapshot holds."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from vramcast.allocator.blocks import Block, BlockPool, ForeignUse, FreeBlocks, VirtualRange
from vramcast.allocator.expandable import range_bytes
from vramcast.allocator.heap import Heap, RisingAddresses
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
            raise InvalidSpec(f"block {block.address:#x} does not follow its neighbour; blocks must tile their segment")
        address += block.size_bytes
    if address != segment.address + segment.size_bytes:
        raise InvalidSpec(f"the blocks of segment {segment.address:#x} do not add up to its {segment.size_bytes} bytes")


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
