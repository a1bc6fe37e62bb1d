"""Tapes become the programs that eager autograd would run."""

from vramcast.domain.program import Category, live_at_end
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


def test_a_discarded_output_is_absent_between_forward_and_backward_and_its_source_is_kept() -> None:
    saved = {tensor.name for tensor in live_at_end(lower(layer("activation discarded")).forward)}
    assert "activated" not in saved
    assert "up" in saved
