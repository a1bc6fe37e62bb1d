"""What the figures of a message say together."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doctor.failures._statements import FRAGMENTED, sizes
from vramcast.doctor.failures.case import figures_of
from vramcast.units import GIB, MIB


def test_what_lies_between_live_tensors_is_reserved_less_allocated() -> None:
    assert round(figures_of(FRAGMENTED).unallocated / GIB, 2) == 3.87  # 14.21 - 10.34


def test_context_libraries_and_others_are_what_is_neither_free_nor_reserved() -> None:
    found = figures_of(FRAGMENTED)
    assert round(found.outside / GIB, 2) == 1.12  # 15.78 - 0.4458 - 14.21
    assert found.process is None and found.others is None


def test_a_process_line_tells_its_own_libraries_from_other_processes() -> None:
    # 23.65 total, 1.66 free, this process 20.81, 12.09 allocated, 4.84 unallocated
    found = figures_of(sizes(total=23.65, free=1.66, process=20.81, allocated=12.09, unallocated=4.84))
    assert round(found.beside / GIB, 2) == 3.88  # 20.81 - 12.09 - 4.84
    assert round(found.others / GIB, 2) == 1.18  # 23.65 - 1.66 - 20.81


def test_inside_a_container_the_process_listed_is_oneself() -> None:
    # 79.33 total, 26.16 free, "Process 7 has 53.16", 11.97 allocated, 40.69 unallocated: what it leaves holds nothing
    found = figures_of(sizes(total=79.33, free=26.16, other_processes=53.16, allocated=11.97, unallocated=40.69))
    assert found.others is None


def test_processes_listed_beside_this_one_are_others() -> None:
    found = figures_of(sizes(total=24, free=1, other_processes=15, allocated=6, unallocated=1))
    assert found.others == 15 * GIB


def test_used_memory_tells_what_is_free() -> None:
    assert figures_of(sizes(total=24, used=20)).free == 4 * GIB


def test_what_was_missing_is_the_request_less_what_is_free() -> None:
    assert figures_of(FRAGMENTED).short == round(1.24 * GIB) - round(456.5 * MIB)


NAMES = [
    f"{name}_bytes" for name in (
        "tried", "total", "free", "allocated", "reserved", "unallocated", "process", "other_processes", "allowed",
        "used",
    )
]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(NAMES), st.integers() | st.floats() | st.text(max_size=3)))
def test_nothing_derived_is_negative_whatever_the_numbers(numbers: dict[str, int | float | str]) -> None:
    assert all(value is None or value >= 0 for value in figures_of(numbers))


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1 << 40)))
def test_no_holder_has_more_than_the_card(numbers: dict[str, int]) -> None:
    found = figures_of(numbers)
    if found.total is not None and found.free is not None:
        assert all(part is None or part <= found.total for part in (found.outside,))
        if "other_processes_bytes" not in numbers:
            assert found.others is None or found.others <= found.total


def test_the_only_process_listed_is_this_one_where_its_memory_is_its_own() -> None:
    # 79.11 total, 14.41 free, 63.33 reserved, "Process 12345 has 64.69": 1.36 beside the allocator, nobody else
    found = figures_of(sizes(total=79.11, free=14.41, other_processes=64.69, allocated=61.20, unallocated=2.13))
    assert found.own and found.others is None
    assert found.process == round(64.69 * GIB) and found.beside == pytest.approx(1.36 * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [("[8192,50257]", "half", 8192 * 50257 * 2), ("[64,512,112,112]", "float", 64 * 512 * 112 * 112 * 4)],
)
def test_a_shape_and_a_type_are_a_size(shape: str, dtype: str, expected: int) -> None:
    assert figures_of({"shape": shape, "dtype": dtype}).tried == expected
    assert figures_of({"shape": shape, "dtype": "variant"}).tried is None


def test_what_rounding_leaves_is_no_other_process() -> None:
    # 79.15 - 38.09 - 41.06 GiB, each printed with two decimals
    numbers = {name: round(size * (1 << 30)) for name, size in (
        ("total_bytes", 79.15), ("free_bytes", 38.09), ("process_bytes", 41.06),
    )}
    assert figures_of(numbers).others == 0
