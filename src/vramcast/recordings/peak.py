"""What was live at one moment: every block with its age, category and place, and the sums that a reader wants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from vramcast.domain.model import Noun
from vramcast.domain.snapshot import Action, BlockView, DeviceSnapshot, SegmentView, Snapshot, Trace
from vramcast.recordings.lives import Category, Lives
from vramcast.recordings.stacks import Place, place_of


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
    num_blocks: int
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
        device: whose events these are
        segments: its state after that event
        event: index of the event; -1 is the state before the first
        lives: lifetimes and categories of its blocks
        places: of the stacks of the snapshot
    """
    made = _made_until(device.trace, event)
    live = (block for segment in segments for block in segment.blocks if not block.is_free and not block.awaits_free)
    blocks = [_holder(block, made.get(block.address), event, device.trace, lives) for block in live]
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


def _made_until(trace: Trace, event: int) -> dict[int, int]:
    """Address of each block made by the recording and live after the event -> the event that made it."""
    made: dict[int, int] = {}
    for index, (action, address) in enumerate(zip(trace.actions[: event + 1], trace.addresses, strict=False)):
        if action == Action.ALLOC:
            made[address] = index
        elif action == Action.FREE_REQUESTED or action == Action.FREE_COMPLETED:
            made.pop(address, None)
    return made


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
