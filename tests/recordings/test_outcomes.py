"""A replay that failed is called one, and nothing is concluded from it."""

from __future__ import annotations

import pickle
from array import array
from pathlib import Path

import pytest
from msgspec.structs import replace

from vramcast.domain.snapshot import Snapshot, Trace
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.recordings.examine import Asked, examine
from vramcast.recordings.replay import Basis, Outcome, replay
from vramcast.recordings.variants import Variant, advice
from vramcast.report.messages import Words
from vramcast.report.replay import render
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import MIB

from ._made import Run, train
from ._record import device_of


def recorded() -> Snapshot:
    run = Run()
    train(run, 3)
    return run.dump()


def test_a_recording_of_another_allocator_fails_and_says_so_first() -> None:
    """Addresses as an allocator gives them that puts every request at the end of free memory."""
    snapshot = recorded()
    device = snapshot.devices[0]
    addresses = array("Q", device.trace.addresses)
    top = max(addresses) + 64 * MIB
    places: dict[int, int] = {}
    for index, address in enumerate(addresses):
        if device.trace.actions[index] <= 2:
            addresses[index] = places.setdefault(address, top - 8 * MIB * len(places))
    other = replace(device, trace=Trace(**{
        name: addresses if name == "addresses" else getattr(device.trace, name) for name in Trace.__struct_fields__
    }))
    found = examine(snapshot, other, Asked(all_confs=True))
    assert found.replayed.outcome is Outcome.FAILED
    assert found.variants == () and found.fragmentation is None and found.advice is None
    lines = render([found], Words("en"), top=3).splitlines()
    assert lines[1].strip().startswith("the replay failed: ")


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


def variant(reserved: int, *, ooms: int = 0, avoided: int = 0) -> Variant:
    return Variant(
        conf="x", capacity_bytes=None, peak_allocated_bytes=1, peak_reserved_bytes=reserved, num_alloc_retries=0,
        num_ooms=ooms, num_ooms_avoided=avoided,
    )


def test_a_saving_below_what_laying_out_anew_changes_proves_nothing() -> None:
    variants = [variant(90), variant(85)]
    assert (said := advice(variants, 100)) is not None and said.kind == "unsure"
    assert (said := advice(variants, 93)) is not None and said.kind == "lowers"
    assert (said := advice(variants)) is not None and said.kind == "lowers"


def test_a_failure_that_does_not_come_again_shows_no_setting_to_help() -> None:
    assert (said := advice([variant(90, avoided=1), variant(70, avoided=1)])) is not None
    assert said.kind == "not_repeated" and said.best is None


@pytest.mark.parametrize("conf", ["an_option_of_tomorrow:3", "per_process_memory_fraction:0.5"])
def test_the_settings_of_a_recording_need_not_be_known_to_try_others(conf: str) -> None:
    found = examine(replace(recorded(), alloc_conf=conf), recorded().devices[0], Asked(confs=("max_split_size_mb:64",)))
    assert [variant.conf for variant in found.variants] == [conf, "max_split_size_mb:64"]
    assert found.variants[0].peak_reserved_bytes == found.replayed.peak_reserved_bytes


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
