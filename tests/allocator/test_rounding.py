import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.allocator import round_size, segment_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"), [(1, 512), (511, 512), (512, 512), (513, 1024), (1025, 1536)]
)
def test_requests_are_rounded_up_to_512_bytes(request_bytes: int, block_bytes: int) -> None:
    assert round_size(request_bytes) == block_bytes


def test_divisions_round_as_the_documentation_of_torch_says() -> None:
    """docs/source/notes/cuda.rst: 1200 with 4 divisions lies between 1024 and 1280."""
    assert round_size(1200 * MIB, (4,) * 16) == 1280 * MIB


def test_a_power_of_two_keeps_its_size_under_divisions() -> None:
    assert round_size(256 * MIB, (8,) * 16) == 256 * MIB


def test_one_division_and_requests_below_512_per_step_round_to_512() -> None:
    assert round_size(5 * MIB + 1, (1,) * 16) == 5 * MIB + 512
    assert round_size(4 * 512 - 1, (4,) * 16) == 4 * 512
    assert round_size(9 * 512 + 1, (4,) * 16) == 10 * 512


def test_each_power_of_two_from_1_mib_to_32_gib_has_its_own_entry() -> None:
    table = (2, 4, *(0,) * 13, 8)
    assert round_size(1 * MIB + 1, table) == MIB + MIB // 2
    assert round_size(2 * MIB + 1, table) == 2 * MIB + MIB // 2
    assert round_size(4 * MIB + 1, table) == 4 * MIB + 512
    assert round_size((100 << 30) + 1, table) == 104 << 30


@given(num_bytes=st.integers(1, 1 << 40), steps=st.sampled_from([0, 1, 2, 4, 8, 16, 32]))
def test_rounded_sizes_are_multiples_of_512_no_smaller_and_stable(num_bytes: int, steps: int) -> None:
    size = round_size(num_bytes, (steps,) * 16)
    assert size >= num_bytes and size % 512 == 0
    assert round_size(size, (steps,) * 16) == size


@pytest.mark.parametrize(
    ("size_bytes", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_are_2_or_20_mib_or_the_request_in_2_mib_steps(size_bytes: int, segment: int) -> None:
    assert segment_bytes(size_bytes) == segment
