"""Operators: eager, lowered, reduced, and their variants."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.program import Category, extent, live_at_end
from vramcast.operators.activation import ACTIVATIONS, activation
from vramcast.operators.eager import Array, Tape
from vramcast.operators.graph import Graph, Operator, Value
from vramcast.operators.loss import (
    CROSS_ENTROPY_VARIANTS,
    Vocabulary,
    cross_entropy,
)
from vramcast.operators.lowering import Caller, Lowered, lower
from vramcast.operators.reduction import Chip, Kernel, Strided, accumulator_bytes, buffers, column_sum_bytes, reduction

# Forward code without autograd: tensors die with their last reference.


def tape() -> Tape:
    return Tape("test", "none")


@given(st.integers(1, 40))
def test_a_loop_has_the_peak_of_its_rounds_written_out(count: int) -> None:
    def body(x: Array) -> tuple[Array, ...]:
        wide = looped.cast(x, 4)
        return (looped.cast(looped.add(wide), 2),)

    looped = tape()
    state = [looped.new("x", (1024,), 2)]
    looped.repeat(count, body, state)
    plain = tape()
    x = plain.new("x", (1024,), 2)
    for _ in range(count):
        wide = plain.cast(x, 4)
        x = plain.cast(plain.add(wide), 2)
        del wide
    assert extent(looped.program).peak == extent(plain.program).peak
    assert extent(looped.program).net == extent(plain.program).net


# Tapes become the programs that eager autograd would run.

KB = 1024


def is_linear(operator: Operator) -> bool:
    return operator.name == "linear"


def layer(kind: str = "none", *, width: int = 8 * KB) -> Graph:
    """A residual MLP: norm, up, gelu, down, add."""
    graph = Graph("layer")
    x = graph.input("hidden", width)
    normed = graph.value("norm", width)
    graph.call("norm", [x], [normed], saved=[x], extra=[graph.value("rstd", 512, gradient_bytes=0)])
    start = len(graph.operators)
    up = graph.value("up", 4 * width)
    weight = graph.tensor("up.weight_gradient", 4 * KB, Category.GRADIENTS)
    graph.call("linear", [normed], [up], saved=[normed], weight_gradients=[weight])
    activated = graph.value("activated", 4 * width)
    graph.call("gelu", [up], [activated], saved=[up])
    if kind == "activation discarded":
        graph.checkpoint(start + 1, discard_output=True)
    if kind == "region":
        graph.checkpoint(start)
    down = graph.value("down", width)
    graph.call("linear", [activated], [down], saved=[activated])
    out = graph.value("hidden", width)
    out.tensor = x.tensor
    graph.call("add", [x, down], [out], passes_gradient=True)
    graph.returns(out)
    if kind == "full":
        graph.checkpoint(0)
    if kind == "selective":
        graph.checkpoint(0, keep=is_linear)
    return graph


def test_a_discarded_output_is_absent_between_forward_and_backward_and_its_source_is_kept() -> None:
    saved = {tensor.name for tensor in live_at_end(lower(layer("activation discarded")).forward)}
    assert "activated" not in saved
    assert "up" in saved


# How reductions are split over a chip.

def taken(walk, chip, kernel=Kernel(4)):  # noqa: B008
    return [needs.buffer_bytes + needs.semaphore_bytes for needs in buffers(walk, kernel, Chip(*chip))]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.data())
def test_a_walk_keeps_all_elements_and_its_outputs(sizes, data):
    dims = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    strides, step = [], 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    walk = reduction(Strided(tuple(sizes), tuple(strides), 4), tuple(dims), 4)
    outputs = 1
    for dim, size in enumerate(sizes):
        outputs *= 1 if dim in dims else size
    assert walk.elements == step
    assert walk.elements // max(1, walk.outputs) * walk.outputs == step
    assert walk.outputs in (outputs, 1) or walk.outputs == outputs


def test_what_32_bits_do_not_reach_is_split_in_halves():
    walk = reduction(Strided((1 << 30,), (1,), 4), (0,), 4)
    parts = list(walk.parts())
    assert [part.elements for part in parts] == [1 << 29] * 2
    assert all(part.fits_32_bits for part in parts)


def test_a_bf16_sum_of_several_launches_needs_an_accumulator():
    walk = reduction(Strided((1 << 20, 4096), (4096, 1), 2), (0,), 2)
    wide, narrow = Kernel(4, accumulates_in_output=False), Kernel(4)
    assert accumulator_bytes(walk, wide, 2) == 4096 * 4
    assert accumulator_bytes(walk, narrow, 2) == 0


def test_a_scalar_needs_nothing():
    assert not taken(reduction(Strided((), (), 4), (), 4), (108, 2048))


# Operators keep and need what PyTorch and the fused kernels keep and need.

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
