"""Private pools: captures of graphs and `torch.cuda.use_mem_pool`. From upstream's source; no recording covers them."""

import pytest

from vramcast.allocator import Allocator
from vramcast.errors import InvalidSpec

from .test_caching import MIB, Log

GRAPH, SECOND = (1, 0), (0, 1)


def test_the_memory_of_a_destroyed_graph_goes_back_with_the_cache_small_blocks_first() -> None:
    log = Log()
    allocator = Allocator(observer=log)
    allocator.begin_pool(GRAPH)
    handles = [allocator.allocate(30 * MIB), allocator.allocate(1)]
    allocator.end_pool(GRAPH)
    for handle in handles:
        allocator.free(handle)
    allocator.release_pool(GRAPH)
    log.events.clear()
    allocator.empty_cache()
    assert log.events == [("segment_free", 2), ("segment_free", 30)]
    with pytest.raises(InvalidSpec, match="no users"):
        allocator.release_pool(GRAPH)


def test_a_pool_with_live_tensors_outlives_its_graph() -> None:
    allocator = Allocator()
    allocator.begin_pool(GRAPH)
    live = allocator.allocate(30 * MIB)
    allocator.end_pool(GRAPH)
    allocator.release_pool(GRAPH)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 30 * MIB
    allocator.free(live)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_a_block_freed_during_a_capture_waits_for_its_end() -> None:
    allocator = Allocator()
    used = allocator.allocate(30 * MIB)
    allocator.begin_pool(GRAPH)
    allocator.record_stream(used, 7)
    allocator.free(used)
    allocator.allocate(1)
    assert allocator.awaits_free(used)
    allocator.end_pool(GRAPH)
    # What the capture recorded is over with it: no event of the stream is waited for.
    assert allocator.allocate(30 * MIB) == used


def test_contexts_that_do_not_pair_are_refused() -> None:
    allocator = Allocator()
    allocator.begin_pool(GRAPH)
    with pytest.raises(InvalidSpec, match="allocated to already"):
        allocator.begin_pool(GRAPH)
    with pytest.raises(InvalidSpec, match="begin before"):
        allocator.end_pool(SECOND)


def test_segments_expand_from_when_they_are_switched_on_and_what_is_there_stays() -> None:
    log = Log()
    allocator = Allocator(observer=log)
    first = allocator.allocate(30 * MIB)
    allocator.expand(expands=True)
    second = allocator.allocate(21 * MIB)
    allocator.expand(expands=False)
    third = allocator.allocate(12 * MIB)
    assert log.events == [("segment_alloc", 30), ("segment_map", 40), ("segment_alloc", 12)]
    for handle in (first, second, third):
        allocator.free(handle)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
