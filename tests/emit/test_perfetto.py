"""Traces and snapshots as other tools read them."""

from __future__ import annotations

import json
import pickle
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.sources.snapshots.recordings import HEAP, TRUTH, event, read, recording, resolved
from tests.sources.snapshots.test_torch_form import EVENTS, document
from vramcast.domain.snapshot import Snapshot
from vramcast.emit.memory_snapshot import save_snapshot, write_counters, write_snapshot
from vramcast.errors import SourceError
from vramcast.sources.snapshots import read_snapshot

# Counters for Perfetto keep to the Trace Event Format, and peaks survive thinning.

_KEYS = {  # per phase: the keys that the format asks for
    "M": {"name", "pid", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "X": {"name", "pid", "tid", "ts", "dur"},
}


class Columns(NamedTuple):
    """What a replay counts."""

    allocated: array[int]
    reserved: array[int]


def written(tmp_path: Path, raw: dict[str, Any], allocated: list[int], reserved: list[int], **more: Any) -> list[Any]:
    """The events of the trace of device 0."""
    counted = {0: Columns(array("Q", allocated), array("Q", reserved))}
    events: list[Any] = json.loads(write_counters(read(tmp_path, raw), counted, **more))["traceEvents"]
    return events


def test_every_event_has_what_its_phase_asks_for(tmp_path: Path) -> None:
    events = written(tmp_path, recording(), list(range(12)), [20] * 12)
    assert {entry["ph"] for entry in events} == set(_KEYS)
    for entry in events:
        assert _KEYS[entry["ph"]] <= entry.keys()
    assert all(isinstance(value, int) for entry in events if entry["ph"] == "C" for value in entry["args"].values())
    (oom,) = (entry for entry in events if entry["ph"] == "i")
    assert (oom["s"], oom["args"]["requested_bytes"]) == ("p", 30 * 2**20)
    (step,) = (entry for entry in events if entry["ph"] == "X")
    assert (step["name"], step["ts"], step["dur"]) == ("step", 10, 20)


def test_active_counts_what_waits_for_another_stream(tmp_path: Path) -> None:
    trace = [
        event("alloc", HEAP, 512), event("alloc", HEAP + 512, 512), event("free_requested", HEAP, 512),
        event("alloc", HEAP + 1024, 512), event("free_completed", HEAP, 512),
    ]  # fmt: skip
    events = written(tmp_path, {"segments": [], "device_traces": [trace]}, [512, 1024, 512, 1024, 1024], [2048] * 5)
    assert [e["args"]["active"] for e in events if e["ph"] == "C"] == [512, 1024, 1024, 1536, 1024]


def test_thinned_counters_keep_the_peaks(tmp_path: Path) -> None:
    raw = recording(num_events=3000, num_devices=1)
    allocated = [index % 7 for index in range(3000)]
    allocated[1234] = 99
    reserved = [100] * 3000
    reserved[777] = 500
    points = [e for e in written(tmp_path, raw, allocated, reserved, most_points=60) if e["ph"] == "C"]
    assert len(points) <= 61
    assert max(point["args"]["allocated"] for point in points) == 99
    assert max(point["args"]["reserved"] for point in points) == 500


# Snapshots written by us are torch's: its own viewer opens them, and they read back as they were.

def recordings(tmp_path: Path) -> list[Snapshot]:
    """One of each kind."""
    real = [read_snapshot(path) for path in sorted(TRUTH.glob("*.pickle.gz"))[:1]]
    return [read(tmp_path, recording(num_events=1500)), read(tmp_path, document(EVENTS)), *real]


def test_what_is_written_reads_back_as_it_was(tmp_path: Path) -> None:
    for snapshot in recordings(tmp_path):
        again = read(tmp_path, write_snapshot(snapshot))
        assert resolved(again) == resolved(snapshot)
        assert write_snapshot(again) == write_snapshot(read(tmp_path, write_snapshot(again)))


def test_the_viewer_of_torch_opens_it(tmp_path: Path) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    for snapshot in recordings(tmp_path):
        written: Any = pickle.loads(write_snapshot(snapshot))
        assert "segments: " in viewer.segsum(written)
        assert "entries" in viewer.trace(written)
        for plot in (viewer.trace_plot, viewer.segment_plot):
            assert "MemoryViz" in plot(written)
        for flames in (viewer.memory, viewer.segments):
            assert flames(written, format_flamegraph=str).count("\n") == sum(
                _lines(block) for segment in written["segments"] for block in segment["blocks"]
            )


def _lines(block: dict[str, Any]) -> int:
    return 1 + (block["size"] != block["requested_size"])


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        save_snapshot(read(tmp_path, recording()), tmp_path)
