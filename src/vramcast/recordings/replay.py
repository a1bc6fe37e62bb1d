"""A recording, played through the simulated allocator and held against what really happened."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final

from msgspec.structs import replace

from vramcast.allocator.following import FollowingAllocator
from vramcast.allocator.settings import MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES, round_size
from vramcast.allocator.views import OTHER_STREAM
from vramcast.domain.model import Noun
from vramcast.domain.snapshot import (
    DEFAULT_POOL,
    NO_STACK,
    Action,
    BlockView,
    DeviceSnapshot,
    PoolId,
    SegmentView,
    SizesAre,
    Totals,
    Trace,
)
from vramcast.errors import InvalidSpec, OutOfMemory
from vramcast.recordings.start import (
    NO_SLACK,
    Doubt,
    RecordedDevice,
    RecordedDriver,
    change_of,
    gaps_in_doubt,
    start_segments,
)

MOST_MISSED: Final = 0.05
"""Share of allocations, or of segment events, that may differ in a replay that can be relied on."""

MOST_ROUNDS: Final = 4
"""Times that a recording is played again with what the last time told of older blocks [count]."""

MOST_MOVES: Final = 10_000
"""Allocations that are moved to where they really were; a recording with more is followed no further [count]."""


class Basis(StrEnum):
    """Where the course of a device comes from."""

    REPLAYED = "replayed"  # its events, through the simulated allocator, held against its segments
    RECORDED = "recorded"  # what the recorded allocator itself counted after each event
    SIMULATED = "simulated"  # its events, through the simulated allocator, with nothing to hold it against
    SUMMED = "summed"  # the bytes of its events added up: without addresses nothing can be simulated


class Outcome(StrEnum):
    """How a replay ended."""

    EXACT = "exact"
    CLOSE = "close"
    FAILED = "failed"  # what it says of reserved memory and of other settings is not to be relied on
    NOT_COMPARED = "not compared"  # the recording lists no segments


class Replayed(Noun, frozen=True):
    """One device of a recording; what the recording does not tell is None."""

    device: int
    basis: Basis
    events: int
    allocations: int
    addresses_matched: int | None  # allocations that landed where they really did
    segment_events: int
    segments_matched: int | None  # segments and pages taken or returned at the right moment, address and size
    segments_surplus: int | None  # of the simulation, without a counterpart
    final_blocks_matched: bool | None
    peak_allocated_bytes: int
    peak_requested_bytes: int | None
    peak_reserved_bytes: int | None
    peak_event: int  # after which allocated was highest; -1: before the first
    peak_reserved_event: int
    num_alloc_retries: int | None
    num_ooms: int
    allocated: array[int]  # "Q", after each event [bytes]
    reserved: array[int] | None  # "Q"; a segment counts with the request that it was taken for
    contradiction: str = ""  # why the segments of the recording cannot be those of its events
    slack: dict[int, int] = {}  # address of an older block -> the least it had beyond its request [bytes]

    @property
    def outcome(self) -> Outcome:
        """How the replay ended."""
        if self.contradiction:
            return Outcome.FAILED
        if self.addresses_matched is None or self.segments_matched is None or self.segments_surplus is None:
            return Outcome.NOT_COMPARED
        missed = self.allocations - self.addresses_matched
        missed_segments = self.segment_events - self.segments_matched + self.segments_surplus
        if not missed and not missed_segments and self.final_blocks_matched:
            return Outcome.EXACT
        most = max(missed / max(1, self.allocations), missed_segments / max(1, self.segment_events))
        return Outcome.FAILED if most > MOST_MISSED else Outcome.CLOSE

    @property
    def is_least(self) -> bool:
        """Whether more may have been held: blocks of before the recording that stay are not in it."""
        return not self.contradiction and self.basis in (Basis.SIMULATED, Basis.SUMMED)


def replay(recorded: RecordedDevice) -> Replayed:
    """Play all events of a device as they really went.

    Where the simulation puts an allocation elsewhere it is counted, and moved to where it really was, so that one
    difference does not make others. Where that tells how large an older block was, it is played again.
    """
    device = recorded.device
    if device.totals is not None:
        return _recorded(device, device.totals)
    if not device.has_addresses:
        return _summed(device)
    if not device.has_segments and recorded.snapshot.sizes_are is SizesAre.BLOCKS:
        return _of_blocks(recorded)
    used: Mapping[int, int] = NO_SLACK
    player = Player(recorded)
    found = _played(player, device)
    for _ in range(MOST_ROUNDS):
        if player.slack == used:
            break
        again = Player(recorded, player.slack)
        better = _played(again, device)
        if (better.addresses_matched or 0) <= (found.addresses_matched or 0):
            break
        used, player, found = player.slack, again, better
    return replace(found, slack=dict(used))


def _played(player: Player, device: DeviceSnapshot) -> Replayed:
    started = player.allocator.allocated_bytes, player.allocator.reserved_bytes
    allocated, reserved = array("Q"), array("Q")
    for _ in player.play(len(device.trace)):
        allocated.append(player.allocator.allocated_bytes)
        reserved.append(player.allocator.reserved_bytes)
    compares = player.follows
    allocator, driver = player.allocator, player.driver
    peak_event, peak_reserved_event = (
        _peak_event(column, start) for column, start in zip((allocated, reserved), started, strict=True)
    )
    return Replayed(
        device=device.device,
        basis=Basis.REPLAYED if compares else Basis.SIMULATED,
        events=len(device.trace),
        allocations=player.allocations,
        addresses_matched=player.addresses_matched if compares else None,
        segment_events=player.segment_events,
        segments_matched=driver.matched if compares else None,
        segments_surplus=driver.surplus if compares else None,
        final_blocks_matched=_same_blocks(allocator.segments(), device.segments) if compares else None,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_requested_bytes=allocator.peak_requested_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_event=peak_event,
        peak_reserved_event=peak_reserved_event,
        num_alloc_retries=allocator.num_alloc_retries,
        num_ooms=allocator.num_ooms,
        allocated=allocated,
        reserved=reserved,
        contradiction=player.contradiction,
    )


def _of_blocks(recorded: RecordedDevice) -> Replayed:
    """Reserved memory as simulated; allocated memory is that of the blocks that the events speak of."""
    found = _played(Player(recorded), recorded.device)
    before = sum(block.size_bytes for block in recorded.older)
    allocated = _course(recorded.trace, before)
    return replace(
        found, allocated=allocated, peak_allocated_bytes=max(before, max(allocated, default=0)),
        peak_requested_bytes=None, peak_event=_peak_event(allocated, before),
    )


def _course(trace: Trace, before: int) -> array[int]:
    """Allocated memory after each event, by their sizes [bytes]."""
    changes = accumulate((change_of(trace, index) for index in range(len(trace))), initial=before)
    return array("Q", changes)[1:]


def _recorded(device: DeviceSnapshot, totals: Totals) -> Replayed:
    """The course as the recorded allocator counted it."""
    before = totals.allocated[0] - change_of(device.trace, 0)
    return _unplayed(device, Basis.RECORDED, totals.allocated, before, totals.reserved)


def _summed(device: DeviceSnapshot) -> Replayed:
    """The course from the sizes of events alone: from the least that can have been there before."""
    trace = device.trace
    lowest = min(accumulate(change_of(trace, index) for index in range(len(trace))), default=0)
    before = max(0, -lowest)
    return _unplayed(device, Basis.SUMMED, _course(trace, before), before, None)


def _unplayed(
    device: DeviceSnapshot, basis: Basis, allocated: array[int], before: int, reserved: array[int] | None
) -> Replayed:
    actions = device.trace.actions
    return Replayed(
        device=device.device, basis=basis, events=len(actions), allocations=actions.count(Action.ALLOC),
        addresses_matched=None, segment_events=0, segments_matched=None, segments_surplus=None,
        final_blocks_matched=None, peak_allocated_bytes=max(before, max(allocated, default=0)),
        peak_requested_bytes=None,
        peak_reserved_bytes=None if reserved is None else max(reserved, default=0),
        peak_event=_peak_event(allocated, before),
        peak_reserved_event=-1 if reserved is None else reserved.index(max(reserved)),
        num_alloc_retries=None, num_ooms=actions.count(Action.OOM), allocated=allocated, reserved=reserved,
    )


def state_after(
    recorded: RecordedDevice, index: int, *, slack: Mapping[int, int] = NO_SLACK, at_recorded: bool = False
) -> tuple[SegmentView, ...]:
    """Segments and blocks after an event, each live block with the stack that allocated it.

    Args:
        index: of the event; -1: before the first
        slack: of older blocks, as the replay found it
        at_recorded: give live blocks the address that the events know them by, also where the simulation had to put
            them elsewhere; they then need not lie in their segment
    """
    player = Player(recorded, slack)
    for _ in player.play(index + 1):
        pass
    stacks = {block.address: block.stack for block in recorded.older}
    trace = recorded.trace
    for action, address, stack in zip(
        trace.actions[: index + 1], trace.addresses[: index + 1], trace.stacks[: index + 1], strict=True
    ):
        if action == Action.ALLOC:
            stacks[address] = stack
    addresses = {handle: address for address, handle in player.moved.items()}
    return tuple(
        replace(segment, blocks=tuple(_known_as(block, stacks, addresses, at_recorded) for block in segment.blocks))
        for segment in player.allocator.segments()
    )


def _known_as(block: BlockView, stacks: dict[int, int], recorded: dict[int, int], at_recorded: bool) -> BlockView:
    """A live block with what the events say of it."""
    if block.is_free:
        return block
    address = recorded.get(block.address, block.address)
    return replace(block, stack=stacks.get(address, 0), address=address if at_recorded else block.address)


class Player:
    """Events of a device, fed to an allocator that starts where the recording does."""

    def __init__(self, recorded: RecordedDevice, slack: Mapping[int, int] = NO_SLACK) -> None:
        """Before the first event.

        Args:
            slack: the least that older blocks had beyond their requests, as an earlier replay found it [bytes]
        """
        self.trace = recorded.trace
        self.follows = recorded.device.has_segments
        self.driver = RecordedDriver()
        settings = recorded.settings
        self.moved: dict[int, int] = {}  # recorded address -> where it is in the simulation, where that differs
        self.contradiction = ""
        self.slack = dict(slack)  # of older blocks: what was given, and what this replay finds
        self._gaps: dict[int, Doubt] = {}  # start of free memory -> the block before it
        if self.follows:
            self.allocator = FollowingAllocator(settings=settings, driver=self.driver, observer=self.driver.compare)
            try:
                start = start_segments(recorded, slack)
                self.allocator.restore(start)
                self._gaps = gaps_in_doubt(start, recorded.older)
            except InvalidSpec as error:
                self.follows, self.contradiction = False, str(error)
        if not self.follows:
            self.allocator = FollowingAllocator(settings=settings)
            for block in recorded.older:
                self.moved[block.address] = self.allocator.allocate(
                    block.requested_bytes or block.size_bytes, block.stream
                )
            self.allocator.reset_peaks()
        self._pools = Pools(recorded)
        self._moves = 0
        self._waits_ended = False  # since the last request
        self._returned_at = NO_STACK  # which line gave memory back last
        self.allocations = self.addresses_matched = self.segment_events = 0

    def play(self, num_events: int) -> Iterator[None]:
        """The first events in order; yields after each."""
        trace, driver = self.trace, self.driver
        actions, addresses, sizes, streams = trace.actions, trace.addresses, trace.sizes, trace.streams
        was_immediate = False  # whether the last event was a free that no stream held up
        for index in range(num_events):
            action, address = actions[index], addresses[index]
            if action == Action.ALLOC:
                self._allocate(index)
            elif action == Action.FREE_COMPLETED:
                if not was_immediate:
                    self._free(address)
                was_immediate = False
            elif action == Action.FREE_REQUESTED:
                follows = index + 1 < len(actions) and actions[index + 1] == Action.FREE_COMPLETED
                was_immediate = follows and addresses[index + 1] == address
                if was_immediate:
                    self._free(address)
                else:
                    self._request_free(address)
            elif action == Action.OOM:
                self._run_out(sizes[index], streams[index])
            elif action <= Action.SEGMENT_UNMAP:
                driver.pending.append((Action(action), address, sizes[index]))
                self.segment_events += 1
                if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                    self._returned_at = trace.stacks[index]
            yield
        if driver.only_gives_back:
            self._flush()

    def _allocate(self, index: int) -> None:
        address = self.trace.addresses[index]
        driver = self.driver
        handle = self._request(index)
        self.allocations += 1
        if handle == address:
            self.addresses_matched += 1
        else:
            self._learn(handle, self.trace.sizes[index])
            handle = self._follow(handle, address)
            if handle != address:
                self.moved[address] = handle
        if driver.pending:
            driver.pending.clear()  # what is left did not happen here: unmatched

    def _learn(self, handle: int, num_bytes: int) -> None:
        """A request that really went elsewhere found less free memory here: the older block before it was larger."""
        doubt = self._gaps.get(handle)
        if doubt is None or not self.allocator.is_live(doubt.address):
            return
        size = round_size(num_bytes, self.allocator.settings.roundup_power2_divisions)
        slack = doubt.slack_bytes + self.allocator.cut_from(handle) - size + MIN_BLOCK_BYTES
        if slack <= doubt.most_bytes:
            self.slack[doubt.address] = max(slack, self.slack.get(doubt.address, 0))

    def _request(self, index: int) -> int:
        driver, allocator = self.driver, self.allocator
        size, stream, pool = self.trace.sizes[index], self.trace.streams[index], self._pools.of(index)
        if pool != DEFAULT_POOL:
            allocator.begin_pool(pool)
        if driver.gives_back:
            self._give_back(index)
        # Waits that ended since the last request may have ended within this one, after its search.
        searches = not (self._waits_ended and driver.pending and allocator.has_fit(size, stream))
        request = allocator.allocate if searches else allocator.allocate_anew
        try:
            handle = request(size, stream)
        except OutOfMemory:
            driver.skip_given_back()
            handle = request(size, stream)
        self._waits_ended = False
        if pool != DEFAULT_POOL:
            allocator.end_pool(pool)
        return handle

    def _give_back(self, index: int) -> None:
        """What the recording returned before a request, as far as the request itself will not return it."""
        driver, allocator = self.driver, self.allocator
        size, stream, stack = self.trace.sizes[index], self.trace.streams[index], self.trace.stacks[index]
        settings = allocator.settings
        if settings.garbage_collection_threshold is not None:
            self._collect()
            return
        returns_all = settings.max_split_size_mb is not None and driver.given_back == allocator.releasable
        elsewhere = NO_STACK not in (self._returned_at, stack) and self._returned_at != stack
        # What was returned made room for this request, unless another line returned it, the request needed no room, or
        # everything went where a part would have gone first: then torch.cuda.empty_cache did it.
        if driver.only_gives_back or elsewhere or returns_all or allocator.has_fit(size, stream):
            self._flush()

    def _collect(self) -> None:
        """Return what garbage collection did: how much is too much follows from a limit that no recording holds."""
        for address in self.driver.given_back:
            self.allocator.release_segment(address)
        self.driver.skip_given_back()

    def _follow(self, handle: int, address: int) -> int:
        """Move a block that landed elsewhere to where it really was, if that can be; where it is then."""
        if not self.follows or self._moves >= MOST_MOVES:
            return handle
        self._moves += 1
        for action, start, size in self.driver.pending:
            if action == Action.SEGMENT_ALLOC:
                self.allocator.adopt_segment(start, size, is_small=size == SMALL_SEGMENT_BYTES)
        return self.allocator.move(handle, address)

    def _free(self, address: int) -> None:
        self._flush()
        handle = self.moved.pop(address, address)
        if self.allocator.is_live(handle):
            self.allocator.free(handle)
        elif self.allocator.awaits_free(handle):
            self.allocator.complete(handle)
            self._waits_ended = True

    def _request_free(self, address: int) -> None:
        """A free that another stream holds up."""
        self._flush()
        handle = self.moved.get(address, address)
        if self.allocator.is_live(handle):
            self.allocator.record_stream(handle, OTHER_STREAM)
            self.allocator.free(handle)

    def _run_out(self, size: int, stream: int) -> None:
        if self.allocator.settings.garbage_collection_threshold is not None:
            self._collect()
        self.driver.is_full = True
        with contextlib.suppress(OutOfMemory):
            self.allocator.free(self.allocator.allocate(size, stream))
        self.driver.is_full = False
        self.driver.pending.clear()

    def _flush(self) -> None:
        """Memory was given back that no request had to wait for: `torch.cuda.empty_cache`."""
        if self.driver.gives_back:
            self.allocator.empty_cache()
            self.driver.skip_given_back()


class Pools:
    """Which pool a request went to: as the event says, or, before torch 2.9, as its address does."""

    def __init__(self, recorded: RecordedDevice) -> None:
        self._ids = recorded.snapshot.pools
        self._events = recorded.trace.pools
        self._addresses = recorded.trace.addresses
        self._private = [segment for segment in recorded.device.segments if segment.pool != DEFAULT_POOL]
        self._starts = [segment.address for segment in self._private]

    def of(self, index: int) -> PoolId:
        """The pool of an allocation."""
        number = self._events[index]
        return self._ids[number] if number else self.at(self._addresses[index])

    def at(self, address: int) -> PoolId:
        """The pool of the segment around an address, where that is still there at the end."""
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._private[place].address + self._private[place].size_bytes:
            return self._private[place].pool
        return DEFAULT_POOL


def _peak_event(column: array[int], start: int) -> int:
    """Index of the first largest value; -1 where the start was no lower."""
    peak = max(column, default=0)
    return column.index(peak) if peak > start else -1


def _same_blocks(ours: tuple[SegmentView, ...], theirs: tuple[SegmentView, ...]) -> bool:
    return [_plain(segment) for segment in ours] == [_plain(segment) for segment in theirs]


def _plain(segment: SegmentView) -> tuple[object, ...]:
    """What a simulation can know of a segment: snapshots keep the last request in blocks that are free."""
    blocks = tuple(
        (b.address, b.size_bytes, b.is_free, b.awaits_free, 0 if b.is_free else b.requested_bytes)
        for b in segment.blocks
    )
    return segment.address, segment.size_bytes, segment.is_small, segment.is_expandable, segment.stream, blocks
