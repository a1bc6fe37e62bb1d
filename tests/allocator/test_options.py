"""Rules that only options switch on; no real trace covers them but the expandable best fit."""

import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory, Settings

from .test_caching import MIB, Log


def expandable(capacity_bytes: int = 1000 * MIB, log: Log | None = None) -> Allocator:
    return Allocator(settings=Settings(expandable_segments=True), capacity_bytes=capacity_bytes, observer=log)


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


def test_a_request_past_the_limit_can_be_rejected_before_anything_is_given_back() -> None:
    conf = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"
    allocator = Allocator(settings=Settings.parse(conf), capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(40 * MIB)
    assert (allocator.num_ooms, allocator.num_alloc_retries) == (0, 0)
    assert allocator.reserved_bytes == 30 * MIB
