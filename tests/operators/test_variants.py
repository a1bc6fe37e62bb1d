"""Operators keep and need what PyTorch and the fused kernels keep and need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramcast.domain.program import extent, live_at_end
from vramcast.operators import aten
from vramcast.operators.activation import ACTIVATIONS, activation
from vramcast.operators.graph import Graph, Value
from vramcast.operators.loss import (
    CROSS_ENTROPY_VARIANTS,
    LinearLoss,
    Vocabulary,
    cross_entropy,
    linear_cross_entropy,
)
from vramcast.operators.lowering import Caller, Lowered, lower
from vramcast.operators.norm import RMS_NORM_VARIANTS, Norm, rms_norm
from vramcast.operators.reduction import Chip, column_sum_bytes
from vramcast.operators.rope import ROPE_VARIANTS, rope

ROWS, WIDTH, BF16 = 1024, 1024, 2
STATES = ROWS * WIDTH * BF16


def run(build: Callable[..., Value], *sizes: int) -> Lowered:
    """One operator between leaves that its caller owns and outputs that its caller holds."""
    graph = Graph("test")
    inputs = [graph.input(f"x{index}", size) for index, size in enumerate(sizes)]
    out = build(graph, *inputs)
    graph.returns(out)
    return lower(graph, hold_inputs=False, caller=Caller(tuple(inputs)))


def saved(lowered: Lowered) -> int:
    """Bytes that forward leaves behind, output included."""
    return sum(count * tensor.block_bytes for tensor, count in live_at_end(lowered.forward).items())


def norm(variant: str) -> Callable[[Graph, Value], Value]:
    return lambda graph, x: rms_norm(graph, x, Norm(ROWS, WIDTH, BF16, BF16), variant)


@pytest.mark.parametrize("variant", RMS_NORM_VARIANTS)
def test_rms_norms_leave_nothing_but_what_their_caller_owns(variant: str) -> None:
    lowered = run(norm(variant), STATES)
    # the output that stays with its variable and the gradient that backward uses up have one size
    assert extent(lowered.forward + lowered.backward).net == 0


@pytest.mark.parametrize(("autocast", "half_states"), [(False, 4), (True, 9)])
def test_gelu_written_out_is_fp32_from_its_power_on_under_autocast(autocast: bool, half_states: int) -> None:
    """x, half of it, tanh, 1 + tanh and the product: without autocast all 16 bits wide, and x is an input."""
    found = run(
        lambda graph, x: activation(
            graph, x, elements=ROWS * WIDTH, itemsize=BF16, variant="gelu_new", autocast=autocast
        ),
        STATES,
    )
    assert saved(found) == half_states * STATES  # under autocast: an fp32 copy of x, half, and three that are fp32


@pytest.mark.parametrize("variant", [name for name in ACTIVATIONS if name != "linear"])
def test_activations_return_a_gradient_of_the_size_of_their_input(variant: str) -> None:
    lowered = run(lambda graph, x: activation(graph, x, elements=ROWS * WIDTH, itemsize=BF16, variant=variant), STATES)
    assert extent(lowered.backward).peak >= STATES


@pytest.mark.parametrize("variant", ROPE_VARIANTS)
def test_rotary_embeddings_keep_no_activation(variant: str) -> None:
    graph = Graph("rope")
    q, k = graph.input("q", STATES), graph.input("k", STATES // 4)
    graph.returns(*rope(graph, q, k, q_bytes=STATES, k_bytes=STATES // 4, variant=variant))
    lowered = lower(graph, hold_inputs=False, caller=Caller((q, k)))
    assert saved(lowered) in (0, STATES + STATES // 4)


@pytest.mark.parametrize("variant", CROSS_ENTROPY_VARIANTS)
def test_cross_entropies_give_back_all_they_keep(variant: str) -> None:
    spec = Vocabulary(ROWS, WIDTH, BF16)
    lowered = run(lambda graph, x: cross_entropy(graph, x, spec, variant), STATES)
    assert extent(lowered.forward + lowered.backward).net == 0


@pytest.mark.parametrize("variant", ["liger", "cut_cross_entropy"])
def test_fused_projections_never_hold_all_logits(variant: str) -> None:
    spec = LinearLoss(tokens=8192, hidden=512, vocabulary=65536)
    lowered = run(lambda graph, x: linear_cross_entropy(graph, x, spec, variant), spec.hidden_bytes)
    logits = spec.tokens * spec.vocabulary * spec.itemsize
    assert extent(lowered.forward + lowered.backward).peak < logits


def test_gradients_that_are_views_are_not_summed_in_place() -> None:
    def peak(views: bool) -> int:
        graph = Graph("sum")
        x = graph.input("x", STATES)
        outs = [graph.value(name, STATES) for name in ("a", "b")]
        for out in outs:
            graph.call("linear", [x], [out], views_gradient=views)
        graph.returns(aten.add(graph, *outs, num_bytes=STATES, name="sum"))
        lowered = lower(graph, hold_inputs=False, caller=Caller((x,), holds_gradients=True))
        return extent(lowered.backward).peak

    assert peak(True) - peak(False) == STATES


def test_sums_over_rows_share_a_global_buffer_until_the_columns_fill_the_chip() -> None:
    a100 = Chip(108)
    assert [column_sum_bytes(rows=2048, columns=columns, chip=a100) >> 20 for columns in (1024, 4096, 16384)] == [
        16, 64, 112,
    ]
    assert column_sum_bytes(rows=64, columns=4096, chip=a100) == 0
