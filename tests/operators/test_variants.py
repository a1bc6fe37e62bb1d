"""Operators keep and need what PyTorch and the fused kernels keep and need."""

from collections.abc import Callable

import pytest

from vramcast.domain.program import extent
from vramcast.operators.activation import ACTIVATIONS, activation
from vramcast.operators.graph import Graph, Value
from vramcast.operators.loss import (
    CROSS_ENTROPY_VARIANTS,
    Vocabulary,
    cross_entropy,
)
from vramcast.operators.lowering import Caller, Lowered, lower
from vramcast.operators.reduction import Chip, column_sum_bytes

ROWS, WIDTH, BF16 = 1024, 1024, 2
STATES = ROWS * WIDTH * BF16


def run(build: Callable[..., Value], *sizes: int) -> Lowered:
    """One operator between leaves that its caller owns and outputs that its caller holds."""
    graph = Graph("test")
    inputs = [graph.input(f"x{index}", size) for index, size in enumerate(sizes)]
    out = build(graph, *inputs)
    graph.returns(out)
    return lower(graph, hold_inputs=False, caller=Caller(tuple(inputs)))


@pytest.mark.parametrize("variant", [name for name in ACTIVATIONS if name != "linear"])
def test_activations_return_a_gradient_of_the_size_of_their_input(variant: str) -> None:
    lowered = run(lambda graph, x: activation(graph, x, elements=ROWS * WIDTH, itemsize=BF16, variant=variant), STATES)
    assert extent(lowered.backward).peak >= STATES


@pytest.mark.parametrize("variant", CROSS_ENTROPY_VARIANTS)
def test_cross_entropies_give_back_all_they_keep(variant: str) -> None:
    spec = Vocabulary(ROWS, WIDTH, BF16)
    lowered = run(lambda graph, x: cross_entropy(graph, x, spec, variant), STATES)
    assert extent(lowered.forward + lowered.backward).net == 0


def test_sums_over_rows_share_a_global_buffer_until_the_columns_fill_the_chip() -> None:
    a100 = Chip(108)
    assert [column_sum_bytes(rows=2048, columns=columns, chip=a100) >> 20 for columns in (1024, 4096, 16384)] == [
        16, 64, 112,
    ]
    assert column_sum_bytes(rows=64, columns=4096, chip=a100) == 0
