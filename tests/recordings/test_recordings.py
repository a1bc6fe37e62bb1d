"""Recordings of the simulated allocator replay exactly, from any event on and under any options."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.domain.snapshot import Snapshot, Trace
from vramcast.recordings.replay import replay
from vramcast.recordings.start import RecordedDevice
from vramcast.recordings.variants import under
from vramcast.units import MIB

from ._record import Process, device_of, run

CONFS = (
    "", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4",
    "roundup_power2_divisions:[64:4,>:2],expandable_segments:True", "large_segment_size_mb:32",
)


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


@given(seed=st.integers(0, 1 << 32))
@example(seed=3182812)  # collected before a request that failed all the same
def test_garbage_collection_is_followed_where_the_limit_is_not_recorded(seed: int) -> None:
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.005"
    process, _ = recorded(seed, conf, None, waits=False)
    assert is_exact(process.dump())


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
