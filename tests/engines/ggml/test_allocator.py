"""ggml's best-fit allocator: holes are reused, blocks never overlap, results take the place of what they replace."""

from __future__ import annotations

import random

import pytest

from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed, placed
from vramcast.engines.ggml.scheduler import CUDA, HOST, Buffer, Machine, Memory, padded_bytes, reserve

ONE_CARD = Machine(memories=(CUDA, HOST), supports=lambda tensor, card: True, offloads=lambda tensor: False)
MIB = 1 << 20


def test_the_smallest_hole_that_holds_a_block_is_taken() -> None:
    buffer = Buffer(128)
    first, second, third, last = (buffer.take(size) for size in (1024, 128, 512, 128))
    buffer.give(first, 1024)
    buffer.give(third, 512)
    assert buffer.take(400) == third
    assert buffer.take(1000) == first
    assert buffer.size == last + 128
    assert second == 1024


def test_free_neighbours_become_one_hole() -> None:
    buffer = Buffer(128)
    offsets = [buffer.take(128) for _ in range(3)]
    buffer.take(128)
    for index in (0, 2, 1):
        buffer.give(offsets[index], 128)
    assert buffer.take(384) == 0


def test_blocks_never_overlap_and_the_buffer_returns_to_one_hole() -> None:
    chance = random.Random(7)
    buffer, live = Buffer(32), dict[int, int]()
    for _ in range(2000):
        if live and chance.random() < 0.5:
            offset = chance.choice(list(live))
            buffer.give(offset, live.pop(offset))
        else:
            size = chance.randrange(1, 5000)
            offset = buffer.take(size)
            assert all(offset + size <= other or other + kept <= offset for other, kept in live.items())
            live[offset] = size
    for offset, size in live.items():
        buffer.give(offset, size)
    assert len(buffer.free) == 1 and buffer.free[0][0] == 0


def chain(*, in_place: bool) -> int:
    """Card bytes of f(f(f(x W))) over a megabyte."""
    graph = Graph()
    x = ops.mul_mat(placed("f16", 64, 512, home=0, weight=True), fed("f32", 64, 512))
    for _ in range(3):
        x = ops.like("unary" if in_place else "norm", x)
    graph.expand(x)
    return reserve(graph, ONE_CARD)[0]


def test_an_operator_in_place_takes_no_memory_of_its_own() -> None:
    copied_input = 64 * 512 * 4
    assert chain(in_place=True) == MIB + copied_input
    assert chain(in_place=False) == 2 * MIB + copied_input


def test_a_source_that_is_read_again_is_not_overwritten() -> None:
    graph = Graph()
    x = ops.mul_mat(placed("f16", 64, 512, home=0, weight=True), fed("f32", 64, 512))
    graph.expand(ops.like("add", ops.like("unary", x), x))
    assert reserve(graph, ONE_CARD)[0] >= 2 * MIB


def test_a_view_keeps_what_it_looks_at_and_owns_nothing() -> None:
    graph = Graph()
    x = ops.mul_mat(placed("f16", 64, 512, home=0, weight=True), fed("f32", 64, 512))
    part = ops.view(x, 256, 512, steps=x.nb[1:2])
    graph.expand(ops.like("unary", ops.cont(part)))
    copied_input = 64 * 512 * 4
    assert reserve(graph, ONE_CARD)[0] == copied_input + MIB + MIB // 2


def test_rows_of_quantised_tensors_are_padded_on_cards_only() -> None:
    tensor = Tensor("q8_0", (64, 4, 1, 1))
    assert padded_bytes(tensor, HOST) == 4 * 68
    assert padded_bytes(tensor, CUDA) == 4 * 68 + (512 - 64) // 32 * 34


@pytest.mark.parametrize("memory", [CUDA, Memory(128, shrinks=False)])
def test_leafs_are_allocated_first_and_freed_behind_their_last_reader(memory: Memory) -> None:
    graph = Graph()
    x = fed("f32", 1024, 256)
    graph.expand(ops.like("norm", ops.like("norm", x)))
    machine = ONE_CARD._replace(memories=(memory,))
    assert reserve(graph, machine) == (2 * MIB,)
