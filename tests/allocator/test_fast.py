"""The fast allocator, interpreted and compiled, gives the high-water marks of the full one, on drawn runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vramcast.allocator import Allocator, Settings
from vramcast.allocator.gaps import BeyondAddresses, Gaps, OutOfCapacity, Run, repeat
from vramcast.domain.program import BrokenProgram
from vramcast.errors import OutOfMemory
from vramcast.estimate.script import play
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
LEAVES_MEMORY = [(30 * MIB, ""), (3 * MIB, ""), (5 * MIB, ""), (64 * MIB, "side")]
"""What a small card holds only after pages between live blocks were given back."""
NEARLY_ALL_ADDRESSES = [(600 * GIB, ""), (2 * MIB, ""), (230 * GIB, ""), (200 * GIB, ""), (405 * GIB, "")]
"""The gap at the end counts as large, however little address space lies behind it."""
ROUND_A_BLOCK = [(0, True), (1, True), (2, True), (0, False), (2, False), (3, True), (0, True)]

Marks = Callable[..., list[tuple[int, int]]]
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


def interpreted(run: Run, *, expands: bool, capacity_bytes: int | None) -> list[tuple[int, int]]:
    gaps = Gaps(run.requests, expands=expands, capacity_bytes=capacity_bytes)
    found = []
    for phase in run.phases:
        gaps.reset_peaks()
        play(run, phase, gaps)
        found.append(marks_of(gaps))
    return found


def compiled(run: Run, **given: object) -> list[tuple[int, int]]:
    from vramcast.allocator import compiled as module

    return module.marks(run, **given)  # type: ignore[arg-type]


each = pytest.mark.parametrize("marks", [interpreted, pytest.param(compiled, marks=needs_numba)])


def codes_of(drawn: list[tuple[int, bool]], num_requests: int) -> list[int]:
    """Allocations, and frees where there is something to free."""
    live = [0] * num_requests
    codes = []
    for place, is_allocation in drawn:
        index = place % num_requests
        allocates = is_allocation or not live[index]
        live[index] += 1 if allocates else -1
        codes.append(index if allocates else ~index)
    return codes


class InFull:
    """The same run by the allocator that has every option."""

    def __init__(self, requests: list[tuple[int, str]], expands: bool, capacity_bytes: int | None) -> None:
        conf = Settings(expandable_segments=expands)
        self.allocator = Allocator(settings=conf, capacity_bytes=capacity_bytes)
        self.requests = requests
        self.live: list[list[int]] = [[] for _ in requests]

    def play(self, codes: list[int]) -> tuple[int, int]:
        for code in codes:
            if code >= 0:
                num_bytes, stream = self.requests[code]
                self.live[code].append(self.allocator.allocate(num_bytes, 7 if stream else 0))
            else:
                self.allocator.free(self.live[~code].pop())
        return self.allocator.peak_allocated_bytes, self.allocator.peak_reserved_bytes


def marks_of(gaps: Gaps) -> tuple[int, int]:
    return gaps.peak_allocated_bytes, gaps.peak_reserved_bytes


@each
@settings(max_examples=300)
@given(REQUESTS, st.lists(EVENTS, max_size=3), st.booleans())
def test_every_phase_has_the_marks_of_the_full_allocator(
    marks: Marks, requests: list[tuple[int, str]], phases: list[list[tuple[int, bool]]], expands: bool
) -> None:
    full = InFull(requests, expands, None)
    codes = codes_of([event for phase in phases for event in phase], len(requests))
    bodies, expected = [], []
    for phase in phases:
        part, codes = codes[: len(phase)], codes[len(phase) :]
        full.allocator.reset_peaks()
        bodies.append(tuple(part))
        expected.append(full.play(part))
    assert marks(Run(requests, bodies, range(len(bodies))), expands=expands, capacity_bytes=None) == expected


@each
@settings(max_examples=500)
@given(REQUESTS, EVENTS, st.integers(1, 300 * MIB), st.booleans())
@example([(64 * MIB, ""), (30 * MIB, "side")], [(0, True), (0, False), (1, True)], 70 * MIB, False)
@example(LEAVES_MEMORY, ROUND_A_BLOCK, 110 * MIB, True)
def test_within_a_capacity_the_cache_is_given_back_as_the_full_allocator_gives_it(
    marks: Marks, requests: list[tuple[int, str]], drawn: list[tuple[int, bool]], capacity_bytes: int, expands: bool
) -> None:
    expands = expands and marks is compiled  # interpreted it plays expandable segments without a capacity alone
    codes = codes_of(drawn, len(requests))
    expected = None
    with suppress(OutOfMemory):
        expected = [InFull(requests, expands, capacity_bytes).play(codes)]
    try:
        found = marks(Run(requests, [tuple(codes)], [0]), expands=expands, capacity_bytes=capacity_bytes)
    except OutOfCapacity:
        assert expected is None
    except BeyondAddresses:
        assert expands  # address space in pieces: the full allocator is asked
    else:
        assert found == expected


@needs_numba
@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(1, 600 * GIB), st.just("")), min_size=1, max_size=6), EVENTS, st.booleans())
@example(NEARLY_ALL_ADDRESSES, [(0, True), (1, True), (2, True), (0, False), (2, False), (3, True), (4, True)], True)
@example([(40 * GIB, ""), (50 * GIB, "")], [(0, True), (1, True), (0, False), (1, False), (0, True)], True)
def test_blocks_as_large_as_cards_are_kept_in_order_or_refused(
    requests: list[tuple[int, str]], drawn: list[tuple[int, bool]], expands: bool
) -> None:
    run = Run(requests, [tuple(codes_of(drawn, len(requests)))], [0])
    with suppress(BeyondAddresses):
        found = compiled(run, expands=expands, capacity_bytes=None)
        assert found == interpreted(run, expands=expands, capacity_bytes=None)


@each
@settings(max_examples=200)
@given(REQUESTS, EVENTS, EVENTS, st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_loops_have_the_marks_of_their_events(
    marks: Marks, requests: list[tuple[int, str]], outer: list[tuple[int, bool]], inner: list[tuple[int, bool]],
    rounds: int, inner_rounds: int, expands: bool,
) -> None:
    """A round frees what it allocated, in another order; what lies below stays or is freed within the loop."""

    def closing(codes: list[int]) -> list[int]:
        left = {code: codes.count(code) - codes.count(~code) for code in codes if code >= 0}
        return [~code for code in sorted(left) for _ in range(left[code])]

    before, passing = codes_of(outer, len(requests)), codes_of(inner, len(requests))
    half, tail, closed = len(before) // 2, closing(before), [*passing, *closing(passing)]
    body = (*before[:half], repeat(inner_rounds, 0), *before[half:], repeat(inner_rounds, 0), *tail)
    run = Run(requests, [tuple(closed), body, (repeat(rounds, 1), repeat(inner_rounds, 0))], [2])
    events = closed * inner_rounds
    unrolled = [*before[:half], *events, *before[half:], *events, *tail] * rounds + events
    gaps = Gaps(requests, expands=expands)
    gaps.play(unrolled)
    assert marks(run, expands=expands, capacity_bytes=None) == [marks_of(gaps)]


@settings(max_examples=120)
@given(REQUESTS, st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9), st.booleans()), max_size=40), st.booleans())
def test_stretches_of_one_event_are_played_together_as_one_by_one(
    requests: list[tuple[int, str]], drawn: list[tuple[int, int, bool]], expands: bool
) -> None:
    def held(gaps: Gaps) -> tuple[object, ...]:
        pools = [(pool.gaps, pool.end, pool.mapped) for pool in dict.fromkeys(gaps._pools)]
        return marks_of(gaps), gaps._live, gaps._starts, gaps._ends, gaps._allocated, pools

    alone, together = Gaps(requests, expands=expands), Gaps(requests, expands=expands)
    live = [0] * len(requests)
    for place, times, is_allocation in drawn:
        index = place % len(requests)
        times = times if is_allocation else min(times, live[index])
        live[index] += times if is_allocation else -times
        code = index if is_allocation else ~index
        alone.play([code] * times)
        together.play_alike(code, times)
        assert held(together) == held(alone)


@each
@pytest.mark.parametrize("expands", [False, True])
def test_more_memory_than_there_are_addresses_is_said(marks: Marks, expands: bool) -> None:
    with pytest.raises(BeyondAddresses):
        marks(Run([(900 * GIB, "")], [(0,) * 64], [0]), expands=expands, capacity_bytes=None)


@needs_numba
def test_tables_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [(size * 600, "") for size in range(1, 200)]
    run = Run(requests, [(*range(199), *(~code for code in range(0, 199, 2)), *range(0, 199, 2))], [0])
    roomy = compiled(run, expands=False, capacity_bytes=None)
    monkeypatch.setattr("vramcast.allocator.compiled.FIRST_ROWS", 16)
    assert compiled(run, expands=False, capacity_bytes=None) == roomy
    assert compiled(run, expands=False, capacity_bytes=GIB) == roomy


@needs_numba
def test_a_cache_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    script = (
        "from vramcast.allocator.gaps import Run\n"
        "from vramcast.allocator.compiled import marks\n"
        "print(marks(Run([(600, '')], [(0,)], [0]), expands=False, capacity_bytes=None))"
    )
    folder = str(tmp_path / "file" / "below")
    env = os.environ | {"NUMBA_CACHE_DIR": folder, "HOME": folder, "XDG_CACHE_HOME": folder}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "[(1024, 2097152)]\n", done.stderr


@needs_numba
@pytest.mark.parametrize("expands", [False, True])
def test_a_run_that_frees_what_it_has_not_allocated_is_refused(expands: bool) -> None:
    with pytest.raises(BrokenProgram):
        compiled(Run([(30 * MIB, ""), (512, "")], [(0, ~0, ~0, 1)], [0]), expands=expands, capacity_bytes=None)
