"""Real recordings, replayed: every block must land where the real allocator put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.snapshots.recordings import TRUTH
from vramcast.recordings.replay import replay
from vramcast.recordings.start import start_segments
from vramcast.sources.snapshots import read_snapshot

FILES = sorted(TRUTH.glob("*.pickle.gz"))
FROM_EMPTY = [path for path in FILES if path.name.startswith("small_ctx")]

pytestmark = pytest.mark.skipif(not FILES, reason=f"no snapshots in {TRUTH}")


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_allocation_of_a_real_trace_gets_its_real_address(path: Path) -> None:
    snapshot = read_snapshot(path)
    for device in snapshot.devices:
        replayed = replay(snapshot, device)
        assert replayed.addresses_matched == replayed.allocations > 0
        assert replayed.segments_matched == replayed.segment_events
        assert replayed.segments_surplus == 0
        assert replayed.final_blocks_matched


@pytest.mark.parametrize("path", FROM_EMPTY, ids=name)
def test_traces_from_an_empty_allocator_need_no_start_state(path: Path) -> None:
    snapshot = read_snapshot(path)
    (device,) = snapshot.devices
    assert start_segments(snapshot, device) == ()
    replayed = replay(snapshot, device)
    assert replayed.segments_matched == len(device.segments)
    assert replayed.reserved[-1] == sum(segment.size_bytes for segment in device.segments)
