"""Rules that only options switch on; no real trace covers them but the expandable best fit."""

import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory, Settings

from .test_caching import MIB, Addresses, Log, sizes


def expandable(capacity_bytes: int = 1000 * MIB, log: Log | None = None) -> Allocator:
    return Allocator(settings=Settings(expandable_segments=True), capacity_bytes=capacity_bytes, observer=log)


def test_expandable_segments_map_whole_pages_and_grow_in_place() -> None:
    log = Log()
    allocator = expandable(log=log)
    first = allocator.allocate(30 * MIB)
    second = allocator.allocate(30 * MIB)
    assert second == first + 30 * MIB
    assert log.events == [("segment_map", 40), ("segment_map", 20)]
    assert len(allocator.segments()) == 1 and allocator.reserved_bytes == 60 * MIB


def test_expandable_segments_split_at_512_bytes_in_both_pools() -> None:
    allocator = expandable()
    allocator.allocate(20 * MIB - 512)
    assert allocator.allocated_bytes == 20 * MIB - 512
    allocator.allocate(512)
    assert allocator.reserved_bytes == 22 * MIB


def test_a_closed_gap_is_preferred_to_a_smaller_block_that_can_grow() -> None:
    allocator = expandable()
    gap, _, tail = (allocator.allocate(n * MIB) for n in (18, 10, 8))
    allocator.free(gap)
    allocator.free(tail)
    assert sizes(allocator)[0] == [(18 * MIB, True), (10 * MIB, False), (12 * MIB, True)]
    assert allocator.allocate(5 * MIB) == gap
    assert sizes(allocator)[0][:2] == [(5 * MIB, False), (13 * MIB, True)]


def test_unmapping_returns_only_whole_pages_inside_a_free_block() -> None:
    log = Log()
    allocator = expandable(log=log)
    keep, drop, last = (allocator.allocate(n * MIB) for n in (5, 70, 5))
    allocator.free(drop)
    log.events.clear()
    allocator.empty_cache()
    assert log.events == [("segment_unmap", 40)]
    assert [s.size_bytes // MIB for s in allocator.segments()] == [20, 20]
    assert allocator.allocate(50 * MIB) == keep + 5 * MIB  # the hole is mapped again
    assert last == keep + 75 * MIB and allocator.reserved_bytes == 80 * MIB


def test_an_expandable_segment_without_pages_is_destroyed() -> None:
    allocator = expandable()
    handle = allocator.allocate(30 * MIB)
    allocator.free(handle)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0 and allocator.segments() == ()
    assert allocator.allocate(30 * MIB) != handle


def test_a_full_device_unmaps_what_is_free_before_it_gives_up() -> None:
    log = Log()
    allocator = expandable(capacity_bytes=100 * MIB, log=log)
    allocator.free(allocator.allocate(MIB))
    allocator.allocate(90 * MIB)
    assert log.events == [("segment_map", 2), ("segment_unmap", 2), ("segment_map", 100)]
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(20 * MIB)


def test_without_the_option_restored_expandable_memory_is_not_reused() -> None:
    source = expandable()
    free = source.allocate(30 * MIB)
    source.allocate(2 * MIB)
    source.free(free)
    allocator = Allocator()
    allocator.restore(source.segments())
    assert allocator.reserved_bytes == 40 * MIB
    allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 70 * MIB


def test_blocks_of_max_split_size_or_more_are_kept_whole() -> None:
    allocator = Allocator(settings=Settings(max_split_size_mb=32))
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(30 * MIB)  # may not take the 40 MiB block
    assert allocator.reserved_bytes == 70 * MIB
    allocator.allocate(33 * MIB)  # may, and keeps all of it
    assert allocator.reserved_bytes == 70 * MIB and allocator.allocated_bytes == 70 * MIB


def test_a_large_request_does_not_take_a_block_20_mib_larger() -> None:
    allocator = Allocator(settings=Settings(max_split_size_mb=32))
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 100 * MIB
    allocator.allocate(40 * MIB + 512)
    assert allocator.reserved_bytes == 100 * MIB


def test_oversize_blocks_are_released_before_the_whole_cache() -> None:
    log = Log()
    allocator = Allocator(settings=Settings(max_split_size_mb=32), capacity_bytes=200 * MIB, observer=log)
    handles = [allocator.allocate(n * MIB) for n in (30, 40, 60, 50)]
    for handle in handles:
        allocator.free(handle)
    log.events.clear()
    allocator.allocate(31 * MIB)  # the smallest block of 32 MiB or more has to go
    assert log.events == [("segment_free", 40), ("segment_alloc", 32)]
    log.events.clear()
    allocator.allocate(90 * MIB)  # none is large enough: from the largest down
    assert log.events == [("segment_free", 60), ("segment_free", 50), ("segment_alloc", 90)]
    assert allocator.num_alloc_retries == 0


def test_garbage_collection_releases_the_older_half_past_its_threshold() -> None:
    log = Log()
    settings = Settings(garbage_collection_threshold=0.5, per_process_memory_fraction=0.9)
    allocator = Allocator(settings=settings, capacity_bytes=200 * MIB, observer=log)
    handles = [allocator.allocate(n * MIB) for n in (30, 40, 50)]
    allocator.free(handles[2])
    allocator.free(allocator.allocate(10 * MIB))  # comes from the 50 MiB block: ages it anew
    allocator.free(handles[0])
    for _ in range(3):
        handles.append(allocator.allocate(28 * MIB))
        allocator.free(handles[-1])
    allocator.free(handles[1])
    log.events.clear()
    allocator.allocate(60 * MIB)  # held 120, threshold 90: the 50 MiB block is oldest
    assert log.events == [("segment_free", 50), ("segment_alloc", 60)]


def test_expandable_blocks_are_split_whatever_the_max_split_size() -> None:
    settings = Settings(expandable_segments=True, max_split_size_mb=32)
    allocator = Allocator(settings=settings, capacity_bytes=1000 * MIB)
    allocator.allocate(33 * MIB)
    assert allocator.allocated_bytes == 33 * MIB and allocator.reserved_bytes == 40 * MIB


def test_an_expandable_segment_reserves_an_eighth_more_address_space_than_the_device_has() -> None:
    driver = Addresses(1 << 40, 2 << 40)
    allocator = Allocator(settings=Settings(expandable_segments=True), capacity_bytes=1000 * MIB, driver=driver)
    allocator.allocate(1)
    allocator.allocate(2 * MIB)
    assert driver.asked == [1126 * MIB, 1140 * MIB]  # 1125 in pages of 2 and 20 MiB


def test_large_segments_of_another_size_serve_requests_of_1_to_10_mib() -> None:
    """A 2 MiB tensor reserves 40 MiB under large_segment_size_mb:40."""
    allocator = Allocator(settings=Settings.parse("large_segment_size_mb:40"))
    allocator.allocate(2 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_request_past_the_limit_can_be_rejected_before_anything_is_given_back() -> None:
    conf = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"
    allocator = Allocator(settings=Settings.parse(conf), capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(40 * MIB)
    assert (allocator.num_ooms, allocator.num_alloc_retries) == (0, 0)
    assert allocator.reserved_bytes == 30 * MIB
