"""Two recordings side by side."""

from array import array

from msgspec.structs import replace

from vramcast.domain.snapshot import PREDICTED
from vramcast.recordings.examine import Asked, Examined, examine
from vramcast.units import MIB

from . import _made as made
from ._made import Run, train


def against(before: Run, after: Run) -> Examined:
    old, new = before.dump(), after.dump()
    return examine(new, new.devices[0], Asked(), against=examine(old, old.devices[0], Asked()))


def test_a_recording_does_not_differ_from_itself() -> None:
    run = Run()
    train(run, 2)
    found = against(run, run).difference
    assert found is not None and found.same_process
    assert found.at_peak.by_category == found.at_end.by_stack == ()
    assert [(changed.num_segments, changed.size_bytes) for changed in found.segments] == [(0, 0), (0, 0)]


def test_what_grew_is_named_by_category_and_stack() -> None:
    before, after = Run(), Run()
    train(before, 2)
    train(after, 2)
    after.make(30 * MIB, made.FORWARD)
    found = against(before, after).difference
    assert found is not None
    (category,) = found.at_end.by_category
    assert (category.name, category.bytes_more) == (("activations",), 30 * MIB)
    assert (category.before_count, category.after_count) == (0, 1)
    (stack,) = found.at_end.by_stack
    assert stack.name[0] == "model.py:10 forward"
    new, gone = found.segments
    assert (new.is_new, new.num_segments, new.size_bytes, gone.num_segments) == (True, 1, 30 * MIB, 0)
    assert found.peak_reserved_after_bytes - found.peak_reserved_before_bytes == 30 * MIB


def test_events_without_a_clock_do_not_tell_one_process_from_two() -> None:
    run = Run()
    train(run, 2)
    timed, predicted = run.dump(), replace(run.dump(), format=PREDICTED)  # whose times count events
    (device,) = timed.devices
    clockless = replace(device.trace, times_us=array("q", [0] * len(device.trace)))
    untimed = replace(timed, devices=(replace(device, trace=clockless),))
    for other in (untimed, predicted):
        earlier = examine(other, other.devices[0], Asked())
        found = examine(timed, device, Asked(), against=earlier).difference
        assert found is not None and found.same_process is None and found.segments == ()
