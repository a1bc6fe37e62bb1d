"""Snapshots as torch, JSON and a profiler write them."""

import gzip
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.sources.snapshots.recordings import HEAP, MIB, block, event, read, recording, segment
from vramcast.domain.snapshot import Action, Annotation, Frame, SizesAre, Totals
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.errors import SourceError

# Snapshots of every version of torch say the same things under different keys.


def test_memory_that_no_block_claims_is_free(tmp_path: Path) -> None:
    rows = [segment(HEAP, [block(MIB)], total_size=2 * MIB)]
    assert read(tmp_path, rows).devices[0].segments[0].blocks[1].is_free


def test_what_a_program_records_itself_is_an_annotation_of_its_device(tmp_path: Path) -> None:
    raw = recording()
    raw["device_traces"][0] = []
    raw["device_traces"][1].insert(3, event("user_defined", 0, 0, user_metadata="epoch 2", time_us=77))
    snapshot = read(tmp_path, raw)
    assert Annotation("epoch 2", 1, 77, 77) in snapshot.annotations
    assert len(snapshot.devices[-1].trace) == 12


def test_unknown_actions_are_counted_and_said(tmp_path: Path) -> None:
    raw = recording()
    raw["device_traces"][0] += [event("segment_teleport", 1, 1), event("segment_teleport", 1, 1)]
    assert read(tmp_path, raw).remarks == ("2 events of the unknown action 'segment_teleport' were left out",)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}, ""),
        ({"max_split_size": 128 * MIB, "garbage_collection_threshold": 0.8},
         "max_split_size_mb:128,garbage_collection_threshold:0.8"),
        ({"roundup_power2_divisions": {str(2**power): 4 for power in range(16)}}, "roundup_power2_divisions:4"),
        ({"roundup_power2_divisions": {str(2**power): 0 for power in range(16)}}, ""),
        (None, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": True},
         "max_split_size_mb:64,expandable_segments:True"),  # set one after the other
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False},
         "expandable_segments:False"),  # the driver has none
    ],
)  # fmt: skip
def test_settings_are_rebuilt_where_their_text_is_missing(tmp_path: Path, settings: Any, expected: str) -> None:
    raw = recording()
    raw["allocator_settings"] = settings
    assert read(tmp_path, raw).alloc_conf == expected


@pytest.mark.parametrize(("change", "sentence"), [
    ({"segments": 5}, "segments must be a list"),
    ({"device_traces": [5]}, "a device trace must be a list of events"),
    ({"segments": [5]}, "a segment must be a dict"),
    ({"segments": [segment(-1, [block(MIB)])]}, "address of a segment is out of range"),
    ({"segments": [segment(HEAP, [block(MIB)]), segment(HEAP + 512, [block(MIB)])]}, "overlap"),
    ({"segments": [segment(HEAP, [block(MIB)], total_size=512)]}, "do not tile"),
    ({"segments": [segment(HEAP, [block(MIB, address=HEAP + 1)])]}, "do not tile"),
    ({"segments": [segment(HEAP, [block(MIB, "melted")])]}, "has the state 'melted'"),
    ({"device_traces": [[event("alloc", 2**64, 1)]]}, "addr is out of range"),
    ({"device_traces": [[event("alloc", 1, -1)]]}, "size is out of range"),
    ({"device_traces": [[event("alloc", 1, 1.5)]]}, "size must be an integer"),
    ({"device_traces": [[event("alloc", 1, 1, frames="main")]]}, "frames must be a list"),
    ({"device_traces": [[event("alloc", 1, 1, frames=[5])]]}, "a frame must be a dict"),
    ({"device_traces": [[event("alloc", 1, 1, pool_id=(1,))]]}, "a pool id must be a pair"),
])
def test_what_breaks_a_rule_is_named_in_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        read(tmp_path, recording() | change)


# The same snapshot as JSON says the same; other JSON is told apart by what is in it.

def test_indented_json_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(recording(), indent=3).encode()
    assert len(read(tmp_path, content).devices[0].trace) == 12


def test_other_keys_are_passed_over_however_deep(tmp_path: Path) -> None:
    raw: dict[str, Any] = {"categories": [[[{"a": "]}\\\""}]]], "note": None} | recording()
    assert len(read(tmp_path, json.dumps(raw).encode()).devices) == 2


@pytest.mark.parametrize("content", [b"[[1,2],[[3]]]", b"[[-1, 1, 16384, 0], [5, 2, 2048, 2]]"])
def test_a_memory_timeline_is_refused_with_what_would_work(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError, match="no addresses; give the trace of export_chrome_trace"):
        read(tmp_path, content)


def test_an_element_of_unheard_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="one element has more than"):
        read(tmp_path, b'{"segments": ["' + b"a" * (40 * 2**20) + b'"]}')


# Profiler traces: memory events of GPUs with what ran on their thread.

def memory(
    time_us: float, address: int | str, num_bytes: int, *, device_type: int = 1, device: int = 0, allocated: int = 2048,
    reserved: int = 2**21,
) -> dict[str, Any]:
    """An event as Kineto writes it."""
    args = {
        "Total Reserved": reserved, "Total Allocated": allocated, "Bytes": num_bytes, "Device Id": device,
        "Device Type": device_type, "Addr": address, "finished": False, "Ev Idx": 522,
    }  # fmt: skip
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": time_us,
        "args": args,
    }  # fmt: skip


def without(event: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The event as an earlier version wrote it."""
    return event | {"args": {key: value for key, value in event["args"].items() if key not in keys}}


TOTALS = ("Total Allocated", "Total Reserved")


def span(name: str, start: float, length: float, cat: str = "cpu_op", tid: int = 7) -> dict[str, Any]:
    """Something that ran."""
    args = {"External id": 5, "Input Dims": [[8, 64], []], "Fwd thread id": 0}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": length, "args": args}


def document(events: list[dict[str, Any]]) -> bytes:
    """A trace file."""
    properties = [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000}]
    return json.dumps(
        {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events, "traceName": "x"}, indent=2
    ).encode()


EVENTS = [
    span("step", 0.0, 100.0, "user_annotation"),
    span("train.py(12): forward", 5.0, 50.0, "python_function"),
    span("aten::linear", 10.0, 20.0),
    span("aten::empty", 11.0, 2.0),
    span("elsewhere", 0.0, 100.0, tid=8),
    memory(12.5, HEAP, 1024),
    memory(40.25, HEAP, -1024),
    memory(20.0, HEAP + 2048, 512),
    memory(21.0, 1, 512, device_type=0, device=-1),
    {"ph": "M", "name": "process_name", "pid": 7, "ts": 0, "args": {"name": "python"}},
]


def test_memory_events_come_in_order_of_time_with_block_sizes(tmp_path: Path) -> None:
    snapshot = read(tmp_path, document(EVENTS))
    (device,) = snapshot.devices
    trace = device.trace
    assert list(zip(trace.actions, trace.addresses, trace.sizes, trace.times_us, strict=True)) == [
        (Action.ALLOC, HEAP, 1024, 12),
        (Action.ALLOC, HEAP + 2048, 512, 20),
        (Action.FREE_REQUESTED, HEAP, 1024, 40),
        (Action.FREE_COMPLETED, HEAP, 1024, 40),
    ]
    assert (snapshot.format, snapshot.sizes_are, device.has_segments) == ("kineto", SizesAre.BLOCKS, False)
    assert device.capacity_bytes == 85_000_000_000
    assert snapshot.remarks == ("1 events of the CPU were left out",)


def test_the_stack_is_what_ran_on_the_thread(tmp_path: Path) -> None:
    snapshot = read(tmp_path, document(EVENTS))
    trace = snapshot.devices[0].trace
    forward = Frame("forward", "train.py", 12)
    assert snapshot.stacks[trace.stacks[0]] == (
        Frame("aten::empty", "", 0), Frame("aten::linear", "", 0), forward, Frame("step", "", 0),
    )  # fmt: skip
    assert snapshot.stacks[trace.stacks[1]][0] == Frame("aten::linear", "", 0)
    assert snapshot.stacks[trace.stacks[2]] == (forward, Frame("step", "", 0))


def test_user_annotations_are_spans(tmp_path: Path) -> None:
    assert read(tmp_path, document(EVENTS)).annotations == (Annotation("step", 0, 0, 100),)


def test_a_plain_list_of_events_and_gzip_are_read_too(tmp_path: Path) -> None:
    content = gzip.compress(json.dumps(EVENTS).encode())
    assert len(read(tmp_path, content, "trace.json.gz").devices[0].trace) == 4


def test_pointers_printed_as_signed_integers_are_addresses(tmp_path: Path) -> None:
    trace = read(tmp_path, document([memory(1.0, -512, 512)])).devices[0].trace
    assert trace.addresses[0] == 2**64 - 512
    assert read(tmp_path, document([memory(1.0, "0512", 512)])).devices[0].trace.addresses[0] == 512


def test_several_devices_are_kept_apart(tmp_path: Path) -> None:
    content = document([memory(1.0, HEAP, 512, device=3), memory(2.0, HEAP, 512)])
    assert [device.device for device in read(tmp_path, content).devices] == [0, 3]


def test_a_trace_without_gpu_memory_says_how_to_record_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="its 1 events of the CPU say nothing about GPUs; profile with"):
        read(tmp_path, document([memory(1.0, 1, 512, device_type=0)]))


@pytest.mark.parametrize(
    "field", [
        {"ts": 1e300}, {"args": {"Bytes": 5}}, {"args": 5}, {"ts": None},
        {"args": memory(1.0, "9" * 5000, 512)["args"]},
    ],
)
def test_damaged_memory_events_are_said(tmp_path: Path, field: dict[str, Any]) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, document([memory(1.0, 1, 512) | field]))


def test_what_the_allocator_counted_is_kept_event_by_event(tmp_path: Path) -> None:
    events = [
        memory(1.0, HEAP, 1024, allocated=5120, reserved=2**21), memory(2.0, HEAP + 1024, 512, allocated=5632),
        memory(3.0, HEAP, -1024, allocated=4608, reserved=2**22),
    ]
    (device,) = read(tmp_path, document(events)).devices
    assert device.totals is not None and device.totals.reserved is not None and device.has_addresses
    assert list(device.totals.allocated) == [5120, 5632, 4608, 4608]  # a free is two events
    assert list(device.totals.reserved) == [2**21, 2**21, 2**22, 2**22]


@pytest.mark.parametrize(
    ("missing", "has_addresses", "has_totals"),
    [((), True, True), (("Addr",), False, True), (TOTALS, True, False), (("Addr", *TOTALS), False, False)],
)
def test_what_a_version_did_not_write_is_not_known(
    tmp_path: Path, missing: tuple[str, ...], has_addresses: bool, has_totals: bool
) -> None:
    events = [without(memory(1.0, HEAP, 1024), *missing), without(memory(2.0, HEAP, -1024), *missing)]
    (device,) = read(tmp_path, document(events)).devices
    assert (device.has_addresses, device.totals is not None) == (has_addresses, has_totals)
    assert len(device.trace) == 3


def test_devices_have_totals_of_their_own(tmp_path: Path) -> None:
    events = [
        memory(1.0, HEAP, 512, device=1, allocated=9000, reserved=2**24),
        without(memory(2.0, HEAP, 512), *TOTALS, "Addr"), memory(3.0, HEAP, -512, device=1, allocated=8488),
    ]
    first, second = read(tmp_path, document(events)).devices
    assert (first.totals, first.has_addresses) == (None, False)
    assert second.totals is not None and second.has_addresses and list(second.totals.allocated) == [9000, 8488, 8488]


def test_a_failure_of_a_profile_is_one_of_its_events(tmp_path: Path) -> None:
    failed = without(memory(5.0, 0, 3 << 20, allocated=4096), "Addr") | {"name": "[OutOfMemory]"}
    (device,) = read(tmp_path, document([memory(1.0, HEAP, 1024), failed])).devices
    trace = device.trace
    assert list(zip(trace.actions, trace.sizes, trace.addresses, strict=True))[-1] == (Action.OOM, 3 << 20, 0)
    assert device.has_addresses and device.totals is not None and device.totals.allocated[-1] == 4096


def test_totals_that_are_not_those_of_the_events_are_refused(tmp_path: Path) -> None:
    snapshot = read(tmp_path, document([memory(1.0, HEAP, 1024)]))
    device = snapshot.devices[0]
    for column in (array("Q", [1, 2]), array("Q", [2**63])):
        wrong = replace(snapshot, devices=(replace(device, totals=Totals(column, None)),))
        with pytest.raises(SourceError, match="totals"):
            read(tmp_path, write_snapshot(wrong), "wrong.pickle")
