"""Everything a reader of a snapshot is shown, of one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Action, DeviceSnapshot, SegmentView, Snapshot
from vramcast.recordings.capacity import recorded_capacity
from vramcast.recordings.difference import Difference, Recording, difference
from vramcast.recordings.fragmentation import Contiguity, Fragmentation, contiguity, fragmentation, peak_fragmentation
from vramcast.recordings.leaks import Leaks, leaks_of
from vramcast.recordings.lives import lives_of
from vramcast.recordings.peak import Held, Places, held_at
from vramcast.recordings.replay import Replayed, replay, state_after
from vramcast.recordings.segments import Bar, segment_map
from vramcast.recordings.start import held_at_start
from vramcast.recordings.timeline import Course, Timeline, timeline
from vramcast.recordings.variants import CONFS, Variant, under

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
    reserved_bytes: int
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
    fragmentation: Fragmentation  # at the peak of reserved memory
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
    def peak_time_us(self) -> int | None:
        """When allocated memory was highest, after the first event; None where no times are recorded."""
        times = self.source.trace.times_us
        event = self.replayed.peak_event
        if event < 0 or not times[event] or times[event] < times[0]:
            return None
        return times[event] - times[0]


def examine(snapshot: Snapshot, device: DeviceSnapshot, asked: Asked, *, against: Examined | None = None) -> Examined:
    """One device replayed and looked at.

    Args:
        snapshot: the recording
        device: one of its devices
        asked: what to look at
        against: the same device of an earlier recording
    """
    replayed = replay(snapshot, device)
    places, lives = Places(snapshot), lives_of(snapshot, device)
    at_peak = state_after(snapshot, device, replayed.peak_event)
    start = held_at_start(snapshot, device)
    full_event = _fullest_event(replayed)
    full = at_peak if full_event == replayed.peak_event else state_after(snapshot, device, full_event)
    last = len(device.trace) - 1
    is_listed = device.has_segments and not replayed.contradiction
    end = device.segments if is_listed else state_after(snapshot, device, last)

    def held(segments: Sequence[SegmentView], event: int) -> Held:
        if replayed.addresses_matched is None:  # the simulation chose addresses of its own
            segments = state_after(snapshot, device, event, at_recorded=True)
        return held_at(device, segments, event, lives=lives, places=places)

    ooms = [index for index, action in enumerate(device.trace.actions) if action == Action.OOM]
    failures = tuple(_failure(snapshot, device, replayed, event) for event in ooms[:MOST_OOMS])
    course = Course(replayed.allocated, replayed.reserved)
    active, reserved = replayed.peak_allocated_bytes, replayed.peak_reserved_bytes
    found = Examined(
        snapshot=snapshot,
        device=device.device,
        replayed=replayed,
        held=held(at_peak, replayed.peak_event),
        at_end=held(end, last),
        fragmentation=fragmentation(full, full_event, top=asked.top),
        fragmentation_of_run=peak_fragmentation(peak_active_bytes=active, peak_reserved_bytes=reserved),
        segments=segment_map(full),
        timeline=timeline(device, course, lives=lives, start=start, points=POINTS),
        failures=failures,
        num_failures=len(ooms),
        leaks=leaks_of(snapshot, device, lives) if asked.leaks else None,
        variants=_variants(snapshot, device, asked, replayed),
    )
    if against is None:
        return found
    return replace(found, difference=difference(_recording(against), _recording(found)))


def _fullest_event(replayed: Replayed) -> int:
    """Where reserved memory was highest; of several such moments that at which tensors held most, if it is one."""
    event = replayed.peak_event
    reserved_then = replayed.reserved[event] if event >= 0 else 0
    return event if reserved_then == replayed.peak_reserved_bytes else replayed.peak_reserved_event


def _failure(snapshot: Snapshot, device: DeviceSnapshot, replayed: Replayed, event: int) -> Failure:
    trace = device.trace
    found = contiguity(
        state_after(snapshot, device, event - 1), trace.sizes[event], stream=trace.streams[event],
        pool=snapshot.pools[trace.pools[event]], driver_free_bytes=trace.addresses[event] or None,
    )
    return Failure(
        event, trace.sizes[event], replayed.allocated[event], replayed.reserved[event], found, trace.stacks[event]
    )


def _variants(
    snapshot: Snapshot, device: DeviceSnapshot, asked: Asked, replayed: Replayed
) -> tuple[Variant, ...]:
    """The settings of the recording first, then those asked for; nothing where none are and no card is named."""
    if not asked.confs and not asked.all_confs and asked.capacity_bytes is None:
        return ()
    capacity = asked.capacity_bytes if asked.capacity_bytes is not None else recorded_capacity(device, replayed)
    usual = (conf for conf in CONFS if capacity is not None or NEEDS_CAPACITY not in conf)
    confs = dict.fromkeys((snapshot.alloc_conf, *asked.confs, *(usual if asked.all_confs else ())))
    return tuple(under(snapshot, device, conf, capacity_bytes=capacity) for conf in confs)


def _recording(found: Examined) -> Recording:
    return Recording(
        found.snapshot, found.held, found.at_end, found.replayed.peak_reserved_bytes, found.source
    )
