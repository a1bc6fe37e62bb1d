"""Two recordings side by side: what became more, by category and by place.

Stacks of two files have different indices, so they are compared by the frames that a reader would recognise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import PREDICTED, DeviceSnapshot, Snapshot, Trace
from vramcast.recordings.peak import Group, Held
from vramcast.recordings.stacks import top_frames

FRAMES_COMPARED: Final = 12
"""Of a stack, the innermost of Python: enough to tell layers' code apart, few enough that callers may differ."""


class Grown(NamedTuple):
    """One group in both recordings."""

    name: tuple[str, ...]  # category, or frames innermost first
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int

    @property
    def bytes_more(self) -> int:
        """What it became more; negative where it became less."""
        return self.after_bytes - self.before_bytes


class Moment(Noun, frozen=True):
    """What differs at one moment of both: their peaks, or their ends."""

    before_bytes: int
    after_bytes: int
    by_category: tuple[Grown, ...]  # largest change first; what did not change is left out
    by_stack: tuple[Grown, ...]


class SegmentsChanged(NamedTuple):
    """Segments that only one of two recordings of a process has at its end."""

    is_new: bool  # of the later recording; else of the earlier
    num_segments: int
    size_bytes: int


class Difference(Noun, frozen=True):
    """A recording against an earlier one."""

    before: str  # name of the earlier file
    same_process: bool | None  # an event with its time is in both, as addresses repeat from run to run; None: untold
    at_peak: Moment
    at_end: Moment
    peak_reserved_before_bytes: int | None
    peak_reserved_after_bytes: int | None
    segments: tuple[SegmentsChanged, ...] = ()  # at the end; of one process only


class Recording(NamedTuple):
    """What is compared of one recording."""

    snapshot: Snapshot
    at_peak: Held
    at_end: Held
    peak_reserved_bytes: int | None
    device: DeviceSnapshot


def difference(before: Recording, after: Recording) -> Difference:
    """What changed from one recording to another."""
    same = _is_same_process(before, after)
    return Difference(
        before=before.snapshot.name,
        same_process=same,
        at_peak=_moment(before, after, lambda recording: recording.at_peak),
        at_end=_moment(before, after, lambda recording: recording.at_end),
        peak_reserved_before_bytes=before.peak_reserved_bytes,
        peak_reserved_after_bytes=after.peak_reserved_bytes,
        segments=tuple(_segments(before.device, after.device)) if same else (),
    )


def _is_same_process(before: Recording, after: Recording) -> bool | None:
    """Whether both share an event; None where events have no time of a clock."""
    old, new = _events(before.device.trace), _events(after.device.trace)
    if not old or not new or PREDICTED in (before.snapshot.format, after.snapshot.format):
        return None
    return not old.isdisjoint(new)


def _events(trace: Trace) -> set[tuple[int, int, int]]:
    """Time, address and size of every event that has a time."""
    return {event for event in zip(trace.times_us, trace.addresses, trace.sizes, strict=True) if event[0]}


def _segments(before: DeviceSnapshot, after: DeviceSnapshot) -> Iterator[SegmentsChanged]:
    old, new = (
        {(segment.address, segment.size_bytes) for segment in device.segments} for device in (before, after)
    )
    for is_new, found in ((True, new - old), (False, old - new)):
        yield SegmentsChanged(is_new, len(found), sum(size for _, size in found))


def _moment(before: Recording, after: Recording, held: Callable[[Recording], Held]) -> Moment:
    old, new = held(before), held(after)
    return Moment(
        before_bytes=old.size_bytes,
        after_bytes=new.size_bytes,
        by_category=_grown(_by_name(old.by_category), _by_name(new.by_category)),
        by_stack=_grown(_by_frames(before.snapshot, old.by_stack), _by_frames(after.snapshot, new.by_stack)),
    )


_Sums = dict[tuple[str, ...], list[int]]


def _by_name(groups: Iterable[Group]) -> _Sums:
    return {(group.name,): [group.size_bytes, group.num_blocks] for group in groups}


def _by_frames(snapshot: Snapshot, groups: Iterable[Group]) -> _Sums:
    sums: _Sums = {}
    for group in groups:
        frames = top_frames(snapshot.stacks[group.stack], FRAMES_COMPARED)
        total = sums.setdefault(frames, [0, 0])
        total[0] += group.size_bytes
        total[1] += group.num_blocks
    return sums


def _grown(before: _Sums, after: _Sums) -> tuple[Grown, ...]:
    rows = [row for row in _rows(before, after) if row.bytes_more]
    return tuple(sorted(rows, key=lambda row: (-abs(row.bytes_more), row.name)))


def _rows(before: _Sums, after: _Sums) -> Iterator[Grown]:
    nothing = [0, 0]
    for name in dict.fromkeys((*after, *before)):
        (old_bytes, old_count), (new_bytes, new_count) = before.get(name, nothing), after.get(name, nothing)
        yield Grown(name, old_bytes, new_bytes, old_count, new_count)
