"""The compiled loop gives the high-water marks of the full allocator and of the interpreted one, on drawn runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from tests.allocator.test_gaps import EVENTS, REQUESTS, InFull, codes_of, marks_of
from vramcast.allocator import compiled
from vramcast.allocator.compiled import marks
from vramcast.allocator.gaps import BeyondAddresses, Gaps, OutOfCapacity, Run, repeat
from vramcast.domain.program import BrokenProgram
from vramcast.errors import OutOfMemory
from vramcast.units import GIB, MIB

CONF = {False: "", True: "expandable_segments:True"}

LEAVES_MEMORY = [(30 * MIB, ""), (3 * MIB, ""), (5 * MIB, ""), (64 * MIB, "side")]
"""What a small card holds only after pages between live blocks were given back."""
NEARLY_ALL_ADDRESSES = [(600 * GIB, ""), (2 * MIB, ""), (230 * GIB, ""), (200 * GIB, ""), (405 * GIB, "")]
"""The gap at the end counts as large, however little address space lies behind it."""
ROUND_A_BLOCK = [(0, True), (1, True), (2, True), (0, False), (2, False), (3, True), (0, True)]


@settings(max_examples=400, deadline=None)
@given(REQUESTS, st.lists(EVENTS, max_size=3), st.booleans())
def test_every_phase_has_the_marks_of_both_other_allocators(
    requests: list[tuple[int, str]], phases: list[list[tuple[int, bool]]], expands: bool
) -> None:
    full, gaps = InFull(requests, CONF[expands], None), Gaps(requests, expands=expands)
    codes = codes_of([event for phase in phases for event in phase], len(requests))
    bodies, expected = [], []
    for phase in phases:
        part, codes = codes[: len(phase)], codes[len(phase) :]
        full.allocator.reset_peaks()
        gaps.reset_peaks()
        full.play(part)
        gaps.play(part)
        assert marks_of(gaps) == full.marks
        bodies.append(tuple(part))
        expected.append(full.marks)
    run = Run(requests, bodies, range(len(bodies)))
    assert marks(run, expands=expands, capacity_bytes=None) == expected


@settings(max_examples=600, deadline=None)
@given(REQUESTS, EVENTS, st.integers(1, 300 * MIB), st.booleans())
@example([(64 * MIB, ""), (30 * MIB, "side")], [(0, True), (0, False), (1, True)], 70 * MIB, False)
@example(LEAVES_MEMORY, ROUND_A_BLOCK, 110 * MIB, True)
def test_within_a_capacity_the_cache_is_given_back_as_the_full_allocator_gives_it(
    requests: list[tuple[int, str]], drawn: list[tuple[int, bool]], capacity_bytes: int, expands: bool
) -> None:
    full = InFull(requests, CONF[expands], capacity_bytes)
    codes = codes_of(drawn, len(requests))
    expected: tuple[int, int] | None = (0, 0)
    try:
        full.play(codes)
        expected = full.marks
    except OutOfMemory:
        expected = None
    try:
        found = marks(Run(requests, [tuple(codes)], [0]), expands=expands, capacity_bytes=capacity_bytes)
    except OutOfCapacity:
        assert expected is None
    except BeyondAddresses:
        assert expands  # address space in pieces: the full allocator is asked
    else:
        assert found == [expected]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 600 * GIB), st.just("")), min_size=1, max_size=6), EVENTS, st.booleans())
@example(NEARLY_ALL_ADDRESSES, [(0, True), (1, True), (2, True), (0, False), (2, False), (3, True), (4, True)], True)
@example([(40 * GIB, ""), (50 * GIB, "")], [(0, True), (1, True), (0, False), (1, False), (0, True)], True)
def test_blocks_as_large_as_cards_are_kept_in_order_or_refused(
    requests: list[tuple[int, str]], drawn: list[tuple[int, bool]], expands: bool
) -> None:
    gaps, codes = Gaps(requests, expands=expands), codes_of(drawn, len(requests))
    try:
        found = marks(Run(requests, [tuple(codes)], [0]), expands=expands, capacity_bytes=None)
    except BeyondAddresses:
        return
    gaps.play(codes)
    assert found == [marks_of(gaps)]


@settings(max_examples=300, deadline=None)
@given(REQUESTS, EVENTS, EVENTS, st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_loops_have_the_marks_of_their_events(
    requests: list[tuple[int, str]], outer: list[tuple[int, bool]], inner: list[tuple[int, bool]], rounds: int,
    inner_rounds: int, expands: bool,
) -> None:
    """A round frees what it allocated, in another order; what lies below stays or is freed within the loop."""
    before = codes_of(outer, len(requests))
    passing = codes_of(inner, len(requests))
    left = {code: passing.count(code) - passing.count(~code) for code in set(passing) if code >= 0}
    closed = (*passing, *(~code for code in sorted(left) for _ in range(left[code])))
    body = (*before[: len(before) // 2], repeat(inner_rounds, 0), *before[len(before) // 2 :], repeat(inner_rounds, 0))
    still = {code: before.count(code) - before.count(~code) for code in set(before) if code >= 0}
    tail = tuple(~code for code in sorted(still) for _ in range(still[code]))
    run = Run(requests, [closed, (*body, *tail), (repeat(rounds, 1), repeat(inner_rounds, 0))], [2])
    gaps = Gaps(requests, expands=expands)
    inner_events = [*closed] * inner_rounds
    half = len(before) // 2
    gaps.play([*before[:half], *inner_events, *before[half:], *inner_events, *tail] * rounds + inner_events)
    assert marks(run, expands=expands, capacity_bytes=None) == [marks_of(gaps)]


def test_tables_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [(size * 600, "") for size in range(1, 200)]
    codes = (*range(199), *(~code for code in range(0, 199, 2)), *range(0, 199, 2))
    run = Run(requests, [codes], [0])
    roomy = marks(run, expands=False, capacity_bytes=None)
    monkeypatch.setattr(compiled, "FIRST_ROWS", 16)
    assert marks(run, expands=False, capacity_bytes=None) == roomy
    assert marks(run, expands=False, capacity_bytes=GIB) == roomy


@pytest.mark.parametrize("expands", [False, True])
def test_more_memory_than_there_are_addresses_is_said(expands: bool) -> None:
    with pytest.raises(BeyondAddresses):
        marks(Run([(900 * GIB, "")], [(0,) * 64], [0]), expands=expands, capacity_bytes=None)


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


@pytest.mark.parametrize("expands", [False, True])
def test_a_run_that_frees_what_it_has_not_allocated_is_refused(expands: bool) -> None:
    run = Run([(30 * MIB, ""), (512, "")], [(0, ~0, ~0, 1)], [0])
    with pytest.raises(BrokenProgram):
        marks(run, expands=expands, capacity_bytes=None)
