"""Two recordings side by side: what became more, by category and by place.

Stacks of two files have different indices, so they are compared by the frames that a reader would recognise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import SegmentView, Snapshot
from vramcast.replay.peak import Group, Held
from vramcast.replay.stacks import top_frames

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


class Difference(Noun, frozen=True):
    """A recording against an earlier one."""

    before: str  # name of the earlier file
    same_process: bool  # both list a segment at the same address with the same size
    at_peak: Moment
    at_end: Moment
    peak_reserved_before_bytes: int
    peak_reserved_after_bytes: int
    new_segments: int  # at the end, of the later
    gone_segments: int  # of the earlier
    new_segment_bytes: int
    gone_segment_bytes: int


class Recording(NamedTuple):
    """What is compared of one recording."""

    snapshot: Snapshot
    at_peak: Held
    at_end: Held
    peak_reserved_bytes: int
    segments: tuple[SegmentView, ...]  # at the end


def difference(before: Recording, after: Recording) -> Difference:
    """What changed from one recording to another."""
    old = {(segment.address, segment.size_bytes) for segment in before.segments}
    new = {(segment.address, segment.size_bytes) for segment in after.segments}
    return Difference(
        before=before.snapshot.name,
        same_process=bool(old & new),
        at_peak=_moment(before, after, lambda recording: recording.at_peak),
        at_end=_moment(before, after, lambda recording: recording.at_end),
        peak_reserved_before_bytes=before.peak_reserved_bytes,
        peak_reserved_after_bytes=after.peak_reserved_bytes,
        new_segments=len(new - old),
        gone_segments=len(old - new),
        new_segment_bytes=sum(size for _, size in new - old),
        gone_segment_bytes=sum(size for _, size in old - new),
    )


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
