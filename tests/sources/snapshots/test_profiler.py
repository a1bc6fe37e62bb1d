"""Profiler traces: memory events of GPUs with what ran on their thread."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.snapshots.recordings import HEAP, read
from vramcast.domain.snapshot import Action, Annotation, Frame, SizesAre
from vramcast.errors import SourceError


def memory(time_us: float, address: int, num_bytes: int, *, device_type: int = 1, device: int = 0) -> dict[str, Any]:
    """An event as Kineto writes it."""
    args = {
        "Total Reserved": 2**21, "Total Allocated": 2048, "Bytes": num_bytes, "Device Id": device,
        "Device Type": device_type, "Addr": address, "finished": False, "Ev Idx": 522,
    }  # fmt: skip
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": time_us,
        "args": args,
    }  # fmt: skip


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


def test_several_devices_are_kept_apart(tmp_path: Path) -> None:
    content = document([memory(1.0, HEAP, 512, device=3), memory(2.0, HEAP, 512)])
    assert [device.device for device in read(tmp_path, content).devices] == [0, 3]


def test_a_trace_without_gpu_memory_says_how_to_record_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="its 1 events of the CPU say nothing about GPUs; profile with"):
        read(tmp_path, document([memory(1.0, 1, 512, device_type=0)]))


@pytest.mark.parametrize("field", [{"ts": 1e300}, {"args": {"Bytes": 5}}, {"args": 5}, {"ts": None}])
def test_damaged_memory_events_are_said(tmp_path: Path, field: dict[str, Any]) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, document([memory(1.0, 1, 512) | field]))
