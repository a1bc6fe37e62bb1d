"""The caching allocator, call by call: blocks, streams, pools, options, settings, rounding and messages."""

import json
import os
from pathlib import Path

import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory, Settings, round_size
from vramcast.allocator.failure import Figures, out_of_memory_message
from vramcast.errors import InvalidSpec, UnknownName, Unsupported

# The caching allocator, call by call: blocks, streams, pools, options, rounding and messages.

MIB = 1 << 20


class Log:
    """Collects segment events as (action, MiB)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []

    def __call__(self, action: str, address: int, size_bytes: int) -> None:
        self.events.append((action, size_bytes / MIB))


def test_a_negative_request_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="negative"):
        Allocator().allocate(-1)


def test_out_of_memory_carries_the_numbers_torch_prints() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.allocate(60 * MIB)
    with pytest.raises(DeviceOutOfMemory, match=r"42.00 MiB.*100.00 MiB") as caught:
        allocator.allocate(41 * MIB - 100)
    error = caught.value
    figures = error.figures
    assert figures.tried == 42 * MIB and error.requested_bytes == 41 * MIB - 100
    assert (figures.allocated, figures.reserved) == (60 * MIB, 60 * MIB)
    assert (figures.total, figures.free, figures.allowed) == (100 * MIB, 40 * MIB, None)
    assert allocator.num_ooms == 1 and allocator.num_alloc_retries == 1


def test_a_memory_fraction_can_be_set_and_lifted_while_it_runs() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.limit(0.5)
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(60 * MIB)
    allocator.limit(1)
    assert allocator.allocate(60 * MIB)
    with pytest.raises(InvalidSpec, match="use 0 to 1"):
        allocator.limit(1.5)


def test_restoring_into_a_used_allocator_is_refused() -> None:
    allocator = Allocator()
    allocator.allocate(1)
    with pytest.raises(InvalidSpec, match="already holds memory"):
        allocator.restore(allocator.segments())


# Blocks of several streams, and blocks that one stream frees while another still uses them.

SIDE, OTHER = 7, 9


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


# Private pools: captures of graphs and `torch.cuda.use_mem_pool`. From upstream's source; no recording covers them.

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


# Rules that only options switch on; no real trace covers them but the expandable best fit.

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


TABLE = (2, 4, *(0,) * 13, 8)


@pytest.mark.parametrize(("request_bytes", "divisions", "block_bytes"), [
    (1, (), 512), (511, (), 512), (512, (), 512), (513, (), 1024), (1025, (), 1536),
    # docs/source/notes/cuda.rst: 1200 with 4 divisions lies between 1024 and 1280; a power of two stays
    (1200 * MIB, (4,) * 16, 1280 * MIB), (256 * MIB, (8,) * 16, 256 * MIB),
    # one division, and requests below 512 per step, round to 512
    (5 * MIB + 1, (1,) * 16, 5 * MIB + 512), (4 * 512 - 1, (4,) * 16, 4 * 512), (9 * 512 + 1, (4,) * 16, 10 * 512),
    # each power of two from 1 MiB to 32 GiB has its own entry, and sizes beyond have the last
    (MIB + 1, TABLE, MIB + MIB // 2), (2 * MIB + 1, TABLE, 2 * MIB + MIB // 2), (4 * MIB + 1, TABLE, 4 * MIB + 512),
    ((100 << 30) + 1, TABLE, 104 << 30),
])
def test_requests_are_rounded_as_upstream_does(
    request_bytes: int, divisions: tuple[int, ...], block_bytes: int
) -> None:
    assert round_size(request_bytes, divisions) == block_bytes


# The text of the exception, word for word: the templates of each version, filled in by hand.

TRUTH = Path(os.environ.get("VRAMCAST_TRUTH", Path(__file__).resolve().parents[3] / "shared" / "truth"))
GIB = 1 << 30
SMALL = Figures(tried=2 * MIB, total=8 * GIB, free=MIB, allocated=3 * GIB // 2, reserved=7 * GIB, device=1)


def test_the_text_of_1_10_to_2_0() -> None:
    assert out_of_memory_message(SMALL, (1, 13)) == (
        "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 1; 8.00 GiB total capacity; 1.50 GiB already allocated; "
        "1024.00 KiB free; 7.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
        "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF"
    )


def test_the_text_of_2_1_has_upstreams_slip() -> None:
    assert out_of_memory_message(SMALL, (2, 1)) == (
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has a total capacty of 8.00 GiB of which 1024.00 KiB is "
        "free. Of the allocated memory 1.50 GiB is allocated by PyTorch, and 5.50 GiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )


def test_the_limit_of_a_memory_fraction_is_named_where_upstream_names_it() -> None:
    figures = Figures(tried=2 * MIB, total=8 * GIB, free=GIB, allocated=GIB, reserved=2 * GIB, allowed=2 * GIB)
    named = [minor for minor in range(14) if "2.00 GiB allowed; " in out_of_memory_message(figures, (2, minor))]
    assert named == [0, *range(5, 14)]
    assert "2.00 GiB allowed; 2.00 GiB reserved" in out_of_memory_message(figures, (1, 10))


def test_more_than_an_exbibyte_has_its_own_text() -> None:
    with pytest.raises(DeviceOutOfMemory) as caught:
        Allocator().allocate(1 << 61)
    assert caught.value.torch_message((2, 6)) == "CUDA out of memory. Tried to allocate more than 1EB memory."


def test_a_text_that_names_an_unknown_card_is_refused() -> None:
    from vramcast.allocator.heap import RisingAddresses
    from vramcast.errors import OutOfMemory

    class Full(RisingAddresses):
        def allocate(self, size_bytes: int) -> int:
            raise OutOfMemory("full")

    with pytest.raises(DeviceOutOfMemory) as caught:
        Allocator(driver=Full()).allocate(1)
    with pytest.raises(InvalidSpec, match="size of the card"):
        caught.value.torch_message((2, 6))


@pytest.mark.skipif(not TRUTH.is_dir(), reason=f"no {TRUTH}")
def test_collected_templates_are_what_is_written() -> None:
    rows = [json.loads(line) for line in (TRUTH / "oom_messages.jsonl").read_text().splitlines()]
    template = next(r["message"] for r in rows if r["format"] == "TEMPLATE" and r.get("versions") == "2.4 - 2.9")
    figures = Figures(tried=1, total=2, free=3, allocated=4, reserved=50, allowed=6, pools=7)
    filled = template.replace("[proc]*", "").replace("[", "").replace("]", "")
    for name, size in {
        "{alloc_size}": 1, "{dev}": 0, "{total}": 2, "{free}": 3, "{allowed}": 6, "{allocated+private}": 11,
        "{private}": 7, "{reserved-allocated-private}": 39,
    }.items():
        filled = filled.replace(name, str(size) if name == "{dev}" else f"{size} bytes")
    assert out_of_memory_message(figures, (2, 9)) == filled


def test_options_are_read_as_torch_reads_them_spaces_and_all() -> None:
    settings = Settings.parse(" expandable_segments:True, max_split_size_mb : 128,garbage_collection_threshold:0.8")
    expected = Settings(expandable_segments=True, max_split_size_mb=128, garbage_collection_threshold=0.8)
    assert settings == expected
    assert settings.max_split_bytes == 128 * MIB


@pytest.mark.parametrize(("text", "message"), [
    ("expandable_segments:true", "use expandable_segments:True"),
    ("expandable_segments", "option:value"),
    ("max_split_size_mb:19", "use 20 or more"),
    ("max_split_size_mb:-1", "not a whole number"),
    ("max_non_split_rounding_mb:10", "use 20 or more"),
    ("large_segment_size_mb:10", "use more than 10"),
    ("large_segment_size_mb:64,max_split_size_mb:32", "use 64 or more"),
    ("garbage_collection_threshold:1.0", "less than 1"),
    ("garbage_collection_threshold:0", "more than 0"),
    ("garbage_collection_threshold:nan", "more than 0"),
    ("garbage_collection_threshold:high", "not a number"),
    ("per_process_memory_fraction:1.5", "use 0 to 1"),
    ("roundup_power2_divisions:3", "not a power of two"),
    ("roundup_power2_divisions:0", "leave the option out"),
    ("roundup_power2_divisions:[300:2]", "not a power of two"),
    ("roundup_power2_divisions:[256:2", "no closing bracket"),
    ("backend:fast", "use backend:native"),
    ("max_split_size_mb:128,,", "option:value"),
])
def test_a_bad_value_is_refused_with_what_would_work(text: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        Settings.parse(text)


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    with pytest.raises(UnknownName, match="did you mean expandable_segments"):
        Settings.parse("expandable_segment:True")


def test_what_is_not_simulated_says_so() -> None:
    with pytest.raises(Unsupported, match="simulated"):
        Settings.parse("backend:cudaMallocAsync")


@pytest.mark.parametrize(("text", "since"), [
    ("roundup_power2_divisions:4", (1, 12)),
    ("garbage_collection_threshold:0.8", (1, 12)),
    ("backend:native", (2, 0)),
    ("expandable_segments:True", (2, 1)),
    ("max_non_split_rounding_mb:30", (2, 6)),
    ("per_process_memory_fraction:0.5", (2, 9)),
    ("large_segment_size_mb:30", (2, 12)),
])
def test_an_option_is_refused_by_versions_before_it_existed(text: str, since: tuple[int, int]) -> None:
    Settings.parse(text, since)
    Settings.parse(text)
    major, minor = since
    before = (major, minor - 1) if minor else (1, 13)
    with pytest.raises(InvalidSpec, match=f"refuses .* from {major}.{minor} on"):
        Settings.parse(text, before)


def test_one_division_is_off_now_and_an_error_before_2_3() -> None:
    assert not Settings.parse("roundup_power2_divisions:1").rounds_to_divisions
    with pytest.raises(InvalidSpec, match=r"torch 2\.2 fails"):
        Settings.parse("roundup_power2_divisions:1", (2, 2))


def test_versions_before_the_simulated_ones_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"1\.9 is too old"):
        Settings.parse("", (1, 9))


def test_a_table_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="16"):
        Settings(roundup_power2_divisions=(2, 4))


def test_a_memory_fraction_needs_a_device_size() -> None:
    with pytest.raises(InvalidSpec, match="capacity_bytes"):
        Allocator(settings=Settings(per_process_memory_fraction=0.5))
