"""Recorded steps: peak, blocks, fragmentation, leaks, timelines, capacity and what hostile changes do to them."""

import copy
import pickle
import random
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

import vramcast
from tests.sources.snapshots.recordings import TRUTH
from vramcast.domain.snapshot import Action, BlockView, SegmentView, Snapshot, Trace
from vramcast.errors import VramcastError
from vramcast.recordings.examine import Asked, examine
from vramcast.recordings.fragmentation import contiguity, fragmentation
from vramcast.recordings.lives import CATEGORIES, Category, lives_of
from vramcast.recordings.replay import Outcome, replay
from vramcast.recordings.start import RecordedDevice
from vramcast.recordings.steps import Leaks, leaks_of, steps_of
from vramcast.recordings.variants import PAGE_BYTES, Variant, advice, limit_by_retries, under
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import MIB

from . import _made as made
from ._made import FORWARD, PLAIN, Run, train
from ._record import Process, device_of, run

# Recordings of the simulated allocator replay exactly, from any event on and under any options.

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


# Real recordings, replayed: every block must land where the real allocator put it.

FILES = sorted(TRUTH.glob("*.pickle.gz"))


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


@pytest.mark.skipif(not FILES, reason=f"no snapshots in {TRUTH}")
@pytest.mark.parametrize(("path", "part"), [*zip(FILES, cycle([0.3, 0.7]), strict=False)], ids=str)
def test_a_recording_that_begins_later_tells_nothing_else_of_what_was_there_before(path: Path, part: float) -> None:
    """Its ring buffer was full: events are missing, and with them stacks. What is said then is right, or that it is
    not known; what a pass in course frees is at most a few temporaries."""
    snapshot = read_snapshot(path)
    (device,) = snapshot.devices
    trace, first = device.trace, int(part * len(device.trace))
    later = replace(device, trace=Trace(**{
        column: getattr(trace, column)[first:] for column in Trace.__struct_fields__
    }))
    cut = replace(snapshot, devices=(later,))
    replayed = replay(RecordedDevice(cut, later))
    assert replayed.outcome is Outcome.EXACT
    whole, known = lives_of(RecordedDevice(snapshot, device)), lives_of(RecordedDevice(cut, later))
    made = {trace.addresses[index]: index for index in range(first) if trace.actions[index] == Action.ALLOC}
    wrong = total = 0
    for block in RecordedDevice(cut, later).older:
        was = whole.category(made[block.address]) if block.address in made else None
        now = known.older[block.address]
        total += block.size_bytes
        if was is not None and now not in (was, Category.HELD, Category.UNKNOWN):
            assert was == Category.TEMPORARIES
            wrong += block.size_bytes
    assert wrong <= 0.03 * total


# Recordings with events and blocks that no allocator wrote are replayed or refused, never a bug of ours.

EXAMPLE: Final = Path(__file__).parents[2] / "docs" / "examples" / "fragmented.pickle"
INTEGERS: Final = (0, 1, -1, 512, 513, 2**20, 2**21, 10 * 2**20, 2**31, 2**40, 2**63 - 1, -5)
ACTIONS: Final = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
)


def changed_event(events: list[dict[str, Any]], draw: random.Random) -> None:
    index = draw.randrange(len(events))
    event = events[index]
    match draw.randrange(6):
        case 0:
            event["addr"] = draw.choice((draw.choice(events).get("addr", 0), draw.choice(INTEGERS)))
        case 1:
            event["size"] = draw.choice((draw.choice(events).get("size", 0), draw.choice(INTEGERS)))
        case 2:
            event["action"] = draw.choice(ACTIONS)
        case 3:
            events.insert(draw.randrange(len(events)), dict(event))
        case 4:
            del events[index]
        case _:
            event["stream"] = draw.choice((0, 1, 7, 2**40))


def changed_segment(segment: dict[str, Any], draw: random.Random) -> None:
    blocks = segment.get("blocks") or [segment]
    name = draw.choice(("address", "total_size", "allocated_size", "size", "requested_size", "stream"))
    draw.choice((segment, draw.choice(blocks)))[name] = draw.choice(INTEGERS)


@pytest.mark.parametrize("seed", range(60))
def test_a_changed_recording_is_replayed_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    original = pickle.loads(EXAMPLE.read_bytes())
    for _ in range(5):
        recording = copy.deepcopy(original)
        for _ in range(draw.choice((1, 2, 8))):
            if draw.random() < 0.7:
                changed_event(recording["device_traces"][0], draw)
            else:
                changed_segment(draw.choice(recording["segments"]), draw)
        path = tmp_path / "changed.pickle"
        path.write_bytes(pickle.dumps(recording))
        try:
            assert str(vramcast.replay(path, leaks=True, all_confs=seed % 4 == 0))
        except VramcastError as error:
            assert "\n" not in str(error)


def test_an_empty_request_that_landed_elsewhere_is_nowhere(tmp_path: Path) -> None:
    recording = pickle.loads(EXAMPLE.read_bytes())
    for event in recording["device_traces"][0]:
        if event["action"] == "alloc":
            event["size"] = 0
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps(recording))
    assert str(vramcast.replay(path))


# Every block of a recording: what lives at the peak is what the peak's own count says, kind by kind.

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize("name", ["crash.pickle.gz", "fragmented.pickle"])
def test_blocks_that_live_at_the_peak_are_those_that_hold_it(name: str) -> None:
    [found] = vramcast.replay(EXAMPLES / name).devices
    blocks, event = found.blocks, found.replayed.peak_event
    live: Counter[str] = Counter()
    for start, end, number in zip(blocks.starts, blocks.ends, blocks.categories, strict=True):
        live[CATEGORIES[number]] += start <= event < end
    assert +live == Counter({group.name: group.num_blocks for group in found.held.by_category})
    assert len(blocks.starts) == len(blocks.sizes) == len(blocks.stacks)
    runs = [number for number, before in zip(blocks.categories, [None, *blocks.categories], strict=False)
            if number != before]
    assert len(runs) == len(set(runs))  # kind by kind


# Where reserved memory is that no tensor has.

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


# Leaks over steps, and what is none.

def leaks(snapshot: Snapshot) -> Leaks:
    recorded = device_of(snapshot)
    return leaks_of(recorded, lives_of(recorded))


def trained(steps: int, **options: int) -> Snapshot:
    run = Run()
    train(run, steps, **options)
    return run.dump()


def unmarked(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, annotations=())


def without_stacks(snapshot: Snapshot) -> Snapshot:
    device = snapshot.devices[0]
    columns = {name: getattr(device.trace, name)[:] for name in device.trace.__struct_fields__}
    columns["stacks"] = type(device.trace.stacks)("I", bytes(4 * len(device.trace)))
    trace = type(device.trace)(**columns)
    return replace(unmarked(snapshot), devices=(replace(device, trace=trace),), stacks=((),))


def test_a_cache_that_levels_off_is_no_leak() -> None:
    assert leaks(trained(10, leaked_bytes=MIB, keep=3)).leaks == ()


def test_steps_are_found_without_marks() -> None:
    found = leaks(unmarked(trained(8, leaked_bytes=MIB)))
    assert found.found_by == "optimizer"
    assert found.bytes_per_step == MIB
    assert leaks(unmarked(trained(8))).leaks == ()


def test_steps_are_found_without_stacks() -> None:
    steps = steps_of(device_of(without_stacks(trained(8))))
    assert steps is not None and steps.found_by == "repetition" and steps.num_steps in (6, 7)


def test_layers_of_one_backward_pass_are_no_steps() -> None:
    run = Run()
    for _ in range(30):
        for name in ("Mm", "Add", "Mul"):
            run.make(MIB, (made.cpp(f"torch::autograd::generated::{name}Backward0::apply()"), made.BACKWARD[1]))
    assert steps_of(device_of(run.dump())) is None


# What a card could have given, from its recording.

def limit(run: Run) -> int | None:
    snapshot = run.dump()
    return limit_by_retries(snapshot.devices[0], replay(device_of(snapshot)))


def test_a_cache_returned_for_a_segment_tells_the_limit() -> None:
    run = Run(capacity_bytes=100 * MIB)
    run.drop(run.make(60 * MIB, FORWARD), PLAIN)
    run.make(70 * MIB, FORWARD)
    assert limit(run) == 130 * MIB - PAGE_BYTES


# A run in few points.

def test_a_recording_without_events_has_no_course() -> None:
    process = Run()
    process.make(512)
    snapshot = process.dump(len(process.trace))
    found = examine(snapshot, snapshot.devices[0], Asked())
    assert found.timeline.points == ()
    assert found.held.size_bytes == 512
    assert found.peak_time_us is None


# A device looked at as a whole: failures, settings, and recordings of other people's runs.

def variant(conf: str, reserved: int, failed: int | None = None) -> Variant:
    return Variant(
        conf=conf, capacity_bytes=None, peak_allocated_bytes=MIB, peak_reserved_bytes=reserved, num_alloc_retries=0,
        out_of_memory=failed,
    )


def test_without_other_settings_there_is_no_advice() -> None:
    assert advice([]) is None
    assert advice([variant("", MIB)]) is None
