"""The map of segments, and where reserved memory is that no tensor has: rounding, holes, cached segments; who keeps it.

Fragmentation is 1 - peak active / peak reserved [GMLake], Guo et al., ASPLOS 2024, arXiv:2401.08156, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import DEFAULT_POOL, BlockView, PoolId, SegmentView
from vramcast.units import MIB


class Part(IntEnum):
    """What a stretch of a segment is."""

    LIVE = 0
    FREE = 1
    AWAITS_FREE = 2


class Stretch(NamedTuple):
    """Neighbouring blocks of one kind."""

    part: Part
    size_bytes: int
    num_blocks: int


class Bar(NamedTuple):
    """One segment."""

    address: int
    size_bytes: int
    live_bytes: int
    free_bytes: int
    largest_free_bytes: int
    is_small: bool
    is_expandable: bool
    stream: int
    pool: PoolId
    stretches: tuple[Stretch, ...]  # by address; they add up to the segment


def part_of(block: BlockView) -> Part:
    """What a block is."""
    if block.is_free:
        return Part.FREE
    return Part.AWAITS_FREE if block.awaits_free else Part.LIVE


def segment_map(segments: Iterable[SegmentView]) -> tuple[Bar, ...]:
    """The bars by address."""
    return tuple(_bar(segment) for segment in sorted(segments, key=lambda segment: segment.address))


def _bar(segment: SegmentView) -> Bar:
    free = [block.size_bytes for block in segment.blocks if block.is_free]
    live = sum(block.size_bytes for block in segment.blocks if part_of(block) == Part.LIVE)
    return Bar(
        segment.address, segment.size_bytes, live, sum(free), max(free, default=0), segment.is_small,
        segment.is_expandable, segment.stream, segment.pool, tuple(_stretches(segment)),
    )


def _stretches(segment: SegmentView) -> Iterator[Stretch]:
    for part, blocks in groupby(segment.blocks, key=part_of):
        sizes = [block.size_bytes for block in blocks]
        yield Stretch(part, sum(sizes), len(sizes))


SIZE_CLASSES: Final = (MIB, 10 * MIB, 100 * MIB, 1000 * MIB)
"""Upper ends of the classes of holes; the last has none. 1 and 10 MiB are where the allocator itself changes rules
[pytorch c10/cuda/CUDACachingAllocator.cpp, kSmallSize, kMinLargeAlloc]."""

MOST_PINS: Final = 4
"""Live blocks named of a segment that is mostly empty [count]."""

MOSTLY_EMPTY: Final = 0.5


class HoleClass(NamedTuple):
    """Free blocks of split segments up to a size."""

    up_to_bytes: int | None  # exclusive; None: without end
    size_bytes: int
    num_blocks: int


class Hole(NamedTuple):
    """A free block that cannot go back to the driver, and the blocks on either side."""

    address: int
    size_bytes: int
    segment: int  # address
    segment_bytes: int
    before: BlockView | None  # None: the segment begins here
    after: BlockView | None  # None: the segment ends here


class Pinned(NamedTuple):
    """A segment that is mostly free and held by little."""

    address: int
    size_bytes: int
    free_bytes: int
    live_bytes: int
    pins: tuple[BlockView, ...]  # the largest of what is live in it


class Fragmentation(Noun, frozen=True):
    """Reserved memory at one moment; the parts add up to it [bytes]."""

    event: int  # -1: before the first
    reserved_bytes: int
    requested_bytes: int  # by tensors
    rounding_bytes: int  # to 512 bytes, and slack of large blocks
    awaiting_bytes: int  # freed, still used on another stream
    split_free_bytes: int  # free in segments that something else holds
    cached_bytes: int  # whole free segments, which empty_cache or a retry gives back
    classes: tuple[HoleClass, ...]  # of split_free_bytes
    holes: tuple[Hole, ...]  # largest first
    pinned: tuple[Pinned, ...]  # most free first
    num_holes: int
    num_segments: int

    @property
    def allocated_bytes(self) -> int:
        """Blocks of tensors, with rounding and slack."""
        return self.requested_bytes + self.rounding_bytes

    @property
    def at_the_moment(self) -> float:
        """Share of reserved memory that no tensor's block has."""
        active = self.allocated_bytes + self.awaiting_bytes
        return 1 - active / self.reserved_bytes if self.reserved_bytes else 0.0


class Contiguity(NamedTuple):
    """Whether free memory would have held a request."""

    request_bytes: int
    free_bytes: int | None  # in the allocator, of the pool and stream that the request wants
    largest_bytes: int | None  # of those, in one piece
    driver_free_bytes: int | None  # what the driver said was free besides

    @property
    def if_contiguous(self) -> bool | None:
        """Whether it would have fitted, were all of that one piece; None where what is known does not tell."""
        if self.free_bytes is None:
            return None
        if self.request_bytes <= self.free_bytes + (self.driver_free_bytes or 0):
            return True
        return None if self.driver_free_bytes is None else False


def peak_fragmentation(*, peak_active_bytes: int, peak_reserved_bytes: int) -> float | None:
    """Fragmentation of a whole run; None where nothing was reserved.

    Args:
        peak_active_bytes: the most that tensors held [bytes]
        peak_reserved_bytes: the most that was held from the driver [bytes]

    Source: [GMLake] section 2

    >>> peak_fragmentation(peak_active_bytes=6, peak_reserved_bytes=8)
    0.25
    """
    return 1 - peak_active_bytes / peak_reserved_bytes if peak_reserved_bytes else None


def fragmentation(segments: Iterable[SegmentView], event: int, *, top: int) -> Fragmentation:
    """Reserved memory after an event, part by part.

    Args:
        event: its index; -1 is the state before the first
        top: how many holes and pinned segments to name
    """
    views = tuple(segments)
    live = [block for segment in views for block in segment.blocks if part_of(block) == Part.LIVE]
    awaiting = sum(b.size_bytes for segment in views for b in segment.blocks if part_of(b) == Part.AWAITS_FREE)
    requested = sum(block.requested_bytes or block.size_bytes for block in live)
    holes = sorted((hole for segment in views for hole in _holes(segment)), key=lambda h: (-h.size_bytes, h.address))
    return Fragmentation(
        event=event,
        reserved_bytes=sum(segment.size_bytes for segment in views),
        requested_bytes=requested,
        rounding_bytes=sum(block.size_bytes for block in live) - requested,
        awaiting_bytes=awaiting,
        split_free_bytes=sum(hole.size_bytes for hole in holes),
        cached_bytes=sum(segment.size_bytes for segment in views if is_cached(segment)),
        classes=tuple(_classes(holes)),
        holes=tuple(holes[:top]),
        pinned=_pinned(views, top),
        num_holes=len(holes),
        num_segments=len(views),
    )


def is_cached(segment: SegmentView) -> bool:
    """Whether nothing in the segment is live: it can go back to the driver."""
    return all(block.is_free for block in segment.blocks)


def contiguity(
    segments: Iterable[SegmentView], request_bytes: int, *, stream: int = 0, pool: PoolId = DEFAULT_POOL,
    driver_free_bytes: int | None = None,
) -> Contiguity:
    """Whether a request could have been served if free memory were in one piece.

    Leaves out memory of other streams and pools, which never serves the request.

    Args:
        segments: the state when it was asked for
        driver_free_bytes: free on the card besides, where known [bytes]
    """
    free = [
        block.size_bytes for segment in segments if segment.stream == stream and segment.pool == pool
        for block in segment.blocks if block.is_free
    ]
    return Contiguity(request_bytes, sum(free), max(free, default=0), driver_free_bytes)


def _holes(segment: SegmentView) -> Iterator[Hole]:
    if is_cached(segment):
        return
    blocks = segment.blocks
    for index, block in enumerate(blocks):
        if block.is_free:
            before = blocks[index - 1] if index else None
            after = blocks[index + 1] if index + 1 < len(blocks) else None
            yield Hole(block.address, block.size_bytes, segment.address, segment.size_bytes, before, after)


def _classes(holes: list[Hole]) -> Iterator[HoleClass]:
    low = 0
    for high in (*SIZE_CLASSES, None):
        sizes = [
            hole.size_bytes for hole in holes
            if low <= hole.size_bytes and (high is None or hole.size_bytes < high)
        ]
        yield HoleClass(high, sum(sizes), len(sizes))
        low = high or low


def _pinned(segments: tuple[SegmentView, ...], top: int) -> tuple[Pinned, ...]:
    found = []
    for segment in segments:
        free = sum(block.size_bytes for block in segment.blocks if block.is_free)
        if not is_cached(segment) and free >= MOSTLY_EMPTY * segment.size_bytes:
            found.append((free, segment))
    found.sort(key=lambda item: (-item[0], item[1].address))
    return tuple(_pin(free, segment) for free, segment in found[:top])


def _pin(free: int, segment: SegmentView) -> Pinned:
    held = sorted((b for b in segment.blocks if not b.is_free), key=lambda b: (-b.size_bytes, b.address))
    live = sum(block.size_bytes for block in held)
    return Pinned(segment.address, segment.size_bytes, free, live, tuple(held[:MOST_PINS]))
