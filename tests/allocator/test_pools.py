"""Private pools: captures of graphs and `torch.cuda.use_mem_pool`. From upstream's source; no recording covers them."""

import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory, Settings
from vramcast.errors import InvalidSpec

from .test_caching import MIB, Log

GRAPH, SECOND = (1, 0), (0, 1)


def test_a_capture_allocates_from_its_own_pool_and_keeps_the_memory() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.begin_pool(GRAPH)
    captured = allocator.allocate(30 * MIB)
    allocator.free(captured)
    assert allocator.allocate(30 * MIB) == captured  # reused within the capture
    allocator.free(captured)
    allocator.end_pool(GRAPH)
    assert allocator.reserved_bytes == 60 * MIB
    assert allocator.allocate(30 * MIB) != captured
    allocator.empty_cache()
    assert allocator.reserved_bytes == 60 * MIB  # the graph still owns its 30 MiB
    assert {segment.pool for segment in allocator.segments()} == {(0, 0), GRAPH}


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


def test_a_full_device_does_not_give_the_cache_back_during_a_capture() -> None:
    allocator = Allocator(capacity_bytes=50 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.begin_pool(GRAPH)
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(30 * MIB)
    allocator.end_pool(GRAPH)
    allocator.allocate(40 * MIB)


def test_free_memory_of_private_pools_is_named_in_the_message() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.begin_pool(GRAPH)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.end_pool(GRAPH)
    with pytest.raises(DeviceOutOfMemory) as caught:
        allocator.allocate(50 * MIB)
    text = caught.value.torch_message((2, 6))
    assert "60.00 MiB is allocated by PyTorch, with 60.00 MiB allocated in private pools (e.g., CUDA Graphs)" in text
    assert "private" not in caught.value.torch_message((2, 1))


@pytest.mark.parametrize(("version", "taken"), [((2, 9), GRAPH), ((2, 10), SECOND)])
def test_of_two_contexts_the_newest_wins_since_2_10(version: tuple[int, int], taken: tuple[int, int]) -> None:
    allocator = Allocator(settings=Settings(version=version))
    allocator.begin_pool(GRAPH)
    allocator.begin_pool(SECOND)
    allocator.allocate(30 * MIB)
    assert [segment.pool for segment in allocator.segments()] == [taken]


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
