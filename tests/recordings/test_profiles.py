"""Recordings that list no segments: what is known of them is said, and nothing else."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vramcast.domain.snapshot import Action, DeviceSnapshot, SizesAre, Snapshot, Totals, Trace
from vramcast.recordings.examine import Asked, Examined, examine, main_device
from vramcast.recordings.replay import Basis, Outcome, replay
from vramcast.recordings.start import RecordedDevice
from vramcast.report.messages import Words
from vramcast.report.replay import render
from vramcast.report.replay_document import replay_document
from vramcast.report.replay_page import page
from vramcast.units import GIB, MIB

from . import _made as made
from ._made import Run, train
from ._record import device_of


def profile(run: Run, first: int = 0, *, totals: bool = True, addresses: bool = True, keep_reserved: bool = True,
            ) -> Snapshot:
    """The run as a profiler trace has it from an event on: sizes of blocks, no segments."""
    whole = run.dump()
    device = whole.devices[0]
    replayed = replay(RecordedDevice(whole, device))
    sizes = block_sizes(whole)
    kept = [index for index, action in enumerate(device.trace.actions)
            if index >= first and action in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)]
    columns = {name: array(getattr(device.trace, name).typecode, (getattr(device.trace, name)[i] for i in kept))
               for name in Trace.__struct_fields__}
    columns["sizes"] = array("Q", (sizes[i] for i in kept))
    if not addresses:
        columns["addresses"] = array("Q", bytes(8 * len(kept)))
    assert replayed.reserved is not None
    counted = Totals(
        array("Q", (replayed.allocated[i] for i in kept)),
        array("Q", (replayed.reserved[i] for i in kept)) if keep_reserved else None,
    )
    made_of = DeviceSnapshot(
        device=0, trace=Trace(**columns), segments=(), has_segments=False, has_addresses=addresses,
        totals=counted if totals else None,
    )
    return replace(whole, format="kineto", sizes_are=SizesAre.BLOCKS, devices=(made_of,))


def block_sizes(whole: Snapshot) -> list[int]:
    """Of each event, the size of its block."""
    trace = whole.devices[0].trace
    replayed = replay(device_of(whole))
    sizes, live, before = list(trace.sizes), {}, 0
    for index, (action, address) in enumerate(zip(trace.actions, trace.addresses, strict=True)):
        if action == Action.ALLOC:
            live[address] = sizes[index] = replayed.allocated[index] - before
        elif action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            sizes[index] = live.get(address, sizes[index])
        before = replayed.allocated[index]
    return sizes


def examined(snapshot: Snapshot, **asked: Any) -> Examined:
    return examine(snapshot, snapshot.devices[0], Asked(**asked))


@given(keep=st.floats(0, 0.9), steps=st.integers(1, 4))
def test_the_totals_of_a_profile_are_the_peaks_and_what_no_event_speaks_of_was_held_before(
    keep: float, steps: int
) -> None:
    run = Run()
    train(run, steps)
    whole = run.dump()
    truth = replay(device_of(whole))
    first = int(keep * len(run.trace))
    snapshot = profile(run, first)
    found = examined(snapshot)
    kept = [i for i, a in enumerate(whole.devices[0].trace.actions) if i >= first and a <= Action.FREE_COMPLETED]
    assert truth.reserved is not None
    before = truth.allocated[first - 1] if first else 0
    assert found.replayed.basis is Basis.RECORDED and found.replayed.outcome is Outcome.NOT_COMPARED
    assert found.replayed.peak_allocated_bytes == max(before, *(truth.allocated[i] for i in kept))
    assert found.replayed.peak_reserved_bytes == max(truth.reserved[i] for i in kept)
    assert found.held.size_bytes == found.replayed.peak_allocated_bytes
    assert sum(group.size_bytes for group in found.held.by_category) == found.held.size_bytes
    assert sum(block.size_bytes for block in found.held.blocks) + found.held.unlisted_bytes == found.held.size_bytes
    assert not found.replayed.is_least and found.fragmentation is None and found.segments == ()
    for point in found.timeline.points:
        assert sum(point.by_category) == point.allocated_bytes


def test_with_addresses_alone_reserved_memory_is_called_simulated() -> None:
    run = Run()
    run.make(GIB, made.MOVED)
    first = len(run.trace)
    train(run, 2)
    snapshot = profile(run, first, totals=False)
    found = examined(snapshot)
    assert found.replayed.basis is Basis.SIMULATED and found.replayed.is_least
    assert found.replayed.peak_allocated_bytes == found.held.size_bytes < GIB
    assert found.fragmentation is None and found.fragmentation_of_run is None
    assert "simulated" in render([found], Words("en"), top=3).splitlines()[0]
    text = render([examined(snapshot, all_confs=True)], Words("en"), top=3)
    assert "defaults (assumed: the recording states none)" in text and "(of the recording)" not in text
    assert "nor in what runs out of memory" in text


def test_other_settings_keep_what_was_held_before() -> None:
    run = Run()
    run.make(GIB)
    first = len(run.trace)
    train(run, 2)
    found = examined(profile(run, first), all_confs=True)
    assert all(variant.peak_reserved_bytes >= GIB for variant in found.variants)
    assert "is taken as one piece" in render([found], Words("en"), top=3)


@pytest.mark.parametrize("form", [{}, {"totals": False}, {"addresses": False}, {"keep_reserved": False},
                                  {"totals": False, "addresses": False}])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_form_of_report_is_made_of_every_form_of_profile(form: dict[str, bool], language: str) -> None:
    from datetime import date

    from vramcast.emit.memory_snapshot import write_counters
    from vramcast.report.shown import ShownReplay
    from vramcast.report.written.recordings import replay_report

    run = Run(capacity_bytes=64 * MIB)
    train(run, 3)
    assert run.request(80 * MIB) is None
    snapshot, words = profile(run, 9, **form), Words(language)
    found = examined(snapshot, leaks=True, all_confs=True)
    assert render([found], words, top=3) and page([found], words, top=3)
    replay_document([found], top=3)
    replay_report("replay", ShownReplay(devices=(found,)), words, asked="", today=date(2026, 1, 1))
    write_counters(snapshot, {0: found.replayed})
    assert examine(snapshot, snapshot.devices[0], Asked(), against=found).difference is not None


def several() -> Snapshot:
    """Three cards; the second held most, the first had most events."""
    devices = []
    for number, size in enumerate((8, 512, 64)):
        run = Run()
        run.make(size * MIB, made.FORWARD)
        for _ in range(20 if not number else 1):
            run.drop(run.make(MIB))
        devices.append(replace(run.dump().devices[0], device=number))
    return replace(run.dump(), devices=tuple(devices), stacks=((), made.FORWARD))


def test_of_several_devices_the_one_to_look_at_comes_first() -> None:
    from datetime import date

    from vramcast.report.shown import ShownReplay
    from vramcast.report.written.brief import replay_brief
    from vramcast.report.written.recordings import replay_report

    snapshot = several()
    found = [examine(snapshot, device, Asked()) for device in snapshot.devices]
    assert main_device(found) == 1
    assert render(found, Words("en"), top=3).startswith("of 3 devices, device 1 held most: 514.00 MiB\n")
    assert replay_document(found, top=3)["main_device"] == 1
    report = replay_report("replay", ShownReplay(devices=tuple(found)), Words("en"), asked="", today=date(2026, 1, 1))
    brief = replay_brief(ShownReplay(devices=tuple(found)), Words("en"))
    for said in (render(found, Words("en"), top=3).splitlines()[1:], report.verdict[1:], brief.verdict[1:]):
        assert next(iter(said)).startswith("device 1: peak: 514.00 MiB")
    assert next(part.title for part in report.sections if part.title.startswith("device")).startswith("device 1: ")
    assert '"shown":1' in page(found, Words("en"), top=3)


def test_a_device_that_ran_out_goes_before_one_that_held_more() -> None:
    run = Run(capacity_bytes=64 * MIB)
    run.make(40 * MIB)
    assert run.request(40 * MIB) is None
    snapshot = several()
    failed = replace(run.dump().devices[0], device=3)
    found = [examine(replace(snapshot, devices=(*snapshot.devices, failed)), device, Asked())
             for device in (*snapshot.devices, failed)]
    assert main_device(found) == 3
    assert render(found, Words("en"), top=3).startswith("of 4 devices, device 3 ran out of memory\n")
