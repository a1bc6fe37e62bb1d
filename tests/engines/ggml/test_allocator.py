"""ggml's best-fit allocator: holes are reused, blocks never overlap, results take the place of what they replace."""

from __future__ import annotations

import pytest

from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed, placed
from vramcast.engines.ggml.scheduler import CUDA, HOST, Machine, Memory, padded_bytes, reserve

ONE_CARD = Machine(memories=(CUDA, HOST), supports=lambda tensor, card: True, offloads=lambda tensor: False)
MIB = 1 << 20


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
