"""The course's network, traced, allocates what published recordings of it show."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from truth.cs336.runs import RECORDED
from truth.traced_snapshots import compare
from vramcast.sources.snapshots import read_snapshot

FOLDER = Path(__file__).parents[3] / "shared" / "truth" / "snapshots"
FROM_START = [name for name, recorded in RECORDED.items() if recorded.from_start]


@pytest.mark.parametrize("name", FROM_START)
def test_allocations_are_those_recorded_in_order_and_peaks_are_exact(name):
    path = FOLDER / f"{name}.pickle.gz"
    if not path.exists():
        pytest.skip("the recordings are not here")
    compared = compare(name, RECORDED[name], read_snapshot(path))
    assert compared.events.share >= 0.995
    assert compared.errors == (0.0, 0.0)


def test_the_recordings_with_a_bar_are_all_compared():
    assert len(FROM_START) == 3
