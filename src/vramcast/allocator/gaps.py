"""The caching allocator as gaps between live blocks: whole runs with the default options, event by event.

A run is integers: `i` allocates request i, `~i` frees its newest block, more repeats a body.
With neither captures nor events of other streams, free blocks always merge with free neighbours: they are the gaps
between what is live. Two tables of gaps, by start and by end, replace the linked blocks of `caching.Allocator`, of
which this one gives the same high-water marks in half the time (tests/allocator/test_fast.py draws runs and compares).
Left out: every option but expandable segments, those with a capacity, handles, statistics, snapshots.

Sizes and addresses count units of 512 bytes, the granularity of blocks. A gap or block is the integer
`size << ADDRESS_BITS | address`: the order of integers is upstream's order (size, address).
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from vramcast.allocator.settings import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    OWN_SEGMENT_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes,
)
from vramcast.units import ceil_div, round_up

Request = tuple[int, str]
"""What a tensor asks for [bytes], unrounded, and on which stream."""

REPEAT: Final = 1 << 58
BODY_BITS: Final = 24
BODY_MASK: Final = (1 << BODY_BITS) - 1


def repeat(rounds: int, body: int) -> int:
    """The code of a loop.

    >>> [repeat(5, 2) - REPEAT >> BODY_BITS, repeat(5, 2) & BODY_MASK]
    [5, 2]
    """
    return REPEAT | rounds << BODY_BITS | body


class Run(Struct, frozen=True):
    """A run of one process."""

    requests: Sequence[Request]
    bodies: Sequence[tuple[int, ...]]  # codes
    phases: Sequence[int]  # their bodies, in order


UNIT: Final = MIN_BLOCK_BYTES
ADDRESS_BITS: Final = 36
LAST_ADDRESS: Final = (1 << ADDRESS_BITS) - 1
SMALL: Final = SMALL_BYTES // UNIT
RANGE: Final = 1 << 31
"""Addresses of an expandable segment, 1 TiB."""
MOST_POOLS: Final = (1 << ADDRESS_BITS) // RANGE - 1


class BeyondAddresses(Exception):
    """More memory than the addresses here reach to."""


class OutOfCapacity(Exception):
    """A request cannot be served within the capacity."""


class _Pool:
    """One size class on one stream."""

    __slots__ = ("end", "first", "gaps", "least", "mapped", "page", "slack")

    def __init__(self, *, is_small: bool, first: int) -> None:
        self.gaps: list[int] = []  # sorted
        self.page = (SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES) // UNIT
        # A rest up to 1 MiB could never serve the large pool, so it stays with the block there; expandable segments
        # split at 512 bytes in both. As the high part of a gap.
        self.slack = LAST_ADDRESS if is_small or first else SMALL << ADDRESS_BITS | LAST_ADDRESS
        self.least = (SMALL_SEGMENT_BYTES if is_small else OWN_SEGMENT_BYTES) // UNIT << ADDRESS_BITS  # of its segments
        self.first = self.end = self.mapped = first  # expandable: where it starts, blocks end, memory ends; else 0


class Gaps:
    """Live blocks, gaps and high-water marks of one process on one device.

    Of an expandable segment only what lies between blocks is a gap. What lies behind its last block serves where no
    gap does, whether it is mapped yet or not, and whole pages are mapped as far as blocks have ever reached.
    """

    def __init__(
        self, requests: Sequence[Request], *, expands: bool = False, capacity_bytes: int | None = None
    ) -> None:
        """Nothing is held yet.

        Args:
            requests: the tensors of the run; events name them by their index
            expands: expandable_segments:True
            capacity_bytes: what the driver can give; only without expandable segments [bytes]
        """
        assert capacity_bytes is None or not expands
        pools: dict[tuple[bool, str], _Pool] = {}
        self._wants: list[int] = []
        self._pools: list[_Pool] = []
        self._live: list[list[int]] = [[] for _ in requests]
        for num_bytes, stream in requests:
            size = ceil_div(num_bytes, UNIT)
            kind = size <= SMALL, stream
            if kind not in pools:
                pools[kind] = _Pool(is_small=kind[0], first=(len(pools) + 1) * RANGE if expands else 0)
            self._wants.append(size << ADDRESS_BITS)
            self._pools.append(pools[kind])
        self._distinct_pools = tuple(pools.values())
        if expands and len(pools) > MOST_POOLS:
            raise BeyondAddresses
        self._starts: dict[int, int] = {}  # start of a gap -> gap
        self._ends: dict[int, int] = {}  # end of a gap -> gap
        self._next_address = 1  # segments lie apart, so that their gaps never touch
        self._segments: dict[int, int] = {}  # start -> end
        self.num_changes = 0  # how often memory was taken from the driver or given back
        self._capacity = None if capacity_bytes is None else capacity_bytes // UNIT
        self._exceeds = False
        self._allocated = self._peak_allocated = 0
        self._reserved = self._peak_reserved = 0

    @property
    def peak_allocated_bytes(self) -> int:
        """The largest sum of live blocks since `reset_peaks`."""
        return self._peak_allocated * UNIT

    @property
    def peak_reserved_bytes(self) -> int:
        """The largest sum of segments and mapped pages since `reset_peaks`."""
        return self._peak_reserved * UNIT

    @property
    def allocated_bytes(self) -> int:
        """The sum of live blocks."""
        return self._allocated * UNIT

    @property
    def reserved_bytes(self) -> int:
        """The sum of segments and mapped pages."""
        return self._reserved * UNIT

    def limit(self, capacity_bytes: int) -> None:
        """From now on more is had only where giving back all that is free was not enough."""
        self._capacity, self._exceeds = max(0, capacity_bytes // UNIT), True

    def reset_peaks(self) -> None:
        """Let the peaks start again from the present values."""
        self._peak_allocated, self._peak_reserved = self._allocated, self._reserved

    def play(self, codes: Iterable[int]) -> None:
        """A stretch of a run, in order: `i` allocates request i, `~i` frees its newest block.

        All of it but new memory stands in line: calls would take longer than the work.

        Raises: BeyondAddresses
        Source: [caching] malloc, get_free_block, should_split, free_block, try_merge_blocks
        """
        wants, pools, live, starts, ends = self._wants, self._pools, self._live, self._starts, self._ends
        allocated, peak = self._allocated, self._peak_allocated
        for code in codes:
            if code >= 0:
                want, pool = wants[code], pools[code]
                gaps = pool.gaps
                index = bisect_left(gaps, want)
                if index < len(gaps):
                    block = gaps[index]
                    start = block & LAST_ADDRESS
                    end = start + (block >> ADDRESS_BITS)
                    del starts[start]
                    rest = block - want
                    if rest > pool.slack:
                        size = want >> ADDRESS_BITS
                        rest += size
                        starts[start + size] = ends[end] = rest
                        block = want | start
                        allocated += size
                        if index and gaps[index - 1] > rest:
                            del gaps[index]
                            insort(gaps, rest, 0, index)
                        else:
                            gaps[index] = rest
                    else:
                        del ends[end], gaps[index]
                        allocated += end - start
                else:
                    block = self._new(pool, want)
                    allocated += block >> ADDRESS_BITS
                live[code].append(block)
                if allocated > peak:
                    peak = allocated
            else:
                block, pool = live[~code].pop(), pools[~code]
                start, size = block & LAST_ADDRESS, block >> ADDRESS_BITS
                allocated -= size
                gaps = pool.gaps
                end = start + size
                if start in ends:
                    before = ends.pop(start)
                    del gaps[bisect_left(gaps, before)]
                    start = before & LAST_ADDRESS
                if end in starts:
                    after = starts.pop(end)
                    del gaps[bisect_left(gaps, after)]
                    end += after >> ADDRESS_BITS
                elif end == pool.end:
                    starts.pop(start, None)
                    pool.end = start
                    continue
                starts[start] = ends[end] = block = end - start << ADDRESS_BITS | start
                insort(gaps, block)
        self._allocated, self._peak_allocated = allocated, peak

    def play_alike(self, code: int, times: int) -> None:
        """`play` of one code many times over: states of the experts of a large model, tens of thousands alike.

        In a list of as many gaps room for one more takes longer than all else, so theirs go in together.

        Raises: BeyondAddresses
        """
        if code < 0:
            return self._free_alike(~code, times)
        want, pool, gaps = self._wants[code], self._pools[code], self._pools[code].gaps
        is_alone = segment_bytes((want >> ADDRESS_BITS) * UNIT) // UNIT < 2 * (want >> ADDRESS_BITS)
        if pool.end or self._capacity is not None or not is_alone:
            return self.play([code] * times)
        while times and gaps and gaps[-1] >= want:
            self.play((code,))
            times -= 1
        rests = []
        for _ in range(times):
            block, rest = self._segment(pool, want)
            self._live[code].append(block)
            self._allocated += block >> ADDRESS_BITS
            if rest:
                rests.append(rest)
        self._peak_allocated = max(self._peak_allocated, self._allocated)
        if rests:
            place = bisect_left(gaps, rests[0])
            gaps[place:place] = rests  # of one size, and behind all older addresses
        return None

    def _free_alike(self, request: int, times: int) -> None:
        """Frees the newest blocks of a request; [caching] free_block, try_merge_blocks."""
        live, pool, starts, ends = self._live[request], self._pools[request], self._starts, self._ends
        fresh: set[int] = set()
        gone: set[int] = set()
        for block in [live.pop() for _ in range(times)]:
            start, size = block & LAST_ADDRESS, block >> ADDRESS_BITS
            self._allocated -= size
            end = start + size
            for found in (ends.pop(start, 0), starts.pop(end, 0)):
                if found:
                    if found in fresh:
                        fresh.remove(found)
                    else:
                        gone.add(found)
                    start = min(start, found & LAST_ADDRESS)
                    end = max(end, (found & LAST_ADDRESS) + (found >> ADDRESS_BITS))
            starts.pop(start, None)
            ends.pop(end, None)
            if end == pool.end:
                pool.end = start
                continue
            starts[start] = ends[end] = block = end - start << ADDRESS_BITS | start
            fresh.add(block)
        pool.gaps = sorted([*(gap for gap in pool.gaps if gap not in gone), *fresh])

    def _new(self, pool: _Pool, want: int) -> int:
        """A block in new memory: at the end of the expandable segment, or in a segment of its own with a gap behind."""
        if pool.end:
            return self._at_end(pool, want >> ADDRESS_BITS)
        block, rest = self._segment(pool, want)
        if rest:
            insort(pool.gaps, rest)
        return block

    def _segment(self, pool: _Pool, want: int) -> tuple[int, int]:
        """A block at the start of a new segment, and the gap behind it; 0: there is none."""
        size = want >> ADDRESS_BITS
        segment = segment_bytes(size * UNIT) // UNIT
        if self._capacity is not None and self._reserved + segment > self._capacity:
            self.release()
            if self._reserved + segment > self._capacity and not self._exceeds:
                raise OutOfCapacity
        start = self._next_address
        end = start + segment
        self._next_address = end + 1
        if end > LAST_ADDRESS:
            raise BeyondAddresses
        self._segments[start] = end
        self._hold(segment)
        block = segment << ADDRESS_BITS | start
        rest = block - want
        if rest <= pool.slack:
            return block, 0
        rest += size
        self._starts[start + size] = self._ends[end] = rest
        return want | start, rest

    def _at_end(self, pool: _Pool, size: int) -> int:
        """A block behind the last one; [caching] find_expandable_block, map_block."""
        start = pool.end
        pool.end = end = start + size
        if end > pool.mapped:
            more = round_up(end - pool.mapped, pool.page)
            pool.mapped += more
            self._hold(more)
            if pool.mapped - pool.first >= RANGE:
                raise BeyondAddresses
        return size << ADDRESS_BITS | start

    def _hold(self, more: int) -> None:
        self.num_changes += 1
        self._reserved += more
        if self._reserved > self._peak_reserved:
            self._peak_reserved = self._reserved

    def release(self) -> None:
        """Gives every segment that is one gap back to the driver; [caching] release_cached_blocks, emptyCache."""
        segments = self._segments
        for pool in self._distinct_pools:
            gaps = pool.gaps
            first = bisect_left(gaps, pool.least)  # shorter ones are no whole segment
            whole = [gap for gap in gaps[first:]
                     if segments.get(gap & LAST_ADDRESS) == (gap & LAST_ADDRESS) + (gap >> ADDRESS_BITS)]
            for gap in whole:
                start, size = gap & LAST_ADDRESS, gap >> ADDRESS_BITS
                del segments[start], self._starts[start], self._ends[start + size]
                self._reserved -= size
            if whole:
                gone = set(whole)
                pool.gaps = gaps[:first] + [gap for gap in gaps[first:] if gap not in gone]
