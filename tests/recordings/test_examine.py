"""A device looked at as a whole: failures, settings, and recordings of other people's runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.sources.snapshots.recordings import TRUTH
from vramcast.recordings.examine import Asked, examine
from vramcast.recordings.variants import Variant, advice
from vramcast.sources.snapshots import read_snapshot
from vramcast.units import GIB, MIB

from . import _made as made
from ._made import Run

FILES = sorted(TRUTH.glob("*.pickle.gz"))


def variant(conf: str, reserved: int, failed: int | None = None) -> Variant:
    return Variant(
        conf=conf, capacity_bytes=None, peak_allocated_bytes=MIB, peak_reserved_bytes=reserved, num_alloc_retries=0,
        out_of_memory=failed,
    )


@pytest.mark.parametrize(
    ("variants", "kind", "best", "saved"),
    [
        ([("", 9, None), ("a", 8, None), ("b", 7, None)], "lowers", "b", 2),
        ([("", 9, None), ("a", 9, None), ("b", 12, None)], "none", None, 0),
        ([("", 9, None), ("a", 3, 5)], "none", None, 0),
        ([("", 9, 5), ("a", 12, None), ("b", 1, 2)], "avoids", "a", 0),
        ([("", 9, 5), ("a", 12, 7)], "none_avoids", None, 0),
    ],
)
def test_advice_is_what_the_figures_say(
    variants: list[tuple[str, int, int | None]], kind: str, best: str | None, saved: int
) -> None:
    said = advice([variant(*figures) for figures in variants])
    assert said is not None
    assert (said.kind, said.best.conf if said.best else None, said.saved_bytes) == (kind, best, saved)


def test_without_other_settings_there_is_no_advice() -> None:
    assert advice([]) is None
    assert advice([variant("", MIB)]) is None


def test_settings_that_need_a_limit_are_tried_only_where_one_is_known() -> None:
    run = Run()
    run.make(30 * MIB)
    snapshot = run.dump()
    free = examine(snapshot, snapshot.devices[0], Asked(all_confs=True)).variants
    limited = examine(snapshot, snapshot.devices[0], Asked(all_confs=True, capacity_bytes=GIB)).variants
    assert len(limited) == len(free) + 1
    assert examine(snapshot, snapshot.devices[0], Asked()).variants == ()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_of_a_real_recording_everything_adds_up(path) -> None:  # type: ignore[no-untyped-def]
    snapshot = read_snapshot(path)
    for device in snapshot.devices:
        found = examine(snapshot, device, Asked(leaks=True))
        assert found.held.size_bytes == found.replayed.peak_allocated_bytes
        assert sum(group.size_bytes for group in found.held.by_category) == found.held.size_bytes
        assert found.fragmentation.reserved_bytes == found.replayed.peak_reserved_bytes
        assert sum(bar.size_bytes for bar in found.segments) == found.replayed.peak_reserved_bytes
        assert max(point.allocated_bytes for point in found.timeline.points) == found.replayed.peak_allocated_bytes
        # These are single training steps and forwards of ordinary models: no leak, and little that no rule names.
        assert found.leaks is not None and found.leaks.leaks == ()
        unknown = sum(group.size_bytes for group in found.held.by_category if group.name == "unknown")
        assert unknown < found.held.size_bytes / 100


@pytest.mark.parametrize("kind", ["no segments", "contradiction"])
def test_without_segments_to_compare_with_the_same_blocks_hold_the_peak(kind: str) -> None:
    run = Run()
    made.train(run, 3)
    snapshot = run.dump()
    device = snapshot.devices[0]
    plain = examine(snapshot, device, Asked())
    first = device.segments[0]
    number = next(number for number, block in enumerate(first.blocks) if not block.is_free)
    wrong = replace(first.blocks[number], size_bytes=2 * first.size_bytes, address=first.blocks[number].address + 512)
    blocks = (*first.blocks[:number], wrong, *first.blocks[number + 1 :])
    if kind == "no segments":
        other = replace(device, has_segments=False)
    else:
        other = replace(device, segments=(replace(first, blocks=blocks), *device.segments[1:]))
    found = examine(snapshot, other, Asked(leaks=True, all_confs=True))
    assert kind != "no segments" or found.replayed.addresses_matched is None
    groups = {group.name: group.num_blocks for group in plain.held.by_category}
    assert found.replayed.peak_event == plain.replayed.peak_event
    assert {group.name: group.num_blocks for group in found.held.by_category} == groups
