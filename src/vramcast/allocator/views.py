"""The heap as frozen segments, and back: what a memory snapshot holds."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import groupby

from vramcast.allocator.blocks import Block, Pool, VirtualRange
from vramcast.allocator.expandable import range_bytes
from vramcast.allocator.heap import Heap, RisingAddresses
from vramcast.domain.snapshot import SegmentView
from vramcast.errors import InvalidSpec


def segment_views(heap: Heap) -> Iterator[SegmentView]:
    """Segments by address; an expandable segment is listed as its mapped runs, as snapshots list it."""
    for chain in heap.chains():
        for is_mapped, run in groupby(chain, key=lambda block: block.is_mapped):
            if is_mapped:
                yield _view(list(run))


def _view(run: list[Block]) -> SegmentView:
    return SegmentView(
        address=run[0].address,
        size_bytes=run[-1].end - run[0].address,
        is_small=run[0].pool.is_small,
        is_expandable=run[0].virtual is not None,
        blocks=tuple(block.view() for block in run),
    )


def restore(heap: Heap, segments: Iterable[SegmentView]) -> None:
    """Fill an empty heap.

    Mapped runs of one pool are taken to lie in one address range that starts with the first of them: a snapshot does
    not say where a range begins.

    Raises: InvalidSpec where the blocks do not tile their segment.
    """
    runs: dict[bool, list[SegmentView]] = {}
    for segment in sorted(segments, key=lambda segment: segment.address):
        _check_tiling(segment)
        if segment.is_expandable:
            runs.setdefault(segment.is_small, []).append(segment)
        else:
            _chain(heap, _pool(heap, segment), segment, None, None)
        heap.hold(segment.size_bytes)
    for views in runs.values():
        _restore_range(heap, _pool(heap, views[0]), views)
    if isinstance(heap.driver, RisingAddresses):
        heap.driver.start_above(max((block.end for block in heap.blocks.values()), default=0))


def _pool(heap: Heap, segment: SegmentView) -> Pool:
    return heap.small if segment.is_small else heap.large


def _check_tiling(segment: SegmentView) -> None:
    address = segment.address
    for block in segment.blocks:
        if block.address != address or block.size_bytes <= 0:
            raise InvalidSpec(f"block {block.address:#x} does not follow its neighbour; blocks must tile their segment")
        address += block.size_bytes
    if address != segment.address + segment.size_bytes:
        raise InvalidSpec(f"the blocks of segment {segment.address:#x} do not add up to its {segment.size_bytes} bytes")


def _restore_range(heap: Heap, pool: Pool, runs: list[SegmentView]) -> None:
    start = runs[0].address
    span = runs[-1].address + runs[-1].size_bytes - start
    size = max(range_bytes(heap, pool), span)
    virtual = VirtualRange(start, size)
    tail: Block | None = None
    for run in runs:
        if tail is not None and tail.end < run.address:
            tail = _unmapped(heap, pool, tail, run.address, virtual)
        tail = _chain(heap, pool, run, tail, virtual)
    if tail is not None and tail.end < start + size:
        _unmapped(heap, pool, tail, start + size, virtual)


def _unmapped(heap: Heap, pool: Pool, tail: Block, end: int, virtual: VirtualRange) -> Block:
    block = Block(tail.end, end - tail.end, pool, tail, None, virtual)
    block.is_mapped = False
    tail.next = block
    heap.add(block)
    insort(pool.unmapped, block.address)
    return block


def _chain(
    heap: Heap, pool: Pool, segment: SegmentView, tail: Block | None, virtual: VirtualRange | None
) -> Block | None:
    for view in segment.blocks:
        block = Block(view.address, view.size_bytes, pool, tail, None, virtual)
        if tail is not None:
            tail.next = block
        heap.add(block)
        if view.is_free:
            heap.insert(block)
        else:
            block.requested_bytes = view.requested_bytes or view.size_bytes
        tail = block
    return tail
