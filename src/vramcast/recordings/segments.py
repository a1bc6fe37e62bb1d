"""The map of segments: each a bar of live, free and awaiting parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from vramcast.domain.snapshot import BlockView, PoolId, SegmentView


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
