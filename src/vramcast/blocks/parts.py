"""Norms, rotary embedding and activations as Hugging Face transformers writes them in eager PyTorch.

Symbols:  T tokens   W width of the last dimension
[HF] transformers models/llama/modeling_llama.py `LlamaRMSNorm.forward`, `apply_rotary_pos_emb`, `LlamaMLP.forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import Norm
from vramcast.domain.program import Category, Tensor
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast

PYTHON_GELU: Final = ("gelu_new", "gelu_fast", "gelu_accurate")
"""Names of activations that are Python expressions of several kernels."""


def norm(graph: Graph, name: str, x: Value, *, kind: Norm, elements: int, width: int, sizes: Sizes) -> Value:
    """A normalised copy of x, as wide as x.

    Args:
        graph: the block under construction
        name: owner of the weight, "mixer_norm"
        x: input of `elements` elements
        kind: which norm
        elements: T W
        width: W, elements one statistic covers
        sizes: element widths and whether the weight learns
    """
    if kind is Norm.RMS and sizes.norm == "eager":
        return _rms_eager(graph, name, x, elements=elements, width=width, sizes=sizes)
    return _fused(graph, name, x, kind=kind, elements=elements, width=width, sizes=sizes)


def _weight_gradients(graph: Graph, name: str, kind: Norm, width: int, sizes: Sizes) -> list[Tensor]:
    if sizes.frozen or kind is Norm.PLAIN:
        return []
    size = width * sizes.numerics.gradient
    found = [graph.tensor(f"{name}.weight_gradient", size, Category.GRADIENTS)]
    return found + [graph.tensor(f"{name}.bias_gradient", size, Category.GRADIENTS)] * (kind is Norm.LAYER)


def _fused(graph: Graph, name: str, x: Value, *, kind: Norm, elements: int, width: int, sizes: Sizes) -> Value:
    """nn.LayerNorm and fused RMSNorm: x and one or two fp32 statistics per row are saved."""
    out = graph.value(name, x.num_bytes, gradient_bytes=x.gradient_bytes or 0)
    rows = elements // width
    count = 1 if kind is Norm.RMS else 2
    statistics = graph.value(f"{name}.statistics", rows * 4 * count, gradient_bytes=0)
    return graph.call(
        "norm", [x], [out], saved=[x], extra=[statistics],
        weight_gradients=_weight_gradients(graph, name, kind, width, sizes),
    )


def _rms_eager(graph: Graph, name: str, x: Value, *, elements: int, width: int, sizes: Sizes) -> Value:
    """[HF] upcast, square, mean, rsqrt, product, downcast, product with the weight: six kernels."""
    wide = cast(graph, x, elements=elements, to_bytes=4, name=f"{name}.fp32")
    needed = bool(x.gradient_bytes)
    rows = elements // width
    squared = graph.value(f"{name}.squared", elements * 4, gradient_bytes=elements * 4 * needed)
    graph.call("pow", [wide], [squared], saved=[wide] if needed else [])
    mean = graph.value(f"{name}.mean", rows * 4, gradient_bytes=rows * 4 * needed)
    graph.call("mean", [squared], [mean])
    scale = graph.value(f"{name}.rsqrt", rows * 4, gradient_bytes=rows * 4 * needed)
    graph.call("rsqrt", [mean], [scale], saved=[scale] if needed else [])
    scaled = graph.value(f"{name}.scaled", elements * 4, gradient_bytes=elements * 4 * needed)
    graph.call("mul", [wide, scale], [scaled], saved=[wide, scale] if needed else [],
               backward_temporaries=[graph.tensor(f"{name}.grad_scale", elements * 4)])
    graph.hold(wide)
    narrow = cast(graph, scaled, elements=elements, to_bytes=x.num_bytes // elements, name=f"{name}.normalised")
    out = graph.value(name, x.num_bytes, gradient_bytes=x.num_bytes * (needed or not sizes.frozen))
    weights = _weight_gradients(graph, name, Norm.RMS, width, sizes)
    temporaries = [graph.tensor(f"{name}.grad_weight", x.num_bytes)] if weights else []
    return graph.call("mul_weight", [narrow], [out], saved=[narrow] if weights else [],
                      weight_gradients=weights, backward_temporaries=temporaries)


def rope(graph: Graph, name: str, x: Value, *, elements: int, sizes: Sizes, fraction: float = 1.0) -> Value:
    """x cos + rotate_half(x) sin; cos and sin are shared by all layers and hold no gradient.

    Under autocast cos and sin have the residual stream's width, so the result has it too.
    """
    width = max(x.num_bytes // elements, sizes.numerics.residual if sizes.numerics.autocast else 0)
    rotated_elements = round(elements * fraction)
    part = rotated_elements * width
    cosine = graph.value(f"{name}.cos_product", part)
    graph.call("mul_cos", [x], [cosine])
    half = graph.value(f"{name}.rotated", round(x.num_bytes * fraction), gradient_bytes=round(x.gradient_bytes * fraction))
    graph.call("rotate_half", [x], [half], temporaries=[graph.tensor(f"{name}.negated", half.num_bytes // 2)])
    sine = graph.value(f"{name}.sin_product", part)
    graph.call("mul_sin", [half], [sine])
    out = graph.value(f"{name}.rope", part)
    graph.call("add", [cosine, sine], [out], passes_gradient=True)
    if fraction == 1.0:
        return out
    whole = graph.value(f"{name}.rope_whole", elements * width)
    return graph.call("cat", [out, x], [whole])


def activation(graph: Graph, owner: str, x: Value, *, kind: str = "silu") -> Value:
    """act(x): x is saved, the gradient is new; activations written in Python save more (GPT-2's gelu_new)."""
    if kind in PYTHON_GELU:
        return _python_gelu(graph, owner, x)
    out = graph.value(f"{owner}.activated", x.num_bytes)
    return graph.call("activation", [x], [out], saved=[x])


def _python_gelu(graph: Graph, owner: str, x: Value) -> Value:
    """0.5 x (1 + tanh(c (x + 0.044715 x^3))): [HF] activations.py `NewGELUActivation.forward`."""

    def new(name: str) -> Value:
        return graph.value(f"{owner}.gelu.{name}", x.num_bytes)

    half = graph.call("mul_half", [x], [new("half")])
    cube = graph.call("pow", [x], [new("cube")], saved=[x])
    scaled = graph.call("mul_constant", [cube], [new("cube_scaled")])
    inner = graph.call("add", [x, scaled], [new("inner")], passes_gradient=True)
    inner = graph.call("mul_constant", [inner], [new("inner_scaled")])
    tanh = new("tanh")
    graph.call("tanh", [inner], [tanh], saved=[tanh])
    one = graph.call("add_one", [tanh], [new("one_plus_tanh")], passes_gradient=True)
    return graph.call("mul", [half, one], [new("out")], saved=[half, one])


def gated_activation(graph: Graph, owner: str, gate: Value, *, sizes: Sizes, up: Callable[[], Value]) -> Value:
    """act(gate) * up, where `up` is projected after the activation has run."""
    if sizes.activation != "eager":
        other = up()
        out = graph.value(f"{owner}.product", gate.num_bytes)
        return graph.call("fused_gate", [gate, other], [out], saved=[gate, other])
    activated = activation(graph, owner, gate)
    other = up()
    out = graph.value(f"{owner}.product", gate.num_bytes)
    return graph.call("mul", [activated, other], [out], saved=[activated, other])


def gate(graph: Graph, name: str, x: Value, scores: Value) -> Value:
    """x * sigmoid(scores): both factors and the sigmoid are saved."""
    opened = graph.value(f"{name}.sigmoid", x.num_bytes)
    graph.call("sigmoid", [scores], [opened], saved=[opened])
    out = graph.value(name, x.num_bytes)
    return graph.call("mul", [x, opened], [out], saved=[x, opened])


def to_compute(graph: Graph, x: Value, *, elements: int, sizes: Sizes) -> Value:
    """The cast that autocast puts before a matrix product or an attention kernel."""
    return cast(graph, x, elements=elements, to_bytes=sizes.numerics.compute)


def dropout(graph: Graph, name: str, x: Value, *, elements: int, probability: float) -> Value:
    """nn.Dropout in training: a byte of mask per element is saved."""
    if not probability:
        return x
    out = graph.value(f"{name}.dropped", x.num_bytes, gradient_bytes=x.gradient_bytes)
    mask = graph.value(f"{name}.dropout_mask", elements, gradient_bytes=0)
    return graph.call("dropout", [x], [out], extra=[mask])


def add(graph: Graph, name: str, residual: Value, x: Value) -> Value:
    """residual + x, as wide as the wider one."""
    size = max(residual.num_bytes, x.num_bytes)
    out = graph.value(name, size, gradient_bytes=size if residual.gradient_bytes or x.gradient_bytes else 0)
    return graph.call("add", [residual, x], [out], passes_gradient=True)
