"""Real recordings, replayed: every block must land where the real allocator put it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.sources.snapshots.recordings import TRUTH
from vramcast.domain.snapshot import Action, Trace
from vramcast.recordings.lives import Category, lives_of
from vramcast.recordings.replay import Outcome, replay
from vramcast.recordings.start import RecordedDevice
from vramcast.sources.snapshots import read_snapshot

FILES = sorted(TRUTH.glob("*.pickle.gz"))

pytestmark = pytest.mark.skipif(not FILES, reason=f"no snapshots in {TRUTH}")


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


@pytest.mark.parametrize("path", FILES, ids=name)
@pytest.mark.parametrize("part", [0.3, 0.7])
def test_a_recording_that_begins_later_tells_nothing_else_of_what_was_there_before(path: Path, part: float) -> None:
    """Its ring buffer was full: events are missing, and with them stacks. What is said then is right, or that it is
    not known; what a pass in course frees is at most a few temporaries."""
    snapshot = read_snapshot(path)
    (device,) = snapshot.devices
    trace, first = device.trace, int(part * len(device.trace))
    later = replace(device, trace=Trace(**{
        column: getattr(trace, column)[first:] for column in Trace.__struct_fields__
    }))
    cut = replace(snapshot, devices=(later,))
    replayed = replay(RecordedDevice(cut, later))
    assert replayed.outcome is Outcome.EXACT
    whole, known = lives_of(RecordedDevice(snapshot, device)), lives_of(RecordedDevice(cut, later))
    made = {trace.addresses[index]: index for index in range(first) if trace.actions[index] == Action.ALLOC}
    wrong = total = 0
    for block in RecordedDevice(cut, later).older:
        was = whole.category(made[block.address]) if block.address in made else None
        now = known.older[block.address]
        total += block.size_bytes
        if was is not None and now not in (was, Category.HELD, Category.UNKNOWN):
            assert was == Category.TEMPORARIES
            wrong += block.size_bytes
    assert wrong <= 0.03 * total
