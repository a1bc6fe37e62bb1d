"""Blocks of several streams, and blocks that one stream frees while another still uses them."""

import pytest

from vramcast.allocator import Allocator
from vramcast.errors import InvalidSpec

from .test_caching import MIB, Log

SIDE, OTHER = 7, 9


def test_a_free_block_serves_only_the_stream_it_was_allocated_on() -> None:
    allocator = Allocator()
    block = allocator.allocate(30 * MIB, SIDE)
    allocator.free(block)
    assert allocator.allocate(30 * MIB) != block
    assert allocator.allocate(30 * MIB, SIDE) == block
    assert {(s.stream, s.size_bytes // MIB) for s in allocator.segments()} == {(0, 30), (SIDE, 30)}


def test_a_block_that_another_stream_uses_stays_active_until_that_stream_is_done() -> None:
    allocator = Allocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, SIDE)
    allocator.free(block)
    assert (allocator.allocated_bytes, allocator.statistics().all.active_bytes) == (0, 30 * MIB)
    assert allocator.requested_bytes == 30 * MIB
    assert allocator.segments()[0].blocks[0].awaits_free
    assert allocator.allocate(30 * MIB) != block
    allocator.complete(block)
    assert allocator.allocate(30 * MIB) == block
    assert allocator.statistics().all.active_bytes == allocator.allocated_bytes == 60 * MIB


def test_a_use_on_its_own_stream_does_not_hold_a_block_up() -> None:
    allocator = Allocator()
    block = allocator.allocate(30 * MIB, SIDE)
    allocator.record_stream(block, SIDE)
    allocator.free(block)
    assert allocator.statistics().all.active_bytes == 0


def test_a_waiting_block_does_not_merge_with_its_neighbours() -> None:
    allocator = Allocator()
    first, second = allocator.allocate(5 * MIB), allocator.allocate(5 * MIB)
    allocator.record_stream(second, SIDE)
    allocator.free(second)
    allocator.free(first)
    assert [block.size_bytes // MIB for block in allocator.segments()[0].blocks] == [5, 5, 10]
    allocator.complete(second)
    assert [block.size_bytes // MIB for block in allocator.segments()[0].blocks] == [20]


def test_a_full_device_waits_for_all_streams_before_it_gives_up() -> None:
    log = Log()
    allocator = Allocator(capacity_bytes=50 * MIB, observer=log)
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, SIDE)
    allocator.free(block)
    log.events.clear()
    allocator.allocate(40 * MIB)
    assert log.events == [("segment_free", 30), ("segment_alloc", 40)]


def test_a_wait_can_be_ended_for_one_block_as_a_recording_says() -> None:
    allocator = Allocator()
    first, second = allocator.allocate(30 * MIB), allocator.allocate(30 * MIB)
    for block in (first, second):
        allocator.record_stream(block, SIDE)
        allocator.free(block)
    allocator.complete(second)
    assert allocator.awaits_free(first) and not allocator.awaits_free(second)
    with pytest.raises(InvalidSpec, match="does not wait"):
        allocator.complete(second)


def test_freeing_twice_while_it_waits_is_refused() -> None:
    allocator = Allocator()
    block = allocator.allocate(30 * MIB)
    allocator.record_stream(block, SIDE)
    allocator.free(block)
    with pytest.raises(InvalidSpec, match="not a live block"):
        allocator.free(block)


def test_cached_segments_go_back_by_pool_then_stream_then_size_then_address() -> None:
    log = Log()
    allocator = Allocator(observer=log)
    handles = [
        allocator.allocate(size, stream)
        for size, stream in ((1, OTHER), (40 * MIB, SIDE), (30 * MIB, OTHER), (50 * MIB, 0), (20 * MIB, SIDE))
    ]
    for handle in handles:
        allocator.free(handle)
    log.events.clear()
    allocator.empty_cache()
    assert log.events == [("segment_free", size) for size in (50, 20, 40, 30, 2)]
