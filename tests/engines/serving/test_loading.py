"""What a load leaves taken from the driver."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.program import Alloc, Category, Loop, Program, Tensor
from vramcast.engines.serving.stages import reserved_bytes, tensors_of

MIB = 2**20


def weight(num_bytes: int, category: Category = Category.WEIGHTS) -> Tensor:
    return Tensor(name="w", num_bytes=num_bytes, category=category)


def load(*sizes: tuple[int, int]) -> Program:
    return tuple(Loop(count, (Alloc(weight(size)),), label="layers") for size, count in sizes)


def test_large_weights_take_whole_two_mib() -> None:
    assert reserved_bytes(load((12 * MIB + MIB // 2, 40))) == 40 * 14 * MIB


def test_middle_ones_share_segments_of_twenty() -> None:
    assert reserved_bytes(load((9 * MIB, 4))) == 2 * 20 * MIB


def test_what_a_layer_leaves_over_serves_the_next_weight() -> None:
    assert reserved_bytes(load((12 * MIB + MIB // 4, 2), (MIB + MIB // 2, 2))) == 2 * 14 * MIB


@given(st.lists(st.tuples(st.integers(0, 64 * MIB), st.integers(1, 5)), max_size=8))
def test_at_least_the_weights_and_at_most_a_segment_each_are_taken(sizes: list[tuple[int, int]]) -> None:
    program = load(*sizes)
    weights = sum(tensor.num_bytes * count for tensor, count in tensors_of(program))
    number = sum(count for _, count in tensors_of(program))
    assert weights <= reserved_bytes(program) <= weights + number * 20 * MIB
