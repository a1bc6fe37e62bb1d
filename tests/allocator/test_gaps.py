"""Gaps between live blocks give the high-water marks of the allocator with linked blocks, on drawn runs."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.gaps import BeyondAddresses, Gaps, OutOfCapacity
from vramcast.errors import OutOfMemory
from vramcast.units import GIB, MIB

SIZES = (
    1, 512, 513, 300 << 10, MIB, MIB + 1, 2 * MIB, 3 * MIB + 512, 8 * MIB, 9 * MIB, 10 * MIB - 1, 10 * MIB, 11 * MIB,
    19 * MIB, 20 * MIB, 21 * MIB + 7, 64 * MIB,
)
"""Both sides of every limit: small blocks, the slack of large ones, shared and own segments, pages."""

REQUESTS = st.lists(
    st.tuples(st.sampled_from(SIZES) | st.integers(1, 40 * MIB), st.sampled_from(["", "", "side"])),
    min_size=1, max_size=8,
)
EVENTS = st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=120)


def codes_of(drawn: list[tuple[int, bool]], num_requests: int) -> list[int]:
    """Allocations, and frees where there is something to free."""
    live = [0] * num_requests
    codes = []
    for place, is_allocation in drawn:
        index = place % num_requests
        if is_allocation or not live[index]:
            live[index] += 1
            codes.append(index)
        else:
            live[index] -= 1
            codes.append(~index)
    return codes


class InFull:
    """The same run by the allocator that has every option."""

    def __init__(self, requests: list[tuple[int, str]], conf: str, capacity_bytes: int | None) -> None:
        self.allocator = Allocator(settings=Settings.parse(conf), capacity_bytes=capacity_bytes)
        self.requests = requests
        self.live: list[list[int]] = [[] for _ in requests]
        self.streams = {"": 0, "side": 7}

    def play(self, codes: list[int]) -> None:
        for code in codes:
            if code >= 0:
                num_bytes, stream = self.requests[code]
                self.live[code].append(self.allocator.allocate(num_bytes, self.streams[stream]))
            else:
                self.allocator.free(self.live[~code].pop())

    @property
    def marks(self) -> tuple[int, int]:
        return self.allocator.peak_allocated_bytes, self.allocator.peak_reserved_bytes


def marks_of(gaps: Gaps) -> tuple[int, int]:
    return gaps.peak_allocated_bytes, gaps.peak_reserved_bytes


def held_of(gaps: Gaps) -> tuple[object, ...]:
    pools = list(dict.fromkeys(gaps._pools))
    return gaps._live, gaps._starts, gaps._ends, gaps._allocated, [(pool.gaps, pool.end, pool.mapped) for pool in pools]


@settings(max_examples=120)
@given(REQUESTS, st.lists(EVENTS, max_size=3), st.booleans())
def test_every_phase_has_the_marks_of_the_full_allocator(
    requests: list[tuple[int, str]], phases: list[list[tuple[int, bool]]], expands: bool
) -> None:
    full = InFull(requests, "expandable_segments:True" if expands else "", None)
    gaps = Gaps(requests, expands=expands)
    codes = codes_of([event for phase in phases for event in phase], len(requests))
    for phase in phases:
        part, codes = codes[: len(phase)], codes[len(phase) :]
        full.allocator.reset_peaks()
        gaps.reset_peaks()
        full.play(part)
        gaps.play(part)
        assert marks_of(gaps) == full.marks


@settings(max_examples=120)
@given(REQUESTS, EVENTS, st.integers(1, 300 * MIB))
@example([(64 * MIB, ""), (30 * MIB, "side")], [(0, True), (0, False), (1, True)], 70 * MIB)
def test_within_a_capacity_the_cache_is_given_back_as_the_full_allocator_gives_it(
    requests: list[tuple[int, str]], drawn: list[tuple[int, bool]], capacity_bytes: int
) -> None:
    full = InFull(requests, "", capacity_bytes)
    gaps = Gaps(requests, capacity_bytes=capacity_bytes)
    for code in codes_of(drawn, len(requests)):
        try:
            full.play([code])
        except OutOfMemory:
            is_out = False
            try:
                gaps.play([code])
            except OutOfCapacity:
                is_out = True
            assert is_out
            return
        gaps.play([code])
        assert marks_of(gaps) == full.marks


@settings(max_examples=120)
@given(REQUESTS, st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9), st.booleans()), max_size=40), st.booleans())
def test_stretches_of_one_event_are_played_together_as_one_by_one(
    requests: list[tuple[int, str]], drawn: list[tuple[int, int, bool]], expands: bool
) -> None:
    alone, together = Gaps(requests, expands=expands), Gaps(requests, expands=expands)
    live = [0] * len(requests)
    for place, times, is_allocation in drawn:
        index = place % len(requests)
        times = times if is_allocation else min(times, live[index])
        live[index] += times if is_allocation else -times
        code = index if is_allocation else ~index
        alone.play([code] * times)
        together.play_alike(code, times)
        assert marks_of(together) == marks_of(alone)
        assert held_of(together) == held_of(alone)


def test_more_memory_than_there_are_addresses_is_said() -> None:
    for expands in (False, True):
        gaps = Gaps([(900 * GIB, "")], expands=expands)
        is_beyond = False
        try:
            gaps.play([0] * 64)
        except BeyondAddresses:
            is_beyond = True
        assert is_beyond
