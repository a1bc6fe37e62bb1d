"""A run in few points."""

from __future__ import annotations

import pytest

from vramcast.domain.snapshot import Action
from vramcast.recordings.examine import Asked, examine
from vramcast.recordings.lives import lives_of
from vramcast.recordings.peak import Timeline, timeline
from vramcast.recordings.replay import replay
from vramcast.units import MIB

from ._made import Run, train
from ._record import Process, device_of


def drawn(process: Process, points: int, first: int = 0) -> tuple[Timeline, int, int]:
    snapshot = process.dump(first)
    recorded = device_of(snapshot)
    replayed = replay(recorded)
    course = timeline(recorded, replayed, lives=lives_of(recorded), points=points)
    return course, replayed.peak_allocated_bytes, replayed.peak_reserved_bytes


@pytest.mark.parametrize("first", [0, 20, 60])
def test_the_categories_add_up_to_what_was_requested(first: int) -> None:
    process = Run()
    train(process, 6)
    course, _, _ = drawn(process, 10**6, first)
    actions = process.trace.actions[first:]
    for point in course.points:
        if actions[point.highest] != Action.FREE_REQUESTED:  # a block counts until its free is complete
            assert 0 <= point.allocated_bytes - sum(point.by_category) <= MIB * 12  # slack: less than 1 MiB a block
    assert sum(course.points[-1].by_category) == process.allocator.requested_bytes


def test_a_recording_without_events_has_no_course() -> None:
    process = Run()
    process.make(512)
    snapshot = process.dump(len(process.trace))
    found = examine(snapshot, snapshot.devices[0], Asked())
    assert found.timeline.points == ()
    assert found.held.size_bytes == 512
    assert found.peak_time_us is None
