"""A replay that failed is called one, and nothing is concluded from it."""

import pickle
from pathlib import Path

from msgspec.structs import replace

from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.recordings.examine import Asked, examine
from vramcast.recordings.replay import Basis, Outcome, replay
from vramcast.report.messages import Words
from vramcast.report.replay import render
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import MIB

from ._made import Run, train
from ._record import device_of


def test_a_table_that_contradicts_its_events_is_a_failure() -> None:
    run = Run()
    held = [run.make(3 * MIB) for _ in range(4)]
    first = len(run.trace)
    run.drop(run.make(2 * MIB))
    snapshot = run.dump(first)
    device = snapshot.devices[0]
    segment = device.segments[0]
    blocks = [replace(block, size_bytes=2 * block.size_bytes) for block in segment.blocks]  # they overlap
    other = replace(device, segments=(replace(segment, blocks=tuple(blocks)), *device.segments[1:]))
    assert len(held) == 4
    found = examine(snapshot, other, Asked(all_confs=True))
    assert found.replayed.outcome is Outcome.FAILED and found.replayed.basis is Basis.SIMULATED
    assert not found.variants
    assert "the replay failed" in render([found], Words("en"), top=3)


def test_expandable_segments_show_where_a_version_writes_no_settings(tmp_path: Path) -> None:
    run = Run("expandable_segments:True")
    train(run, 2)
    raw = pickle.loads(write_snapshot(run.dump()))
    del raw["allocator_settings"], raw["vramcast"]
    path = tmp_path / "torch-2.1.pickle"
    path.write_bytes(pickle.dumps(raw))
    snapshot = read_snapshot(path)
    assert snapshot.alloc_conf == "expandable_segments:True"
    assert replay(device_of(snapshot)).outcome is Outcome.EXACT
