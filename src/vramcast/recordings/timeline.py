"""The course of a run in as many points as a picture has room for; no peak is lost."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Action, DeviceSnapshot
from vramcast.recordings.lives import CATEGORIES, Category, Lives
from vramcast.recordings.start import OlderBlock


class Course(NamedTuple):
    """A run event by event."""

    allocated: array[int]  # after each event [bytes]
    reserved: array[int] | None
    rest: Category | None = None  # what is held beyond the blocks that are known; None: nothing is


class Point(NamedTuple):
    """A stretch of events."""

    first: int  # index of its first event
    events: int
    allocated_bytes: int  # the most in the stretch
    reserved_bytes: int | None  # the most in the stretch
    highest: int  # index of the event after which allocated was highest
    time_us: int  # of that event; 0 where none was recorded
    by_category: tuple[int, ...]  # requested bytes at that event, in the order of `Timeline.categories`


class Timeline(Noun, frozen=True):
    """A run from its first event to its last."""

    events: int
    points: tuple[Point, ...]
    categories: tuple[Category, ...]  # those that hold anything


def timeline(
    device: DeviceSnapshot, course: Course, *, lives: Lives, start: Iterable[OlderBlock], points: int
) -> Timeline:
    """A run in at most so many points.

    Args:
        device: whose events these are
        course: allocated and reserved bytes after each event
        lives: lifetimes and categories of its blocks
        start: what was live before the first event
        points: the most points
    """
    events = len(course.allocated)
    if not events:
        return Timeline(events=0, points=(), categories=())
    edges = sorted({events * place // points for place in range(points + 1)})
    spans = [(low, high) for low, high in pairwise(edges) if high > low]
    tops = [max(range(low, high), key=course.allocated.__getitem__) for low, high in spans]
    held = _held(device, lives, _at_start(lives, start), tops)
    if course.rest is not None:
        held = [_with_rest(row, course.allocated[top], course.rest) for row, top in zip(held, tops, strict=True)]
    used = [number for number in range(len(CATEGORIES)) if any(row[number] for row in held)]
    times = device.trace.times_us
    return Timeline(
        events=events,
        points=tuple(
            Point(
                low, high - low, course.allocated[top],
                None if course.reserved is None else max(course.reserved[low:high]),
                top, times[top], tuple(row[number] for number in used),
            )
            for (low, high), top, row in zip(spans, tops, held, strict=True)
        ),
        categories=tuple(CATEGORIES[number] for number in used),
    )


def _with_rest(row: tuple[int, ...], allocated: int, rest: Category) -> tuple[int, ...]:
    """The bytes of each category, with those of no block that is known."""
    number = CATEGORIES.index(rest)
    return (*row[:number], row[number] + max(0, allocated - sum(row)), *row[number + 1 :])


class _Start(NamedTuple):
    """What lived before the recording."""

    held: list[int]  # requested bytes of each category
    lost: dict[int, tuple[int, int]]  # event that frees a block of it -> number of the category, bytes


def _at_start(lives: Lives, start: Iterable[OlderBlock]) -> _Start:
    numbers = {category: number for number, category in enumerate(CATEGORIES)}
    found = _Start([0] * len(CATEGORIES), {})
    for block in start:
        if block.awaits_free:
            continue
        size = block.requested_bytes or block.size_bytes
        category = lives.older[block.address]
        found.held[numbers[category]] += size
        end = lives.freed_at_start.get(block.address)
        if end is not None:
            found.lost[end] = (numbers[category], size)
    return found


def _held(device: DeviceSnapshot, lives: Lives, start: _Start, tops: list[int]) -> list[tuple[int, ...]]:
    """Requested bytes of each category after each of the events."""
    if not device.has_addresses:
        return [(0,) * len(CATEGORIES) for _ in tops]
    trace, never = device.trace, lives.events
    now, lost = list(start.held), dict(start.lost)
    rows: list[tuple[int, ...]] = []
    wanted = iter(tops)
    next_top = next(wanted, never)
    for index, action in enumerate(trace.actions):
        if action == Action.ALLOC:
            number, size = lives.categories[index], trace.sizes[index]
            now[number] += size
            if lives.ends[index] != never:
                lost[lives.ends[index]] = (number, size)
        elif index in lost:
            number, size = lost.pop(index)
            now[number] -= size
        if index == next_top:
            rows.append(tuple(now))
            next_top = next(wanted, never)
    return rows
