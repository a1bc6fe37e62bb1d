"""ggml's best-fit allocator: holes are reused, blocks never overlap, results take the place of what they replace."""

import pytest

from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed
from vramcast.engines.ggml.scheduler import CUDA, HOST, Machine, Memory, padded_bytes, reserve

ONE_CARD = Machine(memories=(CUDA, HOST), supports=lambda tensor, card: True, offloads=lambda tensor: False)
MIB = 1 << 20


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
