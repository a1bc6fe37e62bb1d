"""Activation functions, plain and gated, as eager code and as fused kernels run them.

Symbols:  E elements of one half (tokens x intermediate size)
[derivatives] pytorch tools/autograd/derivatives.yaml: silu and gelu save their input, relu and tanh their result
[formulas] pytorch torch/csrc/autograd/FunctionsManual.cpp
[hf] transformers v5.23.0 src/transformers/activations.py `ACT2CLS`, models/llama/modeling_llama.py `LlamaMLP.forward`:
down(act(gate(x)) * up(x))
[liger] Liger-Kernel src/liger_kernel/ops/swiglu.py, geglu.py: both gradients are written over the saved inputs
[autocast] pytorch aten/src/ATen/autocast_mode.h AT_FORALL_FP32
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.units import FP32


class Pointwise(Struct, frozen=True):
    """An activation under construction, one operator of eager PyTorch at a time.

    Values are as wide as the widest operand. Under autocast some operators compute 16-bit values in fp32 [autocast],
    and whatever follows is fp32.
    """

    graph: Graph
    name: str  # of the result, and with a label behind it of what is on the way
    elements: int  # E
    autocast: bool = False
    trainable: bool = True  # whether weights of the activation's own learn

    def label(self, text: str) -> str:
        """Name of a value; the result has no label."""
        return f"{self.name}.{text}" if text else self.name

    def widened(self, x: Value) -> Value:
        """x as an operator of autocast's fp32 list reads it: a copy where it is narrower."""
        return cast(self.graph, x, elements=self.elements, to_bytes=FP32) if self.autocast else x

    def unary(self, x: Value, text: str = "", *, saves: str = "", temporaries: int = 0) -> Value:
        """A function of x alone, a product with a number among them; `saves` and `temporaries` as `aten.unary`."""
        name = self.label(text)
        return aten.unary(self.graph, x, num_bytes=x.num_bytes, name=name, saves=saves, temporaries=temporaries)

    def power(self, x: Value, text: str = "") -> Value:
        """`x.pow(n)`, `x.square()`: in fp32 under autocast."""
        wide = self.widened(x)
        return aten.power(self.graph, wide, num_bytes=wide.num_bytes, name=self.label(text))

    def shifted(self, x: Value, text: str) -> Value:
        return aten.shift(self.graph, x, num_bytes=x.num_bytes, name=self.label(text))

    def erf(self, x: Value, text: str) -> Value:
        """Backward: square, its negative, exponential and multiple of x [derivatives: erf]."""
        return self.unary(x, text, saves="input", temporaries=4)

    def tanh(self, x: Value, text: str = "") -> Value:
        return self.unary(x, text, saves="output")

    def softplus(self, x: Value, text: str) -> Value:
        """Keeps its input; in fp32 under autocast."""
        return self.unary(self.widened(x), text, saves="input")

    def expm1(self, x: Value, text: str) -> Value:
        """Keeps its result; backward adds 1 to it first; in fp32 under autocast [derivatives: expm1]."""
        return self.unary(self.widened(x), text, saves="output", temporaries=1)

    def sum(self, a: Value, b: Value, text: str) -> Value:
        a, b = self._alike(a, b)
        return aten.add(self.graph, a, b, num_bytes=a.num_bytes, name=self.label(text))

    def difference(self, a: Value, b: Value, text: str) -> Value:
        a, b = self._alike(a, b)
        return aten.subtract(self.graph, a, b, num_bytes=a.num_bytes, name=self.label(text))

    def product(self, a: Value, b: Value, text: str = "") -> Value:
        a, b = self._alike(a, b)
        return aten.multiply(self.graph, a, b, num_bytes=a.num_bytes, name=self.label(text))

    def weighted(self, x: Value, text: str) -> Value:
        """`weight * x` with a weight of one element that is as wide as `softplus` makes it."""
        if self.autocast:
            x = aten.promote(self.graph, x, num_bytes=self.elements * FP32)
        return aten.scale_by_weight(
            self.graph, x, num_bytes=x.num_bytes, weight_bytes=FP32, name=self.label(text), trainable=self.trainable
        )

    def chosen(self, x: Value, a: Value, b: Value) -> Value:
        """`torch.where(x > 0, a, b)` with a mask made before."""
        a, b = self._alike(a, b)
        out = self.graph.value(self.name, a.num_bytes)
        return self.graph.call("where", [a, b, x], [out], saved=[x])

    def mask(self, x: Value) -> Value:
        """`x > 0`: a byte an element."""
        found = self.graph.value(self.label("mask"), self.elements, gradient_bytes=0)
        return self.graph.call("gt", [x], [found], differentiable=False)

    def minimum(self, x: Value, text: str) -> Value:
        """`torch.min(x, number)`: backward halves gradients, chooses by one mask and clears by another."""
        made = {"equal": self.elements, "half": x.num_bytes, "larger": self.elements}
        return self._of_input("minimum", x, made, text)

    def clipped(self, x: Value) -> Value:
        """`torch.clip(x, low, high)`: backward chooses by two masks [formulas: clamp_backward]."""
        return self._of_input("clamp", x, {"above": self.elements, "below": self.elements})

    def prelu(self, x: Value) -> Value:
        """Keeps its input; its weight's gradient is made at full size and summed after [derivatives: _prelu_kernel]."""
        return self._of_input("prelu", x, {"weight": x.num_bytes})

    def _of_input(self, kernel: str, x: Value, made: Mapping[str, int], text: str = "") -> Value:
        """A kernel that keeps its input; `made`: what its backward makes on the way [bytes]."""
        out = self.graph.value(self.label(text), x.num_bytes)
        passing = [self.graph.tensor(f"grad.{out.name}.{name}", size) for name, size in made.items()]
        return self.graph.call(kernel, [x], [out], saved=[x], backward_temporaries=passing)

    def _alike(self, a: Value, b: Value) -> tuple[Value, Value]:
        size = max(a.num_bytes, b.num_bytes)
        return aten.promote(self.graph, a, num_bytes=size), aten.promote(self.graph, b, num_bytes=size)


def _linear(p: Pointwise, x: Value) -> Value:
    return x


def _clipped_gelu(p: Pointwise, x: Value) -> Value:
    return p.clipped(p.unary(x, "gelu", saves="input"))


def _gelu_erf(p: Pointwise, x: Value) -> Value:
    """x 0.5 (1 + erf(x / sqrt(2)))."""
    half, scaled = p.unary(x, "half"), p.unary(x, "scaled")
    return p.product(half, p.shifted(p.erf(scaled, "erf"), "one_plus"))


def _gelu_tanh(p: Pointwise, x: Value) -> Value:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    half = p.unary(x, "half")
    total = p.sum(x, p.unary(p.power(x, "cube"), "scaled"), "sum")
    return p.product(half, p.shifted(p.tanh(p.unary(total, "inner"), "tanh"), "one_plus"))


def _gelu_fast(p: Pointwise, x: Value) -> Value:
    """0.5 x (1 + tanh(x 0.7979 (1 + 0.044715 x x)))."""
    half, scaled = p.unary(x, "half"), p.unary(x, "scaled")
    square = p.product(p.unary(x, "cubic"), x, "square")
    inner = p.product(scaled, p.shifted(square, "shifted"), "inner")
    return p.product(half, p.shifted(p.tanh(inner, "tanh"), "one_plus"))


def _quick_gelu(p: Pointwise, x: Value) -> Value:
    """x sigmoid(1.702 x)."""
    return p.product(x, p.unary(p.unary(x, "scaled"), "sigmoid", saves="output"))


def _laplace(p: Pointwise, x: Value) -> Value:
    """0.5 (1 + erf((x - mu) / (sigma sqrt(2)))); its variable holds the argument to the end."""
    argument = p.unary(p.shifted(x, "centred"), "argument")
    out = p.unary(p.shifted(p.erf(argument, "erf"), "one_plus"))
    p.graph.hold(argument)
    return out


def _relu_squared(p: Pointwise, x: Value) -> Value:
    relu = p.unary(x, "relu", saves="output")
    out = p.power(relu)
    p.graph.hold(relu)
    return out


def _sqrt_softplus(p: Pointwise, x: Value) -> Value:
    """Backward of the root doubles it first [derivatives: sqrt]."""
    return p.unary(p.softplus(x, "softplus"), saves="output", temporaries=1)


def _xielu(p: Pointwise, x: Value) -> Value:
    """where(x > 0, a x x + b x, (expm1(min(x, eps)) - x) c + b x), a and c of one learned element each."""
    mask = p.mask(x)
    square = p.product(p.weighted(x, "weighted"), x, "square")
    positive = p.sum(square, p.unary(x, "beta"), "positive")
    difference = p.difference(p.expm1(p.minimum(x, "least"), "expm1"), x, "difference")
    negative = p.sum(p.weighted(difference, "negative_weighted"), p.unary(x, "negative_beta"), "negative")
    return p.chosen(mask, positive, negative)


Activation = Callable[[Pointwise, Value], Value]

_keeps_input: Final[Activation] = partial(Pointwise.unary, saves="input")
_keeps_output: Final[Activation] = partial(Pointwise.unary, saves="output")

ACTIVATIONS: Final[dict[str, Activation]] = {
    "gelu": _keeps_input,
    "gelu_10": _clipped_gelu,
    "gelu_accurate": _gelu_tanh,
    "gelu_fast": _gelu_fast,
    "gelu_new": _gelu_tanh,
    "gelu_python": _gelu_erf,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_pytorch_tanh": _keeps_input,
    "hardswish": _keeps_input,
    "laplace": _laplace,
    "leaky_relu": _keeps_input,
    "linear": _linear,
    "mish": _keeps_input,
    "prelu": Pointwise.prelu,
    "quick_gelu": _quick_gelu,
    "relu": _keeps_output,
    "relu2": _relu_squared,
    "relu6": _keeps_input,
    "sigmoid": _keeps_output,
    "silu": _keeps_input,
    "sqrtsoftplus": _sqrt_softplus,
    "swish": _keeps_input,
    "tanh": _keeps_output,
    "xielu": _xielu,
}
"""Every name of [hf] `ACT2CLS`, which is case-sensitive, and what its class does operator by operator."""

LEARNED: Final[dict[str, int]] = {"prelu": 1, "xielu": 2}
"""Weights of one element that a module of that name has [hf]."""

FUSED: Final = "gelu"
"""Stands for any activation in one kernel that keeps its input and makes one gradient."""


def activation(
    graph: Graph, x: Value, *, elements: int, itemsize: int, variant: str = "silu", name: str = "act",
    autocast: bool = False, trainable: bool = True,
) -> Value:
    """Append a plain activation function; `variant` is a key of ACTIVATIONS."""
    pointwise = Pointwise(graph, name, elements, autocast=autocast and itemsize < FP32, trainable=trainable)
    return ACTIVATIONS[variant](pointwise, x)


OVERWRITES: Final[dict[str, bool]] = {"compiled": False, "liger": True}
"""Kernels of act(gate) * up, which keep both -> whether backward writes the gradients over them [liger]
`LigerSiLUMulFunction`, `LigerGELUMulFunction`, or into new tensors, as torch.compile does."""


def gated_activation(graph: Graph, inputs: Sequence[Value], variant: str, name: str) -> Value:
    """Append one kernel of gate and up, apart or halves of one tensor; `variant` is a key of OVERWRITES."""
    out = graph.value(f"{name}.gated", sum(value.num_bytes for value in inputs) // 2)
    over = [(value, value) for value in inputs] if OVERWRITES[variant] else []
    return graph.call("gated_activation", inputs, [out], saved=inputs, gradient_storages=over)
