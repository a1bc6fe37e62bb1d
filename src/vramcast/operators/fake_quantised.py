"""Linear layers of quantisation-aware training: weights and inputs are rounded to few bits and back before the product.

Symbols:  n elements of the input   m elements of the weight   g elements that share a scale
Rounding is plain autograd in fp32: it keeps what clamps read, and no two products share an input any more.

[QAT] pytorch/ao v0.17.0 torchao/quantization/qat/linear.py `FakeQuantizedLinear.forward`, fake_quantizer.py
`Int4WeightFakeQuantizer._bf16_activations_forward`, `IntxFakeQuantizer`, quant_primitives.py
`_do_fake_quantize_affine`: scales are fp32, and so is what they are multiplied with
[MX] torchao/prototype/qat/mx.py `_MXQuantizedForwardFakeQuantizedBackward`: blocks of 32 in 4 bits with a scale of 8
bits each are all that is kept; products are emulated, so both sides are unpacked forward and again backward
The bytes of an element were read off a recording of that code by `vramcast trace`, of n and of m alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vramcast.domain.program import Category, Tensor
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, Numerics, bias_gradients, cast
from vramcast.units import ceil_div


class Fake(NamedTuple):
    """Which layers round, and how."""

    kind: str  # key of KINDS
    group: int = 32  # g, elements of a weight that share a scale


class Rounding(NamedTuple):
    """What rounding an element and back costs; of a group beside it, so much for all of its elements [bytes]."""

    kept: int  # until backward, beside the rounded copy that the product keeps
    forward: int  # more while it runs
    backward: int
    group: tuple[int, int, int] = (0, 0, 0)  # the same three of a group

    def sizes(self, elements: int, group: int) -> tuple[int, int, int]:
        """The three for so many elements."""
        rates = zip((self.kept, self.forward, self.backward), self.group, strict=True)
        kept, forward, backward = (rate * elements + ceil_div(of_group * elements, group) for rate, of_group in rates)
        return kept, forward, backward


PER_TOKEN: Final = Rounding(4, 8, 5)
"""8 bits with a scale and a zero for each token: the input of the clamp; a mask of it beside two copies backward."""

LEARNED_RANGE: Final = Rounding(16, 6, 8, (16, 4, 10))
"""4 bits, scales from the range of each group, through which gradients flow, too: the weight in fp32, its distance from
the least, the rounded one, and the rounded one less eight."""

PER_GROUP: Final = Rounding(4, 8, 6, (4, 0, 0))
"""4 bits, scales of each group that no gradient reaches."""

KINDS: Final[dict[str, tuple[Rounding | None, Rounding]]] = {
    "int4": (None, LEARNED_RANGE), "int8-int4": (PER_TOKEN, LEARNED_RANGE), "int8-int4-affine": (PER_TOKEN, PER_GROUP),
}
"""Kind -> rounding of inputs and of weights [QAT]."""

MX: Final = "mxfp4"

MX_PACKED: Final = (17, 32)
"""4 bits of an element and 8 of its block's scale, of 32 elements [bytes of an element]."""

MX_CONVERTING: Final = 30
"""While blocks are packed or unpacked by plain operators: indices and halves in 32 bits [bytes of an element]."""


def fake_linear(
    graph: Graph, path: str, x: Value, *, tokens: int, dense: Dense, numerics: Numerics, fake: Fake
) -> Value:
    """One matrix product of what both sides are after rounding.

    Valid for: weights, inputs and products of 16 bits
    Source: [QAT], [MX]
    """
    width, inputs = numerics.compute, tokens * dense.in_features
    x = cast(graph, x, elements=inputs, to_bytes=width, name=f"{path}.input")
    differentiable = dense.trainable or x.gradient_bytes > 0
    size = tokens * dense.out_features * width
    y = graph.value(path, size, gradient_bytes=size if differentiable else 0)
    gradients, passing = bias_gradients(graph, path, tokens=tokens, dense=dense, numerics=numerics)
    gradient = graph.tensor(f"{path}.weight_gradient", dense.elements * numerics.gradient, Category.GRADIENTS)
    flops = 2 * tokens * dense.out_features * dense.in_features
    if fake.kind == MX:
        return _emulated(graph, x, y, inputs, dense.elements, [gradient, *gradients], passing, flops=flops)
    of_input, of_weight = KINDS[fake.kind]
    if of_input is not None:
        x = _rounded(graph, f"{path}.rounded_input", [x], inputs, of_input.sizes(inputs, dense.in_features), [])
    sizes = of_weight.sizes(dense.elements, fake.group)
    if not dense.trainable:  # the rounded weight is kept for the input's gradient, of its rounding nothing
        making = graph.tensor(f"{path}.rounded_weight.rounding", sizes[0] + sizes[1])
        graph.call("fake_quantise", [x], [], temporaries=[making], differentiable=False)
        weight = graph.value(f"{path}.rounded_weight", 2 * dense.elements, gradient_bytes=0)
        return graph.call("linear", [x], [y], extra=[weight], flops=flops, views_gradient=True)
    weight = _rounded(graph, f"{path}.rounded_weight", [], dense.elements, sizes, [gradient])
    return graph.call(
        "linear", [x, weight], [y], saved=[x, weight], weight_gradients=gradients, backward_temporaries=passing,
        flops=flops, views_gradient=True,
    )


def rounding_bytes(fake: Fake | None, *, tokens: int, columns: int, elements: int) -> tuple[int, int, int]:
    """What a product of so many rows with so many weights keeps of its rounding, and has more of forward and backward:
    the gradients of both rounded sides, too.

    Raises: KeyError for rounding that is emulated
    """
    if fake is None:
        return 0, 0, 0
    of_input, of_weight = KINDS[fake.kind]
    inputs = tokens * columns
    kept, forward, backward = of_weight.sizes(elements, fake.group)
    kept_input, *_ = of_input.sizes(inputs, columns) if of_input is not None else (-2 * inputs,)
    return kept + kept_input + 2 * (elements + inputs), forward, backward + 2 * elements


def _rounded(
    graph: Graph, name: str, inputs: Sequence[Value], elements: int, sizes: tuple[int, int, int],
    gradients: Sequence[Tensor],
) -> Value:
    kept, forward, backward = sizes
    return graph.call(
        "fake_quantise", inputs, [graph.value(name, 2 * elements)],
        extra=[graph.value(f"{name}.kept", kept, gradient_bytes=0)],
        temporaries=[graph.tensor(f"{name}.rounding", forward)], weight_gradients=gradients,
        backward_temporaries=[graph.tensor(f"{name}.rounding_gradient", backward)],
    )


def _emulated(
    graph: Graph, x: Value, y: Value, inputs: int, weights: int, gradients: Sequence[Tensor],
    passing: Sequence[Tensor], *, flops: int,
) -> Value:
    """Both sides are packed, and unpacked one after the other for a product in 16 bits [MX]."""
    top, bottom = MX_PACKED
    packed = [ceil_div(top * inputs, bottom), ceil_div(top * weights, bottom)]
    converting = max(MX_CONVERTING * inputs, 2 * inputs + MX_CONVERTING * weights)
    making = graph.tensor(f"{y.name}.packing", sum(packed) + converting)
    graph.call("to_mx", [x], [], temporaries=[making], differentiable=False)
    extra = [graph.value(f"{y.name}.{name}_4bit", size, gradient_bytes=0)
             for name, size in zip(("input", "weight"), packed, strict=True)]
    both = [graph.tensor(f"{y.name}.unpacked_{name}", 2 * count)
            for name, count in (("input", inputs), ("weight", weights))]
    y = graph.call("linear", [x], [y], extra=extra, temporaries=both, weight_gradients=gradients,
                   backward_temporaries=[*both, *passing], flops=flops, views_gradient=True)
    # unpacked again ahead of the product's backward
    return graph.call("unpacked_again", [y], [graph.view(y, f"{y.name}.product")], passes_gradient=True,
                      backward_temporaries=[graph.tensor(f"{y.name}.unpacking", converting)])
