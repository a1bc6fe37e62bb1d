"""Recordings of the simulated allocator replay exactly, from any event on and under any options."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.domain.snapshot import Frame, SegmentView, Snapshot, Trace
from vramcast.recordings.replay import replay, state_after
from vramcast.recordings.start import RecordedDevice, start_segments
from vramcast.recordings.variants import under
from vramcast.units import MIB

from ._record import Process, device_of, run

CONFS = (
    "", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4",
    "roundup_power2_divisions:[64:4,>:2],expandable_segments:True", "large_segment_size_mb:32",
)
CAPACITIES = st.sampled_from([None, 300 * MIB, 600 * MIB])


def recorded(seed: int, conf: str, capacity: int | None, *, waits: bool) -> tuple[Process, random.Random]:
    rng = random.Random(seed)
    process = Process(conf, capacity, waits=waits)
    run(process, rng, rng.choice([20, 100, 300]))
    return process, rng


def is_exact(snapshot: Snapshot) -> bool:
    replayed = replay(device_of(snapshot))
    return (
        replayed.addresses_matched == replayed.allocations
        and replayed.segments_matched == replayed.segment_events
        and replayed.segments_surplus == 0
        and replayed.final_blocks_matched is True
    )


@given(seed=st.integers(0, 1 << 32), conf=st.sampled_from(CONFS), capacity=CAPACITIES, part=st.floats(0, 1))
def test_a_recording_replays_exactly_from_any_event_on(seed: int, conf: str, capacity: int | None, part: float) -> None:
    process, _ = recorded(seed, conf, capacity, waits=False)
    assert is_exact(process.dump())
    if "max_split" not in conf:  # what such a block has beyond its request can be larger than any gap tells
        assert is_exact(process.dump(int(part * len(process.trace))))


@given(seed=st.integers(0, 1 << 32), conf=st.sampled_from(CONFS[:2]))
def test_waits_for_other_streams_replay_as_recorded_where_memory_suffices(seed: int, conf: str) -> None:
    process, _ = recorded(seed, conf, None, waits=True)
    replayed = replay(device_of(process))
    assert replayed.addresses_matched == replayed.allocations
    assert replayed.final_blocks_matched


@pytest.mark.parametrize("conf", CONFS)
def test_waits_on_a_full_device_leave_all_but_a_few_allocations_in_place(conf: str) -> None:
    # What a wait that ends within a request does to its order is not in the record.
    allocations = matched = 0
    for seed in range(12):
        process, rng = recorded(seed, conf, 600 * MIB, waits=True)
        snapshot = process.dump(rng.choice([0, rng.randrange(len(process.trace))]))
        replayed = replay(device_of(snapshot))
        allocations += replayed.allocations
        matched += replayed.addresses_matched or 0
    assert matched >= 0.995 * allocations > 0


@given(seed=st.integers(0, 1 << 32), conf=st.sampled_from(CONFS), part=st.floats(0, 1))
def test_the_state_in_the_middle_is_what_the_process_had_there(seed: int, conf: str, part: float) -> None:
    rng = random.Random(seed)
    process = Process(conf, waits=False)
    run(process, rng, 60)
    middle = len(process.trace)
    segments = process.allocator.segments()
    run(process, rng, int(part * 100))
    found = state_after(device_of(process), middle - 1)
    assert [(s.address, s.blocks) for s in found] == [(s.address, s.blocks) for s in segments]
    rolled_back = start_segments(RecordedDevice(process.dump(middle), process.dump(middle).devices[0]))
    assert live(rolled_back) == live(segments)


def live(segments: tuple[SegmentView, ...]) -> list[tuple[int, int, int, int]]:
    """Live blocks of segments that hold memory."""
    return [
        (segment.address, segment.size_bytes, block.address, block.requested_bytes)
        for segment in segments for block in segment.blocks if not block.is_free
    ]


def test_a_block_older_than_the_recording_keeps_its_slack_where_a_later_request_shows_it() -> None:
    process = Process()
    cached = process.request(40 * MIB)
    assert cached is not None
    process.free(cached)
    tight = process.request(12 * MIB)
    slack = process.request(27 * MIB + 512)  # takes the 28 MiB that are left: the rest is too little to split off
    assert tight is not None and slack is not None
    first = len(process.trace)
    process.free(slack)
    process.request(28 * MIB)
    process.free(tight)
    assert is_exact(process.dump(first))


@given(seed=st.integers(0, 1 << 32))
@example(seed=3182812)  # collected before a request that failed all the same
def test_garbage_collection_is_followed_where_the_limit_is_not_recorded(seed: int) -> None:
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.005"
    process, _ = recorded(seed, conf, None, waits=False)
    assert is_exact(process.dump())


def test_options_of_later_versions_are_passed_over() -> None:
    process = fragmented()
    snapshot = replace(process.dump(), alloc_conf="option_of_2031:5,expandable_segments:False")
    assert is_exact(snapshot)


def test_memory_that_another_line_gave_back_was_not_given_back_for_a_request() -> None:
    here, there = ((Frame("f", "a.py", line),) for line in (1, 2))
    process = Process(capacity_bytes=1000 * MIB)
    for size in (30, 40):
        handle = process.request(size * MIB, stack=here)
        assert handle is not None
        process.free(handle)
        process.empty_cache(stack=there)
    process.request(50 * MIB, stack=here)
    snapshot = process.dump()
    replayed = replay(device_of(snapshot))
    assert process.allocator.num_alloc_retries == replayed.num_alloc_retries == 0
    assert is_exact(snapshot)


def test_requests_of_a_private_pool_stay_in_it_under_other_settings() -> None:
    process = Process()
    cached = process.request(30 * MIB)
    assert cached is not None
    process.free(cached)
    process.allocator.begin_pool((1, 0))
    process.request(30 * MIB)
    process.allocator.end_pool((1, 0))
    snapshot = process.dump()
    assert under(device_of(snapshot), "").peak_reserved_bytes == 60 * MIB
    assert is_exact(snapshot)


def test_peaks_and_curves_are_those_of_the_process() -> None:
    process = Process()
    large = process.request(40 * MIB)
    small = process.request(1)
    assert large is not None and small is not None
    process.free(large)
    replayed = replay(device_of(process))
    assert (replayed.peak_allocated_bytes, replayed.peak_reserved_bytes) == (40 * MIB + 512, 42 * MIB)
    assert replayed.allocated[replayed.peak_event] == 40 * MIB + 512
    assert list(replayed.allocated)[-1] == 512 and len(replayed.reserved) == replayed.events == len(process.trace)


def test_what_is_not_where_it_was_is_counted_and_does_not_spread() -> None:
    process = Process()
    handles = [process.request(size * MIB) for size in (30, 50, 40)]
    for handle in handles:
        assert handle is not None
        process.free(handle)
    process.request(25 * MIB)
    process.request(35 * MIB)
    # As if the first of the last two had gone into the largest block instead of the closest fit.
    trace = process.trace
    index = len(trace) - 2
    assert trace.addresses[index] == handles[0] and handles[1] is not None
    trace.addresses[index] = handles[1]
    replayed = replay(device_of(process))
    assert (replayed.addresses_matched, replayed.allocations) == (4, 5)
    assert replayed.final_blocks_matched is False


def fragmented(capacity: int | None = None) -> Process:
    """Requests that grow, each cached block pinned by a small live tensor when the next one comes."""
    process = Process(capacity_bytes=capacity)
    for size in (30, 50):
        handle = process.request(size * MIB)
        assert handle is not None
        process.free(handle)
        process.request(19 * MIB)
    process.request(70 * MIB)
    return process


def test_the_recorded_settings_give_the_recorded_peak() -> None:
    process = fragmented()
    found = under(device_of(process), "")
    assert found.peak_reserved_bytes == 150 * MIB == process.allocator.peak_reserved_bytes
    assert found.out_of_memory is None


def test_expandable_segments_reserve_less_where_holes_could_have_been_mapped_elsewhere() -> None:
    snapshot = fragmented().dump()
    found = under(device_of(snapshot), "expandable_segments:True")
    assert found.peak_reserved_bytes == 120 * MIB  # six pages of 20 MiB, one after the other


def test_a_smaller_card_fails_at_the_request_that_no_longer_fits() -> None:
    process = fragmented()
    found = under(device_of(process), "", capacity_bytes=140 * MIB)
    assert found.failed_bytes == 70 * MIB
    assert found.out_of_memory == len(process.trace) - 1


def test_an_out_of_memory_that_another_setting_avoids_is_said_to_be_avoided() -> None:
    process = fragmented(140 * MIB)
    snapshot = process.dump()
    device = snapshot.devices[0]
    same = under(RecordedDevice(snapshot, device), "", capacity_bytes=140 * MIB)
    better = under(RecordedDevice(snapshot, device), "expandable_segments:True", capacity_bytes=140 * MIB)
    assert (same.num_ooms, same.num_ooms_avoided) == (1, 0)
    assert (better.num_ooms, better.num_ooms_avoided) == (0, 1)


@given(seed=st.integers(0, 1 << 32), conf=st.sampled_from(CONFS), part=st.floats(0, 1))
def test_a_table_that_is_newer_than_the_events_is_no_obstacle(seed: int, conf: str, part: float) -> None:
    process, _ = recorded(seed, conf, None, waits=False)
    snapshot = process.dump()
    device = snapshot.devices[0]
    kept = {name: getattr(device.trace, name)[: int(part * len(device.trace))] for name in Trace.__struct_fields__}
    cut = replace(device, trace=Trace(**kept))
    replayed = replay(RecordedDevice(replace(snapshot, devices=(cut,)), cut))
    assert replayed.events == len(cut.trace)
    assert (replayed.addresses_matched is None) == bool(replayed.contradiction)


def test_blocks_that_reach_beyond_their_segment_are_a_contradiction() -> None:
    process = fragmented()
    snapshot = process.dump()
    device = snapshot.devices[0]
    first, *others = device.segments[0].blocks
    wrong = (replace(first, size_bytes=100 * MIB), *others)
    device = replace(device, segments=(replace(device.segments[0], blocks=wrong), *device.segments[1:]))
    trace = Trace(**{name: getattr(device.trace, name)[:0] for name in Trace.__struct_fields__})
    replayed = replay(RecordedDevice(snapshot, replace(device, trace=trace)))
    assert "do not add up" in replayed.contradiction
    assert replayed.addresses_matched is None and replayed.peak_allocated_bytes > 0
