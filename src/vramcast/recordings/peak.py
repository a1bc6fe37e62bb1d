"""What was live at one moment, block by block and in sums; a whole run in as many points as a picture has room for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Action, BlockView, DeviceSnapshot, SegmentView, Snapshot, Trace
from vramcast.recordings.lives import CATEGORIES, Category, Lives
from vramcast.recordings.replay import Replayed
from vramcast.recordings.stacks import Place, place_of
from vramcast.recordings.start import RecordedDevice


class Holder(NamedTuple):
    """One live block."""

    address: int
    size_bytes: int
    requested_bytes: int
    category: Category
    stack: int  # index into the stacks of the snapshot
    since: int | None  # event that allocated it; None before the recording
    age_us: int | None  # None where no times are recorded


class Group(NamedTuple):
    """Blocks that share something."""

    name: str  # category, module or line; "" where that is unknown
    size_bytes: int
    num_blocks: int  # those that are listed
    stack: int = 0  # of groups by stack: its index


class Held(Noun, frozen=True):
    """Everything that was live after one event."""

    event: int  # -1: before the first
    size_bytes: int  # of blocks, with rounding and slack
    requested_bytes: int
    blocks: tuple[Holder, ...]  # largest first
    by_category: tuple[Group, ...]  # groups: largest first
    by_stack: tuple[Group, ...]
    by_module: tuple[Group, ...]
    by_line: tuple[Group, ...]
    unlisted_bytes: int = 0  # of size_bytes, in blocks that the recording does not list
    unlisted: Category | None = None  # the category that they are counted with


class Places:
    """The user's line and module of stacks, each looked up once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._stacks = snapshot.stacks
        self._known: dict[int, Place] = {}

    def __getitem__(self, stack: int) -> Place:
        place = self._known.get(stack)
        if place is None:
            frames = self._stacks[stack] if 0 <= stack < len(self._stacks) else ()
            place = self._known[stack] = place_of(frames)
        return place


def held_at(
    device: DeviceSnapshot, segments: Iterable[SegmentView], event: int, *, lives: Lives, places: Places
) -> Held:
    """What was live after an event.

    Args:
        segments: its state after that event
        event: index of the event; -1 is the state before the first
    """
    made = _made_until(device.trace, lives, event)
    live = (block for segment in segments for block in segment.blocks if not block.is_free and not block.awaits_free)
    return _of([_holder(block, made.get(block.address), event, device.trace, lives) for block in live], event, places)


def _of(blocks: list[Holder], event: int, places: Places) -> Held:
    blocks.sort(key=lambda block: (-block.size_bytes, block.address))
    return Held(
        event=event,
        size_bytes=sum(block.size_bytes for block in blocks),
        requested_bytes=sum(block.requested_bytes for block in blocks),
        blocks=tuple(blocks),
        by_category=_grouped(blocks, lambda block: str(block.category)),
        by_stack=tuple(
            Group("", size, count, stack) for stack, size, count in _totals(blocks, lambda block: block.stack)
        ),
        by_module=_grouped(blocks, lambda block: places[block.stack].module),
        by_line=_grouped(blocks, lambda block: places[block.stack].line),
    )


def held_by_events(device: DeviceSnapshot, event: int, allocated: int, *, lives: Lives, places: Places) -> Held:
    """What was live after an event as far as the events tell, where the recording lists no segments.

    Args:
        event: index of the event; -1 is the state before the first
        allocated: in all, by the recording's own count or by its events [bytes]
    """
    made = _made_until(device.trace, lives, event)
    blocks = [
        _holder(BlockView(address=address, size_bytes=size, requested_bytes=size), since, event, device.trace, lives)
        for address, (since, size) in _live_after(device, made, event, lives).items()
    ] if device.has_addresses else []
    listed = sum(block.size_bytes for block in blocks)
    held = _of(blocks, event, places)
    rest, category = max(0, allocated - listed), rest_of(device)
    if not rest or category is None:
        return held
    return replace(
        held, size_bytes=listed + rest, requested_bytes=held.requested_bytes + rest, unlisted_bytes=rest,
        unlisted=category,
        by_category=_and(held.by_category, Group(str(category), rest, 0)),
        by_stack=_and(held.by_stack, Group("", rest, 0)), by_module=_and(held.by_module, Group("", rest, 0)),
        by_line=_and(held.by_line, Group("", rest, 0)),
    )


def rest_of(device: DeviceSnapshot) -> Category | None:
    """What a device holds beyond the blocks that its recording lists; None where it lists all, or that is not known."""
    if not device.has_addresses:
        return Category.UNKNOWN
    return None if device.totals is None else Category.HELD


def _live_after(
    device: DeviceSnapshot, made: dict[int, int], event: int, lives: Lives
) -> dict[int, tuple[int | None, int]]:
    """Address of each block that lives after the event -> the event that made it, its bytes."""
    sizes = device.trace.sizes
    found: dict[int, tuple[int | None, int]] = {address: (since, sizes[since]) for address, since in made.items()}
    for address, freed in lives.freed_at_start.items():
        if freed > event and address not in found:
            found[address] = (None, sizes[freed])
    return found


def _and(groups: tuple[Group, ...], more: Group) -> tuple[Group, ...]:
    """The groups with another one: added to the one of its name and stack, largest first again."""
    same = [group for group in groups if (group.name, group.stack) == (more.name, more.stack)]
    others = [group for group in groups if (group.name, group.stack) != (more.name, more.stack)]
    size = more.size_bytes + sum(group.size_bytes for group in same)
    count = more.num_blocks + sum(group.num_blocks for group in same)
    joined = [*others, more._replace(size_bytes=size, num_blocks=count)]
    return tuple(sorted(joined, key=lambda group: -group.size_bytes))


def _made_until(trace: Trace, lives: Lives, event: int) -> dict[int, int]:
    """Address of each block made by the recording and live after the event -> the event that made it."""
    made = zip(trace.actions[: event + 1], trace.addresses, lives.ends, strict=False)
    return {address: i for i, (action, address, end) in enumerate(made) if action == Action.ALLOC and end > event}


def _holder(block: BlockView, since: int | None, event: int, trace: Trace, lives: Lives) -> Holder:
    requested = block.requested_bytes or block.size_bytes
    if since is None:
        category = lives.older.get(block.address, Category.UNKNOWN)
        return Holder(block.address, block.size_bytes, requested, category, block.stack, None, None)
    start, now = trace.times_us[since], trace.times_us[event]
    age = now - start if start and now >= start else None
    return Holder(
        block.address, block.size_bytes, requested, lives.category(since), trace.stacks[since], since, age
    )


KeyT = TypeVar("KeyT", bound=Hashable)


def _totals(blocks: Iterable[Holder], key: Callable[[Holder], KeyT]) -> Iterator[tuple[KeyT, int, int]]:
    """Key, bytes and count of each group, largest first."""
    totals: dict[KeyT, list[int]] = {}
    for block in blocks:
        total = totals.setdefault(key(block), [0, 0])
        total[0] += block.size_bytes
        total[1] += 1
    ordered = sorted(totals.items(), key=lambda item: (-item[1][0], str(item[0])))
    return ((name, size, count) for name, (size, count) in ordered)


def _grouped(blocks: Iterable[Holder], key: Callable[[Holder], str]) -> tuple[Group, ...]:
    return tuple(Group(*total) for total in _totals(blocks, key))


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


def timeline(recorded: RecordedDevice, replayed: Replayed, *, lives: Lives, points: int) -> Timeline:
    """A run in at most so many points.

    Args:
        replayed: its allocated and reserved bytes after each event
        points: the most points
    """
    allocated, reserved, rest = replayed.allocated, replayed.reserved, rest_of(recorded.device)
    events = len(allocated)
    if not events:
        return Timeline(events=0, points=(), categories=())
    edges = sorted({events * place // points for place in range(points + 1)})
    spans = [(low, high) for low, high in pairwise(edges) if high > low]
    tops = [max(range(low, high), key=allocated.__getitem__) for low, high in spans]
    held = _held(recorded, lives, _at_start(recorded, lives), tops)
    if rest is not None:
        held = [_with_rest(row, allocated[top], rest) for row, top in zip(held, tops, strict=True)]
    used = [number for number in range(len(CATEGORIES)) if any(row[number] for row in held)]
    times = recorded.trace.times_us
    return Timeline(
        events=events,
        points=tuple(
            Point(
                low, high - low, allocated[top],
                None if reserved is None else max(reserved[low:high]),
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


def _at_start(recorded: RecordedDevice, lives: Lives) -> _Start:
    numbers = {category: number for number, category in enumerate(CATEGORIES)}
    found = _Start([0] * len(CATEGORIES), {})
    for block in recorded.older:
        if block.awaits_free:
            continue
        size = block.requested_bytes or block.size_bytes
        category = lives.older[block.address]
        found.held[numbers[category]] += size
        end = lives.freed_at_start.get(block.address)
        if end is not None:
            found.lost[end] = (numbers[category], size)
    return found


def _held(recorded: RecordedDevice, lives: Lives, start: _Start, tops: list[int]) -> list[tuple[int, ...]]:
    """Requested bytes of each category after each of the events."""
    if not recorded.device.has_addresses:
        return [(0,) * len(CATEGORIES) for _ in tops]
    trace, never = recorded.trace, lives.events
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
