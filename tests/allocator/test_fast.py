"""The fast allocator, interpreted and compiled, gives the high-water marks of the full one, on drawn runs."""

import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vramcast.allocator.gaps import BeyondAddresses, Gaps, Run
from vramcast.domain.program import BrokenProgram
from vramcast.estimate.script import play
from vramcast.units import GIB, MIB

EVENTS = st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=120)
NEARLY_ALL_ADDRESSES = [(600 * GIB, ""), (2 * MIB, ""), (230 * GIB, ""), (200 * GIB, ""), (405 * GIB, "")]
"""The gap at the end counts as large, however little address space lies behind it."""

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


def marks_of(gaps: Gaps) -> tuple[int, int]:
    return gaps.peak_allocated_bytes, gaps.peak_reserved_bytes


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
