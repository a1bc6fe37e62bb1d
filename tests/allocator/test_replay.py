"""Real traces, replayed: every block must land where the real allocator put it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

from ._replay import Replay
from ._snapshot import TRUTH, PlainUnpickler, Snapshot

FILES = sorted((TRUTH / "snapshots").glob("*.pickle.gz"))
FROM_EMPTY = [path for path in FILES if path.name.startswith("small_ctx")]

pytestmark = pytest.mark.skipif(not FILES, reason=f"no snapshots in {TRUTH}")


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_allocation_of_a_real_trace_gets_its_real_address(path: Path) -> None:
    snapshot = Snapshot(path)
    replay = Replay(snapshot)
    assert replay.addresses_matched == replay.allocations > 0
    assert replay.segments_matched == replay.segment_events
    assert replay.segments_surplus == 0
    assert replay.allocator.segments() == snapshot.final


@pytest.mark.parametrize("path", FROM_EMPTY, ids=name)
def test_traces_from_an_empty_allocator_need_no_start_state(path: Path) -> None:
    snapshot = Snapshot(path)
    assert snapshot.start() == ()
    replay = Replay(snapshot)
    assert replay.segments_matched == len(snapshot.final)
    assert replay.allocator.reserved_bytes == sum(segment.size_bytes for segment in snapshot.final)


def test_a_snapshot_that_names_a_class_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="only plain containers"):
        PlainUnpickler(io.BytesIO(pickle.dumps(Path("x")))).load()
