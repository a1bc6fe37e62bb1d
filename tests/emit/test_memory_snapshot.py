"""Snapshots written by us are torch's: its own viewer opens them, and they read back as they were."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.sources.snapshots.recordings import TRUTH, read, recording, resolved
from tests.sources.snapshots.test_torch_form import EVENTS, document
from vramcast.domain.snapshot import Snapshot
from vramcast.emit.memory_snapshot import save_snapshot, write_snapshot
from vramcast.errors import SourceError
from vramcast.sources.snapshots import read_snapshot


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
