"""Everything a reader of a snapshot is shown, of one device; and two recordings side by side: what became more.

Stacks of two files have different indices, so they are compared by the frames that a reader would recognise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import PREDICTED, Action, DeviceSnapshot, SegmentView, SizesAre, Snapshot, Trace
from vramcast.recordings.fragmentation import (
    Bar,
    Contiguity,
    Fragmentation,
    contiguity,
    fragmentation,
    peak_fragmentation,
    segment_map,
)
from vramcast.recordings.lives import Blocks, Lives, blocks_of, lives_of
from vramcast.recordings.peak import Group, Held, Places, Timeline, held_at, held_by_events, timeline
from vramcast.recordings.replay import Basis, Outcome, Replayed, replay, state_after
from vramcast.recordings.stacks import top_frames
from vramcast.recordings.start import RecordedDevice
from vramcast.recordings.steps import Leaks, leaks_of
from vramcast.recordings.variants import CONFS, Advice, Variant, advice, recorded_capacity, under

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


def difference(before: Examined, after: Examined) -> Difference:
    """What changed from one recording to another."""
    same = _is_same_process(before, after)
    return Difference(
        before=before.snapshot.name,
        same_process=same,
        at_peak=_moment(before, after, before.held, after.held),
        at_end=_moment(before, after, before.at_end, after.at_end),
        peak_reserved_before_bytes=before.replayed.peak_reserved_bytes,
        peak_reserved_after_bytes=after.replayed.peak_reserved_bytes,
        segments=tuple(_segments(before.source, after.source)) if same else (),
    )


def _is_same_process(before: Examined, after: Examined) -> bool | None:
    """Whether both share an event; None where events have no time of a clock."""
    old, new = _events(before.source.trace), _events(after.source.trace)
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


def _moment(before: Examined, after: Examined, old: Held, new: Held) -> Moment:
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


MOST_OOMS: Final = 4
"""Failures looked into; each takes a replay up to it [count]."""

NEEDS_CAPACITY: Final = "per_process_memory_fraction"
"""A setting that says nothing without a limit."""

POINTS: Final = 1200
"""Of the timeline [count]."""


class Failure(NamedTuple):
    """A request of the recording that found no memory."""

    event: int
    request_bytes: int  # rounded
    allocated_bytes: int
    reserved_bytes: int | None
    contiguity: Contiguity
    stack: int


class Asked(Noun, frozen=True):
    """What to look at."""

    top: int = 10  # holes and pinned segments to name [count]
    leaks: bool = False
    confs: tuple[str, ...] = ()  # allocator settings to replay under
    all_confs: bool = False  # and under all that usually help
    capacity_bytes: int | None = None  # what those replays may reserve; None: as the recording says, else without end


class Examined(Noun, frozen=True):
    """One device of a recording."""

    snapshot: Snapshot
    device: int
    replayed: Replayed
    held: Held  # at the peak of allocated memory
    at_end: Held
    fragmentation: Fragmentation | None  # at the peak of reserved memory; None where segments are not known
    fragmentation_of_run: float | None  # 1 - peak active / peak reserved
    segments: tuple[Bar, ...]  # at the peak of reserved memory
    timeline: Timeline
    failures: tuple[Failure, ...]
    num_failures: int
    leaks: Leaks | None = None  # None: not asked for
    variants: tuple[Variant, ...] = ()
    difference: Difference | None = None

    @property
    def source(self) -> DeviceSnapshot:
        """The device's part of the recording."""
        return next(device for device in self.snapshot.devices if device.device == self.device)

    @property
    def blocks(self) -> Blocks:
        """Every block, worked out anew each time: only pictures need them."""
        one = Examination(self.snapshot, self.source)
        return blocks_of(one, one.lives)

    @property
    def advice(self) -> Advice | None:
        """Which of the settings would have helped."""
        return advice(self.variants, self.replayed.peak_reserved_bytes)

    @property
    def peak_time_us(self) -> int | None:
        """When allocated memory was highest, after the first event; None where no times are recorded."""
        times = self.source.trace.times_us
        event = self.replayed.peak_event
        if event < 0 or not times[event] or times[event] < times[0]:
            return None
        return times[event] - times[0]


class Examination(RecordedDevice):
    """A device of a recording, of which each is worked out once."""

    @cached_property
    def replayed(self) -> Replayed:
        """Its events, replayed."""
        return replay(self)

    @cached_property
    def lives(self) -> Lives:
        """Lifetimes and categories of its blocks."""
        return lives_of(self)

    @cached_property
    def places(self) -> Places:
        """The user's lines and modules of its stacks."""
        return Places(self.snapshot)

    @property
    def is_understood(self) -> bool:
        """Whether segments were recorded, and are those of its events."""
        return self.replayed.basis is Basis.REPLAYED and self.replayed.outcome is not Outcome.FAILED

    def segments_after(self, event: int, *, at_recorded: bool = False) -> tuple[SegmentView, ...]:
        """Segments and blocks after an event; -1: before the first."""
        return state_after(self, event, slack=self.replayed.slack, at_recorded=at_recorded)

    def held_after(self, event: int) -> Held:
        """What was live after an event; -1: before the first."""
        device, replayed = self.device, self.replayed
        if self.snapshot.sizes_are is SizesAre.BLOCKS and not device.has_segments:
            # before the first event as much as at the peak, where that was never reached after
            allocated = replayed.allocated[event] if event >= 0 else replayed.peak_allocated_bytes
            return held_by_events(device, event, allocated, lives=self.lives, places=self.places)
        segments = self.segments_after(event, at_recorded=replayed.basis is not Basis.REPLAYED)
        return held_at(device, segments, event, lives=self.lives, places=self.places)


def examine(snapshot: Snapshot, device: DeviceSnapshot, asked: Asked, *, against: Examined | None = None) -> Examined:
    """One device replayed and looked at.

    Args:
        asked: what to look at
        against: the same device of an earlier recording
    """
    one = Examination(snapshot, device)
    replayed, lives = one.replayed, one.lives
    last = len(device.trace) - 1
    full = one.segments_after(_fullest_event(replayed)) if one.is_understood else None
    ooms = [index for index, action in enumerate(device.trace.actions) if action == Action.OOM]
    active, reserved = replayed.peak_allocated_bytes, replayed.peak_reserved_bytes
    counted = replayed.basis in (Basis.REPLAYED, Basis.RECORDED) and reserved is not None
    found = Examined(
        snapshot=snapshot,
        device=device.device,
        replayed=replayed,
        held=one.held_after(replayed.peak_event),
        at_end=held_at(device, device.segments, last, lives=lives, places=one.places) if device.has_segments
        else one.held_after(last),
        fragmentation=None if full is None else fragmentation(full, _fullest_event(replayed), top=asked.top),
        fragmentation_of_run=peak_fragmentation(peak_active_bytes=active, peak_reserved_bytes=reserved or 0)
        if counted else None,
        segments=() if full is None else segment_map(full),
        timeline=timeline(one, replayed, lives=lives, points=POINTS),
        failures=tuple(_failure(one, event) for event in ooms[:MOST_OOMS]),
        num_failures=len(ooms),
        leaks=leaks_of(one, lives) if asked.leaks else None,
        variants=_variants(one, asked),
    )
    if against is None:
        return found
    return replace(found, difference=difference(against, found))


def main_device(found: Sequence[Examined]) -> int:
    """Index of the device to look at first: that which ran out of memory; of several, or none, that which held most."""
    return max(range(len(found)), key=lambda index: (found[index].num_failures > 0, _most(found[index])), default=0)


def in_order(found: Sequence[Examined]) -> tuple[Examined, ...]:
    """The device to look at first, and the others as they were recorded."""
    main = main_device(found)
    return (*found[main : main + 1], *found[:main], *found[main + 1 :])


def _most(found: Examined) -> int:
    return max(found.replayed.peak_reserved_bytes or 0, found.replayed.peak_allocated_bytes)


def _fullest_event(replayed: Replayed) -> int:
    """Where reserved memory was highest; of several such moments that at which tensors held most, if it is one."""
    event = replayed.peak_event
    reserved_then = replayed.reserved[event] if event >= 0 and replayed.reserved is not None else 0
    return event if reserved_then == replayed.peak_reserved_bytes else replayed.peak_reserved_event


def _failure(one: Examination, event: int) -> Failure:
    device, trace, replayed = one.device, one.trace, one.replayed
    allocated, reserved = replayed.allocated[event], replayed.reserved
    held = None if reserved is None or replayed.is_least else reserved[event]
    request, free = trace.sizes[event], trace.addresses[event] if device.has_segments else None
    if one.is_understood:
        found = contiguity(
            one.segments_after(event - 1), request, stream=trace.streams[event],
            pool=one.snapshot.pools[trace.pools[event]], driver_free_bytes=free,
        )
    else:
        found = Contiguity(request, None if held is None else max(0, held - allocated), None, free)
    return Failure(event, request, allocated, held, found, trace.stacks[event])


def _variants(one: Examination, asked: Asked) -> tuple[Variant, ...]:
    """The settings of the recording first, then those asked for; nothing where none are and no card is named."""
    if not asked.confs and not asked.all_confs and asked.capacity_bytes is None:
        return ()
    device, replayed = one.device, one.replayed
    if not device.has_addresses or replayed.outcome is Outcome.FAILED:
        return ()
    capacity = asked.capacity_bytes if asked.capacity_bytes is not None else recorded_capacity(device, replayed)
    own = under(one, capacity_bytes=capacity)
    if asked.capacity_bytes is None and own.out_of_memory is not None:
        # what was live before is laid out anew, and so did not fit where it really did: this is no limit of the process
        capacity, own = None, under(one)
    usual = (conf for conf in CONFS if capacity is not None or NEEDS_CAPACITY not in conf)
    others = dict.fromkeys((*asked.confs, *(usual if asked.all_confs else ())))
    others.pop(one.snapshot.alloc_conf, None)
    return (own, *(under(one, conf, capacity_bytes=capacity) for conf in others))
