"""ATen operators as eager PyTorch runs them, one call each: what they allocate, keep for backward and need on the way.

Model code written op by op (Hugging Face norms, rotary embeddings, losses) is a chain of these.

[derivatives] pytorch tools/autograd/derivatives.yaml: which tensors each operator saves
[formulas] pytorch torch/csrc/autograd/FunctionsManual.cpp: the tensors that a backward formula makes on its way
[engine] pytorch torch/csrc/autograd/engine.cpp `validate_outputs`: a broadcast operand's gradient is computed at full
size and summed after the whole backward of the operator has run
"""

from __future__ import annotations

from vramcast.domain.program import Category, Tensor
from vramcast.operators.graph import Graph, Value


def output(graph: Graph, name: str, num_bytes: int, *operands: Value) -> Value:
    differentiable = any(value.gradient_bytes for value in operands)
    return graph.value(name, num_bytes, gradient_bytes=None if differentiable else 0)


def _broadcast_products(graph: Graph, full_bytes: int, *operands: Value) -> list[Tensor]:
    """Full-size gradients of operands smaller than the result; they die once they are summed [engine]."""
    return [
        graph.tensor(f"grad.{value.name}.unreduced", full_bytes)
        for value in operands
        if value.gradient_bytes and value.num_bytes < full_bytes
    ]


def multiply(graph: Graph, a: Value, b: Value, *, num_bytes: int, name: str) -> Value:
    """`a * b`: each operand is saved for the gradient of the other [derivatives: mul.Tensor]."""
    out = output(graph, name, num_bytes, a, b)
    saved = [kept for kept, wanted in ((a, b), (b, a)) if wanted.gradient_bytes]
    return graph.call(
        "mul", [a, b], [out], saved=saved, backward_temporaries=_broadcast_products(graph, num_bytes, a, b)
    )


def scale_by_weight(
    graph: Graph, x: Value, *, num_bytes: int, weight_bytes: int, name: str, trainable: bool = True,
    sum_bytes: int = 0,
) -> Value:
    """`weight * x` with a broadcast parameter: x is saved only when the weight learns [derivatives: mul.Tensor].

    Args:
        num_bytes: size of the product
        weight_bytes: size of the parameter, whose gradient is made at full size first
        sum_bytes: buffer of the sum over the rows (`reduction.column_sum_bytes`)
    """
    out = output(graph, name, num_bytes, x)
    if not trainable:
        return graph.call("mul", [x], [out])
    out.gradient_bytes = num_bytes
    return graph.call(
        "mul", [x], [out], saved=[x],
        weight_gradients=[graph.tensor(f"grad.{name}.weight", weight_bytes, Category.GRADIENTS)],
        backward_temporaries=[
            graph.tensor(f"grad.{name}.weight.unreduced", num_bytes),
            graph.tensor(f"grad.{name}.weight.partial", sum_bytes),
        ],
    )


def promote(graph: Graph, x: Value, *, num_bytes: int) -> Value:
    """x read by an operator that computes in a wider type: no copy forward, a wide gradient cast back [engine]."""
    if x.num_bytes == num_bytes:
        return x
    wide = graph.view(x, f"{x.name}.promoted", gradient_bytes=num_bytes if x.gradient_bytes else 0)
    wide.num_bytes = num_bytes
    return graph.call("promote", [x], [wide])


def add(graph: Graph, a: Value, b: Value, *, num_bytes: int, name: str) -> Value:
    """`a + b`: nothing is saved, the gradient is handed through [derivatives: add.Tensor]."""
    return graph.call("add", [a, b], [output(graph, name, num_bytes, a, b)], passes_gradient=True)


def subtract(graph: Graph, a: Value, b: Value, *, num_bytes: int, name: str) -> Value:
    """`a - b`: the gradient is handed through to a and negated into a new tensor for b."""
    if not b.gradient_bytes:
        return add(graph, a, b, num_bytes=num_bytes, name=name)
    negated = graph.view(b, f"{b.name}.subtracted", gradient_bytes=b.gradient_bytes)
    graph.call("neg", [b], [negated])
    return add(graph, a, negated, num_bytes=num_bytes, name=name)


def shift(graph: Graph, x: Value, *, num_bytes: int, name: str) -> Value:
    """`x + number`: a new tensor forward, no new one backward."""
    return graph.call("add", [x], [output(graph, name, num_bytes, x)], passes_gradient=True)


def unary(graph: Graph, x: Value, *, num_bytes: int, name: str, saves: str = "", temporaries: int = 0) -> Value:
    """A pointwise operator or a reduction.

    Args:
        num_bytes: size of the output
        name: of operator and output
        saves: "input", "output" or "" [derivatives]
        temporaries: full-size tensors that the backward formula makes on its way to the gradient [formulas]
    """
    out = output(graph, name, num_bytes, x)
    saved = {"input": [x], "output": [out], "": []}[saves]
    return graph.call(
        name, [x], [out], saved=saved if x.gradient_bytes else (),
        backward_temporaries=[
            graph.tensor(f"grad.{name}.{index}", max(num_bytes, x.num_bytes)) for index in range(temporaries)
        ],
    )


def power(graph: Graph, x: Value, *, num_bytes: int, name: str) -> Value:
    """`x.pow(n)`: backward makes `x.pow(n - 1)`, n times it, and the gradient [formulas: pow_backward]."""
    return unary(graph, x, num_bytes=num_bytes, name=name, saves="input", temporaries=2)
