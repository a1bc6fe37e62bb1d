"""Tapes become the programs that eager autograd would run."""

from __future__ import annotations

import pytest

from tests.peaks import live_at_peak
from vramcast.domain.program import Alloc, Category, Free, Loop, extent, live_at_end, total_bytes
from vramcast.operators.graph import Graph, Operator
from vramcast.operators.lowering import lower

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


KINDS = ["none", "region", "full", "selective", "activation discarded"]


def step(graph: Graph, layers: int) -> tuple[object, ...]:
    gradient = graph.tensor("grad.hidden", graph.inputs[0].num_bytes)
    lowered = lower(graph, gradient=gradient)
    hidden = graph.inputs[0].tensor
    return (
        Alloc(hidden), Loop(layers, lowered.forward), Alloc(gradient), Free(hidden),
        Loop(layers, lowered.backward), Free(gradient),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_backward_frees_what_forward_left(kind: str) -> None:
    program = step(layer(kind), 3)
    assert not live_at_end(program)
    assert extent(program).net == 0
    assert total_bytes(live_at_peak(program)) == extent(program).peak


def test_full_recomputation_keeps_only_the_input_of_a_layer() -> None:
    saved = live_at_end(lower(layer("full")).forward)
    assert {tensor.name: count for tensor, count in saved.items()} == {"hidden": 1}


def test_a_discarded_output_is_absent_between_forward_and_backward_and_its_source_is_kept() -> None:
    saved = {tensor.name for tensor in live_at_end(lower(layer("activation discarded")).forward)}
    assert "activated" not in saved
    assert "up" in saved


def test_a_value_saved_twice_is_counted_once() -> None:
    graph = Graph("attention")
    x = graph.input("hidden", 512)
    for name in ("q", "k", "v"):
        graph.call("linear", [x], [graph.value(name, 512)], saved=[x])
    graph.returns(*(operator.outputs[0] for operator in graph.operators))
    forward, backward, _ = lower(graph)
    assert not any(isinstance(node, Free) and node.tensor is x.tensor for node in forward)
    assert sum(isinstance(node, Free) and node.tensor is x.tensor for node in backward) == 1


def test_a_gradient_that_somebody_still_reads_is_summed_into_a_new_tensor() -> None:
    graph = Graph("fork")
    x = graph.input("x", 512)
    y = graph.value("y", 512)
    graph.call("add", [x, x], [y], passes_gradient=True)
    z = graph.value("z", 512)
    graph.call("add", [x, y], [z], passes_gradient=True)
    graph.returns(z)
    # three gradients reach x, all the very tensor of z: the first sum needs its own storage, the second goes into it
    assert [node.tensor.name for node in lower(graph).backward if isinstance(node, Alloc)] == ["grad.x"]


