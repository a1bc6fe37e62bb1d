"""Where reserved memory is that no tensor has."""

from vramcast.domain.snapshot import BlockView, SegmentView
from vramcast.recordings.fragmentation import contiguity, fragmentation
from vramcast.units import MIB


def live(address: int, size: int, requested: int | None = None, stack: int = 0) -> BlockView:
    return BlockView(address=address, size_bytes=size, requested_bytes=requested or size, stack=stack)


def free(address: int, size: int) -> BlockView:
    return BlockView(address=address, size_bytes=size, is_free=True)


def segment(*blocks: BlockView, stream: int = 0) -> SegmentView:
    size = sum(block.size_bytes for block in blocks)
    return SegmentView(address=blocks[0].address, size_bytes=size, is_small=False, blocks=blocks, stream=stream)


def waiting(address: int, size: int) -> BlockView:
    return BlockView(address=address, size_bytes=size, requested_bytes=size, awaits_free=True)


SEGMENTS = (
    segment(live(0, 2 * MIB, 2 * MIB - 100, stack=3), free(2 * MIB, 15 * MIB), live(17 * MIB, 3 * MIB, stack=4)),
    segment(free(100 * MIB, 20 * MIB)),
    segment(waiting(200 * MIB, 5 * MIB), free(205 * MIB, 5 * MIB)),
)


def test_a_segment_that_is_mostly_empty_names_what_holds_it() -> None:
    first, second = fragmentation(SEGMENTS, 0, top=10).pinned
    assert (first.free_bytes, first.live_bytes) == (15 * MIB, 5 * MIB)
    assert [block.size_bytes for block in first.pins] == [3 * MIB, 2 * MIB]
    assert second.free_bytes == 5 * MIB
    assert len(fragmentation(SEGMENTS, 0, top=1).pinned) == 1


def test_memory_in_one_piece_would_have_served_what_pieces_cannot() -> None:
    room = contiguity(SEGMENTS, 30 * MIB)
    assert (room.free_bytes, room.largest_bytes, room.if_contiguous) == (40 * MIB, 20 * MIB, True)
    assert not contiguity(SEGMENTS, 41 * MIB).if_contiguous
    assert contiguity(SEGMENTS, 41 * MIB, driver_free_bytes=MIB).if_contiguous
    assert contiguity(SEGMENTS, MIB, stream=7).free_bytes == 0  # another stream's memory serves nobody
