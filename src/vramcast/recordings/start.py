"""What a recording tells a simulated process: its driver, and its state before the first event, mostly in mid-life.

The final table is rolled back. Only one thing is then unknown: how much larger than its rounded request a block was
that is older than the recording and was freed during it. In the large pool a free block is never 1 MiB or less, so a
gap behind it that small is its own; into a larger one the first request from that gap tells, as it is put at its start.
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp, should_split and alloc_found_block
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.allocator import Settings, round_size
from vramcast.allocator.settings import OPTIONS, SMALL_BYTES, SMALL_SEGMENT_BYTES, option_pairs
from vramcast.domain.snapshot import Action, BlockView, DeviceSnapshot, SegmentView, SizesAre, Snapshot, Trace
from vramcast.errors import OutOfMemory
from vramcast.units import GIB

SegmentEvent = tuple[Action, int, int]
"""(action, address, size [bytes])"""

_GIVEN_BACK: Final = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})
_NOWHERE: Final = 1 << 60
"""Addresses from here on stand for segments that the recording does not have."""


class RecordedDriver:
    """What is left of the segment events between two other events; the allocator's own are held against them."""

    def __init__(self) -> None:
        """No events yet."""
        self.pending: deque[SegmentEvent] = deque()
        self.is_full = False  # nothing beyond what is pending succeeds: the request ran out of memory
        self.matched = 0
        self.surplus = 0
        self._unknown_address = _NOWHERE

    @property
    def gives_back(self) -> bool:
        """Whether memory is returned next."""
        return bool(self.pending) and self.pending[0][0] in _GIVEN_BACK

    @property
    def only_gives_back(self) -> bool:
        """Whether nothing new follows what is returned."""
        return self.gives_back and self.pending[-1][0] in _GIVEN_BACK

    @property
    def given_back(self) -> list[int]:
        """Addresses of the segments that are returned before anything else happens, in order."""
        return [address for _, address, _ in takewhile(lambda event: event[0] == Action.SEGMENT_FREE, self.pending)]

    def skip_given_back(self) -> None:
        """Pass over what the recording returned and the simulation does not hold."""
        while self.gives_back:
            self.pending.popleft()

    def allocate(self, size_bytes: int) -> int:
        """The recorded address of a segment of this size."""
        self._check()
        if self.pending and self.pending[0][::2] == (Action.SEGMENT_ALLOC, size_bytes):
            return self.pending[0][1]
        return self._elsewhere(size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Where the recording maps the first page of a new range."""
        self._check()
        if self.pending and self.pending[0][0] == Action.SEGMENT_MAP:
            return self.pending[0][1]
        return self._elsewhere(size_bytes)

    def map(self, address: int, size_bytes: int) -> None:
        """Pages exist where the recording mapped any."""
        self._check()

    def _check(self) -> None:
        # The real device was full here: the cache was given back first.
        if self.gives_back or (self.is_full and not self.pending):
            raise OutOfMemory("the device was full at this point of the recording")

    def _elsewhere(self, size_bytes: int) -> int:
        self._unknown_address += size_bytes
        return self._unknown_address

    def compare(self, action: str, address: int, size_bytes: int) -> None:
        """Hold an event of the simulated allocator against the next recorded one."""
        if self.pending and self.pending[0] == (Action[action.upper()], address, size_bytes):
            self.pending.popleft()
            self.matched += 1
        else:
            self.surplus += 1


MOST_RANGE_BYTES: Final = 324 * GIB
"""Address space of an expandable segment on the largest card, 288 GiB, as the card of a recording is not known."""

_FREES: Final = frozenset({Action.FREE_REQUESTED, Action.FREE_COMPLETED})


NO_SLACK: Final[Mapping[int, int]] = {}


class Doubt(NamedTuple):
    """A block that is older than the recording, and may be larger than it is taken to be."""

    address: int
    slack_bytes: int  # that it is taken to have beyond its request
    most_bytes: int  # that it can have


class OlderBlock(NamedTuple):
    """A block that is older than the recording."""

    address: int
    size_bytes: int  # rounded request, or the whole block where the final table still lists it
    requested_bytes: int
    stream: int
    stack: int
    is_exact: bool  # whether size_bytes includes what the block has beyond its request
    freed_at: int  # index of the event that frees it; past the last where none does
    awaits_free: bool = False  # freed before the recording, in use on another stream


class RecordedDevice:
    """A device of a recording; what its events say of the time before them is read once."""

    def __init__(self, snapshot: Snapshot, device: DeviceSnapshot) -> None:
        self.snapshot, self.device, self.trace = snapshot, device, device.trace

    @cached_property
    def settings(self) -> Settings:
        """What the process was started with; see `recorded_settings`."""
        return recorded_settings(self.snapshot)

    @cached_property
    def older(self) -> list[OlderBlock]:
        """Blocks that were live before the first event, by address.

        An address whose first event is a free was live; so is a block of the final table that no event allocates.
        """
        return _older(self)

    @property
    def unlisted_bytes(self) -> int:
        """What the recorded allocator counted before the first event and no event speaks of [bytes]."""
        totals = self.device.totals
        if totals is None or not len(self.trace):
            return 0
        before = totals.allocated[0] - change_of(self.trace, 0)
        return max(0, before - sum(block.size_bytes for block in self.older))


def _older(recorded: RecordedDevice) -> list[OlderBlock]:
    trace = recorded.trace
    divisions = recorded.settings.roundup_power2_divisions
    rounds = recorded.snapshot.sizes_are is SizesAre.REQUESTS
    seen: set[int] = set()
    held: list[OlderBlock] = []
    for index, action in enumerate(trace.actions):
        if action > Action.FREE_COMPLETED:
            continue
        address = trace.addresses[index]
        if address in seen:
            continue
        seen.add(address)
        if action in _FREES:
            size = trace.sizes[index]
            held.append(OlderBlock(
                address, round_size(size, divisions) if rounds else size, size, trace.streams[index], 0,
                is_exact=not rounds, freed_at=index, awaits_free=action == Action.FREE_COMPLETED,
            ))
    touched = sorted(seen)
    for segment in recorded.device.segments:
        for block in segment.blocks:
            if not block.is_free and block.address not in seen and not _is_touched(block, touched):
                held.append(OlderBlock(
                    block.address, block.size_bytes, block.requested_bytes, segment.stream, block.stack,
                    is_exact=True, freed_at=len(trace), awaits_free=block.awaits_free,
                ))
    return sorted(held)


def change_of(trace: Trace, index: int) -> int:
    """What an event changes of allocated memory, by its own size [bytes]."""
    match trace.actions[index]:
        case Action.ALLOC:
            return trace.sizes[index]
        case Action.FREE_REQUESTED:
            return -trace.sizes[index]
    return 0


def _is_touched(block: BlockView, touched: list[int]) -> bool:
    """Whether an event happened inside a block: then it is newer than the events, which ended before the dump."""
    first = bisect_right(touched, block.address)
    return first < len(touched) and touched[first] < block.address + block.size_bytes


def recorded_settings(snapshot: Snapshot) -> Settings:
    """What the recorded process was started with.

    Options that this simulation does not know are passed over, as torch accepted them. A limit of memory is left out:
    the recording itself says where it was reached.

    Raises: InvalidSpec, Unsupported
    """
    pairs = option_pairs(snapshot.alloc_conf.replace(" ", ""))
    known = ",".join(f"{key}:{value}" for key, value in pairs if key in OPTIONS)
    return replace(Settings.parse(known), per_process_memory_fraction=1.0, throw_on_cudamalloc_oom=False)


def start_segments(recorded: RecordedDevice, slack: Mapping[int, int] = NO_SLACK) -> tuple[SegmentView, ...]:
    """Segments and blocks before the first event, by address.

    Args:
        slack: what blocks had beyond their requests at least, where a replay found it [bytes]

    Raises: InvalidSpec where the recording contradicts itself: a block outside every segment, or two in one place.
    """
    held = recorded.older
    segments = sorted(_segments(recorded), key=lambda segment: segment.address)
    starts = [block.address for block in held]
    ends = [_end(segment) for segment in segments]
    inside = [
        range(bisect_left(starts, segment.address), bisect_left(starts, end))
        for segment, end in zip(segments, ends, strict=True)
    ]
    requests = _first_requests(
        held, {number: end for numbers, end in zip(inside, ends, strict=True) for number in numbers}, recorded.trace
    )
    return tuple(
        _fill(segment, held[numbers.start : numbers.stop], requests, slack, recorded.settings)
        for segment, numbers in zip(segments, inside, strict=True)
    )


def _end(segment: SegmentView) -> int:
    return segment.address + segment.size_bytes


def gaps_in_doubt(segments: Iterable[SegmentView], held: Iterable[OlderBlock]) -> dict[int, Doubt]:
    """Start of the free memory behind each block of the start that may reach into it -> that block."""
    older = {block.address: block for block in held if not block.is_exact}
    found: dict[int, Doubt] = {}
    for segment in segments:
        if segment.is_small or segment.is_expandable:
            continue
        for block, after in pairwise(segment.blocks):
            known = older.get(block.address)
            if known is not None and not block.is_free and after.is_free:
                slack = block.size_bytes - known.size_bytes
                found[after.address] = Doubt(block.address, slack, SMALL_BYTES)
    return found


def _fill(
    segment: SegmentView, held: list[OlderBlock], requests: dict[int, int], least: Mapping[int, int],
    settings: Settings,
) -> SegmentView:
    """The segment with these blocks, free ones between them."""
    end = _end(segment)
    blocks: list[BlockView] = []
    address = segment.address
    for number, block in enumerate(held):
        next_start = held[number + 1].address if number + 1 < len(held) else end
        if address < block.address:
            blocks.append(BlockView(address=address, size_bytes=block.address - address, is_free=True))
        rounded_end = block.address + block.size_bytes
        most_slack = 0 if block.is_exact else _most_slack(segment, block, settings)
        slack = min(next_start, requests.get(block.address, next_start)) - rounded_end
        if not 0 < slack <= most_slack:
            slack = min(least.get(block.address, 0), most_slack)
        address = rounded_end + slack
        blocks.append(BlockView(
            address=block.address, size_bytes=address - block.address, requested_bytes=block.requested_bytes,
            awaits_free=block.awaits_free, stack=block.stack,
        ))
    if address < end:
        blocks.append(BlockView(address=address, size_bytes=end - address, is_free=True))
    return replace(segment, blocks=tuple(blocks))


def _most_slack(segment: SegmentView, block: OlderBlock, settings: Settings) -> int:
    """The largest rest that the allocator left with a block instead of splitting it off [bytes]."""
    if segment.is_small or segment.is_expandable or settings.expandable_segments:
        return 0
    if settings.max_split_bytes is not None and block.size_bytes >= settings.max_split_bytes:
        return settings.max_non_split_rounding_bytes
    return SMALL_BYTES


def _first_requests(held: list[OlderBlock], ends: dict[int, int], trace: Trace) -> dict[int, int]:
    """Of each block whose size is in doubt: address of the first request put between it and the next, while it lives.

    The free memory there begins where the block ends, and a request is put at the start of free memory. What lies
    beyond the end of the block's segment is in another one and tells nothing of it.

    Args:
        held: blocks of before the recording, by address
        ends: number of a block among them -> end of its segment
    """
    starts = [block.address for block in held]
    doubtful = {number for number, block in enumerate(held) if not block.is_exact}
    found: dict[int, int] = {}
    for index, action in enumerate(trace.actions if doubtful else ()):
        if action == Action.ALLOC:
            number = bisect_right(starts, trace.addresses[index]) - 1
            if number in doubtful and trace.addresses[index] < ends.get(number, 0):
                doubtful.discard(number)
                if index < held[number].freed_at:
                    found[starts[number]] = trace.addresses[index]
                if not doubtful:
                    break
    return found


def _segments(recorded: RecordedDevice) -> list[SegmentView]:
    """Segments and mapped runs at the start, without blocks: the final ones with every event undone."""
    device, trace = recorded.device, recorded.trace
    whole = {segment.address: segment for segment in device.segments if not segment.is_expandable}
    runs = [replace(segment, blocks=()) for segment in device.segments if segment.is_expandable]
    for index in range(len(trace) - 1, -1, -1):
        action = trace.actions[index]
        if action < Action.SEGMENT_ALLOC or action > Action.SEGMENT_UNMAP:
            continue
        address, size = trace.addresses[index], trace.sizes[index]
        if action == Action.SEGMENT_ALLOC:
            whole.pop(address, None)
        elif action == Action.SEGMENT_MAP:
            runs = [piece for run in runs for piece in _without(run, address, size)]
        else:
            segment = SegmentView(
                address=address, size_bytes=size, is_small=size == SMALL_SEGMENT_BYTES, blocks=(),
                stream=trace.streams[index], pool=recorded.snapshot.pools[trace.pools[index]],
                is_expandable=action == Action.SEGMENT_UNMAP,
            )
            if action == Action.SEGMENT_FREE:
                whole[address] = segment
            else:
                runs.append(replace(segment, is_small=_is_small_run(device, segment)))
    joined = _joined(runs)
    return [*whole.values(), *joined, *_range_starts(recorded, joined)]


def _range_starts(recorded: RecordedDevice, runs: list[SegmentView]) -> list[SegmentView]:
    """Runs without size where the recording maps pages below the first run of a range, which so begins lower."""
    first: dict[tuple[object, ...], SegmentView] = {}
    for run in runs:
        first.setdefault((run.is_small, run.stream, run.pool), run)
    lowest: dict[tuple[object, ...], int] = {}
    trace = recorded.trace
    mapped: list[int] = []
    for index, action in enumerate(trace.actions if first else ()):
        if action == Action.SEGMENT_MAP:
            mapped.append(index)
        elif action == Action.ALLOC:
            for event in mapped:  # which this request made room with
                is_small = trace.sizes[index] <= SMALL_BYTES
                key = (is_small, trace.streams[event], recorded.snapshot.pools[trace.pools[event]])
                address = trace.addresses[event]
                if key in first and first[key].address - MOST_RANGE_BYTES < address < first[key].address:
                    lowest[key] = min(address, lowest.get(key, address))
            mapped.clear()
    return [replace(first[key], address=address, size_bytes=0, blocks=()) for key, address in lowest.items()]


def _without(run: SegmentView, address: int, size_bytes: int) -> list[SegmentView]:
    """What is left of a run where pages were not mapped yet."""
    end, hole_end = run.address + run.size_bytes, address + size_bytes
    if hole_end <= run.address or end <= address:
        return [run]
    pieces = ((run.address, address), (hole_end, end))
    return [replace(run, address=low, size_bytes=high - low) for low, high in pieces if low < high]


def _is_small_run(device: DeviceSnapshot, run: SegmentView) -> bool:
    """Whether pages that were unmapped belonged to the small pool: no request in or before them was larger."""
    near = [segment for segment in device.segments if segment.is_expandable and segment.stream == run.stream]
    touching = [segment for segment in near if run.address in (segment.address + segment.size_bytes,)]
    if touching:
        return touching[0].is_small
    trace = device.trace
    end = run.address + run.size_bytes
    for index, address in enumerate(trace.addresses):
        if run.address <= address < end and trace.actions[index] <= Action.FREE_COMPLETED:
            return trace.sizes[index] <= SMALL_BYTES
    return run.size_bytes % SMALL_SEGMENT_BYTES == 0 and run.size_bytes < 10 * SMALL_SEGMENT_BYTES


def _joined(runs: list[SegmentView]) -> list[SegmentView]:
    """Runs of one pool and stream that touch are one."""
    joined: list[SegmentView] = []
    for run in sorted(runs, key=lambda run: run.address):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.address + last.size_bytes == run.address
            and (last.is_small, last.stream, last.pool) == (run.is_small, run.stream, run.pool)
        ):
            joined[-1] = replace(last, size_bytes=last.size_bytes + run.size_bytes)
        else:
            joined.append(run)
    return joined
