"""A recording, played through the simulated allocator and held against what really happened."""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vramcast.allocator.following import FollowingAllocator
from vramcast.allocator.rounding import SMALL_SEGMENT_BYTES
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
    Snapshot,
)
from vramcast.errors import InvalidSpec, OutOfMemory
from vramcast.recordings.recorded import RecordedDriver
from vramcast.recordings.start import held_at_start, recorded_settings, start_segments

MOST_MOVES: Final = 10_000
"""Allocations that are moved to where they really were; a recording with more is followed no further [count]."""


class Replayed(Noun, frozen=True):
    """One device of a recording; the comparisons are None where there are no segments to compare with."""

    device: int
    events: int
    allocations: int
    addresses_matched: int | None  # allocations that landed where they really did
    segment_events: int
    segments_matched: int | None  # segments and pages taken or returned at the right moment, address and size
    segments_surplus: int | None  # of the simulation, without a counterpart
    final_blocks_matched: bool | None
    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    peak_event: int  # after which allocated was highest; -1: before the first
    peak_reserved_event: int
    num_alloc_retries: int
    num_ooms: int
    allocated: array[int]  # "Q", after each event [bytes]
    reserved: array[int]  # "Q"; a segment counts with the request that it was taken for
    contradiction: str = ""  # why the segments of the recording cannot be those of its events


def replay(snapshot: Snapshot, device: DeviceSnapshot) -> Replayed:
    """Play all events of a device as they really went.

    Where the simulation puts an allocation elsewhere it is counted, and moved to where it really was, so that one
    difference does not make others.
    """
    player = Player(snapshot, device)
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


def state_after(
    snapshot: Snapshot, device: DeviceSnapshot, index: int, *, at_recorded: bool = False
) -> tuple[SegmentView, ...]:
    """Segments and blocks after an event, each live block with the stack that allocated it.

    Args:
        snapshot: the recording
        device: one of its devices
        index: of the event; -1: before the first
        at_recorded: give live blocks the address that the events know them by, also where the simulation had to put
            them elsewhere; they then need not lie in their segment
    """
    player = Player(snapshot, device)
    for _ in player.play(index + 1):
        pass
    stacks = {block.address: block.stack for block in held_at_start(snapshot, device)}
    trace = device.trace
    for action, address, stack in zip(
        trace.actions[: index + 1], trace.addresses[: index + 1], trace.stacks[: index + 1], strict=True
    ):
        if action == Action.ALLOC:
            stacks[address] = stack
    recorded = {handle: address for address, handle in player.moved.items()}
    return tuple(
        replace(segment, blocks=tuple(_known_as(block, stacks, recorded, at_recorded) for block in segment.blocks))
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

    def __init__(self, snapshot: Snapshot, device: DeviceSnapshot) -> None:
        """Before the first event."""
        self.trace = device.trace
        self.follows = device.has_segments
        self.driver = RecordedDriver()
        settings = recorded_settings(snapshot)
        self.moved: dict[int, int] = {}  # recorded address -> where it is in the simulation, where that differs
        self.contradiction = ""
        if self.follows:
            self.allocator = FollowingAllocator(settings=settings, driver=self.driver, observer=self.driver.compare)
            try:
                self.allocator.restore(start_segments(snapshot, device))
            except InvalidSpec as error:
                self.follows, self.contradiction = False, str(error)
        if not self.follows:
            self.allocator = FollowingAllocator(settings=settings)
            for block in held_at_start(snapshot, device):
                self.moved[block.address] = self.allocator.allocate(
                    block.requested_bytes or block.size_bytes, block.stream
                )
            self.allocator.reset_peaks()
        self._pools = Pools(snapshot, device)
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
            handle = self._follow(handle, address)
            if handle != address:
                self.moved[address] = handle
        if driver.pending:
            driver.pending.clear()  # what is left did not happen here: unmatched

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

    def __init__(self, snapshot: Snapshot, device: DeviceSnapshot) -> None:
        self._ids = snapshot.pools
        self._events = device.trace.pools
        self._addresses = device.trace.addresses
        self._private = [segment for segment in device.segments if segment.pool != DEFAULT_POOL]
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
