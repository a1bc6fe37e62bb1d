"""ATen operators of the benchmarks that no model's code here has.

[derivatives] pytorch tools/autograd/derivatives.yaml
"""

from __future__ import annotations

from vramcast.operators.aten import output, unary
from vramcast.operators.graph import Graph, Value


def total(graph: Graph, x: Value, *, num_bytes: int, name: str) -> Value:
    """`x.sum()`: the gradient is the output's, expanded without memory [derivatives: sum]."""
    return graph.call("sum", [x], [output(graph, name, num_bytes, x)], slices_gradient=True)


def softmax(graph: Graph, x: Value, *, num_bytes: int, name: str) -> Value:
    """`softmax(x)`: keeps its result; backward multiplies gradient and result into a temporary first.

    Source: pytorch aten/src/ATen/native/cuda/SoftMax.cu `softmax_backward_cuda_out`
    """
    return unary(graph, x, num_bytes=num_bytes, name=name, saves="output", temporaries=1)


def matmul(graph: Graph, a: Value, b: Value, *, num_bytes: int, name: str) -> Value:
    """A product of two activations: both are saved, two gradients are made [derivatives: bmm, mm]."""
    saved = [kept for kept, wanted in ((a, b), (b, a)) if wanted.gradient_bytes]
    return graph.call("matmul", [a, b], [output(graph, name, num_bytes, a, b)], saved=saved)


def contiguous(graph: Graph, x: Value, *, num_bytes: int, name: str) -> Value:
    """A copy in another layout; its gradient goes back as a view."""
    return graph.call("clone", [x], [output(graph, name, num_bytes, x)], slices_gradient=True)


def view(graph: Graph, x: Value, *, name: str) -> Value:
    """A view whose gradient is a view too (transpose, view of a contiguous tensor)."""
    return graph.call("view", [x], [graph.view(x, name)], slices_gradient=True)


def transposed(graph: Graph, x: Value, *, name: str) -> Value:
    """A view whose gradient has to be copied into the layout of x (view, reshape of a transposed tensor)."""
    return graph.call("view", [x], [graph.view(x, name)])
