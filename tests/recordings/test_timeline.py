"""A run in few points."""

from vramcast.recordings.examine import Asked, examine

from ._made import Run


def test_a_recording_without_events_has_no_course() -> None:
    process = Run()
    process.make(512)
    snapshot = process.dump(len(process.trace))
    found = examine(snapshot, snapshot.devices[0], Asked())
    assert found.timeline.points == ()
    assert found.held.size_bytes == 512
    assert found.peak_time_us is None
