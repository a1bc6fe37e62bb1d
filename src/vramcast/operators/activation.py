"""Activation functions, plain and gated, as eager code and as fused kernels run them.

Symbols:  E elements of one half (tokens x intermediate size)
[derivatives] pytorch tools/autograd/derivatives.yaml: silu and gelu save their input, relu and tanh their result
[hf] transformers activations.py and `LlamaMLP.forward`: down(act(gate(x)) * up(x))
[liger] Liger-Kernel src/liger_kernel/ops/swiglu.py, geglu.py: both gradients are written over the saved inputs
[megatron] Megatron-LM megatron/core/fusions/fused_bias_swiglu.py `SwiGLUFunction`: keeps the fc1 output only
[autocast] pytorch aten/src/ATen/autocast_mode.h AT_FORALL_FP32
[te] TransformerEngine transformer_engine/pytorch/module/layernorm_mlp.py: keeps the fc1 output, recomputes nothing else
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast

FP32: Final = 4  # bytes


class Gate(NamedTuple):
    """Shape of one gated activation: `gate` and `up` of E elements each, apart or as halves of one tensor."""

    elements: int  # E, of one half
    itemsize: int  # [bytes]
    activation: str = "silu"  # a key of ACTIVATION_VARIANTS
    name: str = "mlp"

    @property
    def num_bytes(self) -> int:
        """Bytes of one half."""
        return self.elements * self.itemsize


def _silu(graph: Graph, x: Value, num_bytes: int, name: str) -> Value:
    return aten.unary(graph, x, num_bytes=num_bytes, name=name, saves="input")


def _relu(graph: Graph, x: Value, num_bytes: int, name: str) -> Value:
    return aten.unary(graph, x, num_bytes=num_bytes, name=name, saves="output")


def _relu_squared(graph: Graph, x: Value, num_bytes: int, name: str) -> Value:
    """[hf] `ReLUSquaredActivation`: relu, then square."""
    relu = _relu(graph, x, num_bytes, f"{name}.relu")
    return aten.power(graph, relu, num_bytes=num_bytes, name=name)


def _gelu_python(graph: Graph, x: Value, num_bytes: int, name: str) -> Value:
    """[hf] `NewGELUActivation`: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), one operator at a time."""
    size = num_bytes
    half = aten.unary(graph, x, num_bytes=size, name=f"{name}.half")
    cube = aten.power(graph, x, num_bytes=size, name=f"{name}.cube")
    scaled = aten.unary(graph, cube, num_bytes=size, name=f"{name}.scaled")
    total = aten.add(graph, x, scaled, num_bytes=size, name=f"{name}.sum")
    inner = aten.unary(graph, total, num_bytes=size, name=f"{name}.inner")
    tanh = aten.unary(graph, inner, num_bytes=size, name=f"{name}.tanh", saves="output")
    shifted = aten.shift(graph, tanh, num_bytes=size, name=f"{name}.one_plus")
    return aten.multiply(graph, half, shifted, num_bytes=size, name=name)


def _gelu_autocast(graph: Graph, x: Value, num_bytes: int, name: str) -> Value:
    """`_gelu_python` of 16-bit x under autocast: pow is in its fp32 list, so all that follows is fp32 [autocast]."""
    wide = 2 * num_bytes
    half = aten.unary(graph, x, num_bytes=num_bytes, name=f"{name}.half")
    copy = cast(graph, x, elements=wide // FP32, to_bytes=FP32, name=f"{name}.fp32")
    cube = aten.power(graph, copy, num_bytes=wide, name=f"{name}.cube")
    scaled = aten.unary(graph, cube, num_bytes=wide, name=f"{name}.scaled")
    total = aten.add(graph, aten.promote(graph, x, num_bytes=wide), scaled, num_bytes=wide, name=f"{name}.sum")
    inner = aten.unary(graph, total, num_bytes=wide, name=f"{name}.inner")
    tanh = aten.unary(graph, inner, num_bytes=wide, name=f"{name}.tanh", saves="output")
    shifted = aten.shift(graph, tanh, num_bytes=wide, name=f"{name}.one_plus")
    return aten.multiply(graph, aten.promote(graph, half, num_bytes=wide), shifted, num_bytes=wide, name=name)


def _quick_gelu(graph: Graph, x: Value, num_bytes: int, name: str) -> Value:
    """[hf] `QuickGELUActivation`: x * sigmoid(1.702 x)."""
    scaled = aten.unary(graph, x, num_bytes=num_bytes, name=f"{name}.scaled")
    sigmoid = aten.unary(graph, scaled, num_bytes=num_bytes, name=f"{name}.sigmoid", saves="output")
    return aten.multiply(graph, x, sigmoid, num_bytes=num_bytes, name=name)


Activation = Callable[[Graph, Value, int, str], Value]

ACTIVATION_VARIANTS: Final[dict[str, Activation]] = {
    "silu": _silu,
    "swish": _silu,
    "swiglu": _silu,
    "gelu": _silu,
    "gelu_tanh": _silu,
    "gelu_pytorch_tanh": _silu,
    "geglu": _silu,
    "gelu_new": _gelu_python,
    "gelu_fast": _gelu_python,
    "quick_gelu": _quick_gelu,
    "relu": _relu,
    "relu2": _relu_squared,
    "squared_relu": _relu_squared,
    "fused": _silu,
}
"""Point-wise functions. The fused ones keep their input and make one gradient, whatever they compute."""

AUTOCAST_VARIANTS: Final[dict[str, Activation]] = {"gelu_new": _gelu_autocast}
"""Those that autocast computes otherwise."""


def activation(
    graph: Graph, x: Value, *, elements: int, itemsize: int, variant: str = "silu", name: str = "act",
    autocast: bool = False,
) -> Value:
    """Append a plain activation function; `variant` is a key of ACTIVATION_VARIANTS."""
    found = ACTIVATION_VARIANTS[variant]
    if autocast and itemsize < FP32:
        found = AUTOCAST_VARIANTS.get(variant, found)
    return found(graph, x, elements * itemsize, name)


def _halves(graph: Graph, gate: Value, up: Value | None) -> tuple[Value, Value]:
    """Gate and up: given apart, or as views of one tensor (chunk), whose gradient is one concatenation."""
    if up is not None:
        return gate, up
    half = gate.gradient_bytes // 2
    first = graph.view(gate, f"{gate.name}.gate", gradient_bytes=half)
    second = graph.view(gate, f"{gate.name}.up", gradient_bytes=half)
    first.num_bytes = second.num_bytes = gate.num_bytes // 2
    graph.call("chunk", [gate], [first, second])
    return first, second


def _gated_eager(graph: Graph, gate: Value, up: Value | None, spec: Gate) -> Value:
    """[hf]: act(gate) * up keeps gate, act(gate) and up."""
    first, second = _halves(graph, gate, up)
    act = ACTIVATION_VARIANTS[spec.activation](graph, first, spec.num_bytes, f"{spec.name}.act")
    return aten.multiply(graph, act, second, num_bytes=spec.num_bytes, name=f"{spec.name}.gated")


def _gated_fused(graph: Graph, gate: Value, up: Value | None, spec: Gate) -> Value:
    """One kernel each way: keeps gate and up, makes new gradients [megatron] [te]; torch.compile does the same."""
    inputs = [gate] if up is None else [gate, up]
    out = graph.value(f"{spec.name}.gated", spec.num_bytes)
    return graph.call("gated_activation", inputs, [out], saved=inputs)


def _gated_liger(graph: Graph, gate: Value, up: Value | None, spec: Gate) -> Value:
    """[liger] `LigerSiLUMulFunction`, `LigerGELUMulFunction`: the gradients overwrite gate and up."""
    inputs = [gate] if up is None else [gate, up]
    out = graph.value(f"{spec.name}.gated", spec.num_bytes)
    return graph.call(
        "gated_activation", inputs, [out], saved=inputs, gradient_storages=[(value, value) for value in inputs]
    )


GATED_VARIANTS: Final[dict[str, Callable[[Graph, Value, Value | None, Gate], Value]]] = {
    "eager": _gated_eager,
    "huggingface": _gated_eager,
    "torch": _gated_eager,
    "compiled": _gated_fused,
    "megatron": _gated_fused,
    "transformer_engine": _gated_fused,
    "liger": _gated_liger,
    "liger_fused_gate_up": _gated_fused,
}


def gated_activation(graph: Graph, gate: Value, up: Value | None, spec: Gate, variant: str = "eager") -> Value:
    """Append act(gate) * up; with `up` None, `gate` holds both halves. `variant` is a key of GATED_VARIANTS."""
    return GATED_VARIANTS[variant](graph, gate, up, spec)
