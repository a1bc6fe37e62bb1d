"""The small operators of a block, in the variants its sizes name."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import Norm
from vramcast.operators import aten
from vramcast.operators.activation import FUSED, Gate
from vramcast.operators.activation import activation as _activation
from vramcast.operators.activation import gated_activation as _gated_activation
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import FP32, cast
from vramcast.operators.norm import Norm as NormSpec
from vramcast.operators.norm import layer_norm, rms_norm
from vramcast.operators.rope import rope as _rope


def norm(graph: Graph, name: str, x: Value, *, kind: Norm, elements: int, width: int, sizes: Sizes) -> Value:
    """A normalised copy of x.

    Args:
        name: owner of the weight, "mixer_norm"
        x: input of `elements` elements
        kind: which norm
        elements: rows x width
        width: elements one statistic covers
        sizes: element widths and whether the weight learns
    """
    if sizes.wide_layer_norms and kind is not Norm.RMS:
        x = cast(graph, x, elements=elements, to_bytes=FP32, name=f"{name}.input")
    spec = NormSpec(
        rows=elements // width, width=width, itemsize=x.num_bytes // elements,
        weight_itemsize=sizes.norm_weights or sizes.numerics.weight,
        trainable=(not sizes.frozen or sizes.trains(f"{name}.weight")) and kind is not Norm.PLAIN, name=name,
    )
    if kind is Norm.RMS:
        return rms_norm(graph, x, spec, sizes.norm)
    return layer_norm(graph, x, spec, sizes.norm if sizes.norm == "liger" else "eager")


def rope(
    graph: Graph, q: Value, k: Value, *, q_elements: int, k_elements: int, sizes: Sizes, fraction: float = 1.0,
    width: int = 0,
) -> tuple[Value, Value]:
    """Rotated queries and keys; with a fraction below 1 the rest is concatenated behind.

    Under autocast cos and sin have the residual stream's width, so the products have it too; `width` is of queries
    and keys, where that may be more [bytes].
    """
    tables = sizes.numerics.residual if sizes.numerics.autocast else sizes.numerics.compute
    width = max(tables, width)
    whole = (q_elements * width, k_elements * width)
    part = tuple(round(size * fraction) for size in whole)
    out = _rope(graph, q, k, q_bytes=part[0], k_bytes=part[1], variant=sizes.rope)
    if fraction == 1.0:
        return out
    return (
        aten.add(graph, out[0], q, num_bytes=whole[0], name="q.joined"),
        aten.add(graph, out[1], k, num_bytes=whole[1], name="k.joined"),
    )


def activation(graph: Graph, owner: str, x: Value, *, kind: str, elements: int, sizes: Sizes) -> Value:
    """act(x): torch.compile makes one kernel of what is several operators in eager code."""
    return _activation(
        graph, x, elements=elements, itemsize=x.num_bytes // elements,
        variant=FUSED if sizes.activation == "compiled" else kind, name=f"{owner}.act",
        autocast=sizes.numerics.autocast, trainable=not sizes.frozen,
    )


def gated_activation(
    graph: Graph, owner: str, gate: Value, *, kind: str, elements: int, sizes: Sizes, up: Callable[[], Value]
) -> Value:
    """act(gate) * up, where eager code projects `up` after the activation has run."""
    item = gate.num_bytes // elements
    if sizes.activation in ("eager", "huggingface", "torch"):
        activated = activation(graph, owner, gate, kind=kind, elements=elements, sizes=sizes)
        return product(graph, f"{owner}.product", activated, up())
    return _gated_activation(graph, gate, up(), Gate(elements, item, kind, owner), sizes.activation)


def product(graph: Graph, name: str, a: Value, b: Value) -> Value:
    """a * b of as many elements, as wide as the wider one."""
    size = max(a.num_bytes, b.num_bytes)
    a, b = (aten.promote(graph, value, num_bytes=size) for value in (a, b))
    return aten.multiply(graph, a, b, num_bytes=size, name=name)


def output_gate(graph: Graph, name: str, x: Value, scores: Value) -> Value:
    """x * sigmoid(scores)."""
    opened = aten.unary(graph, scores, num_bytes=x.num_bytes, name=f"{name}.sigmoid", saves="output")
    return aten.multiply(graph, x, opened, num_bytes=x.num_bytes, name=name)


def dropout(graph: Graph, name: str, x: Value, *, elements: int, probability: float) -> Value:
    """nn.Dropout in training: a byte of mask per element is saved [derivatives.yaml `native_dropout`]."""
    if not probability:
        return x
    out = graph.value(f"{name}.dropped", x.num_bytes, gradient_bytes=x.gradient_bytes)
    mask = graph.value(f"{name}.dropout_mask", elements, gradient_bytes=0)
    return graph.call("dropout", [x], [out], extra=[mask])


def add(graph: Graph, name: str, residual: Value, x: Value) -> Value:
    """residual + x, as wide as the wider one."""
    return aten.add(graph, residual, x, num_bytes=max(residual.num_bytes, x.num_bytes), name=name)
