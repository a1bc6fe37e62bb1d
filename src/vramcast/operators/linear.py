"""Linear layers as eager PyTorch runs them: y = x W^T + b.

Symbols:  T tokens   I in features   O out features
[autograd] pytorch tools/autograd/derivatives.yaml `addmm`, `mm`: the weight gradient needs x, the input gradient W.
[autocast] pytorch aten/src/ATen/autocast_mode.cpp `cached_cast`: fp32 leaf weights that require a gradient are cast
once per autocast context and the copy is cached; everything else is cast at every call.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from vramcast.domain.job import Precision
from vramcast.domain.program import Category, Tensor
from vramcast.errors import Note
from vramcast.operators.graph import Graph, Value
from vramcast.operators.reduction import H100, Chip, column_sum_bytes

FP32: Final = 4
"""Of one element [bytes]."""


class Numerics(NamedTuple):
    """Bytes of one element in each role."""

    weight: int = 2  # stored weights
    compute: int = 2  # what matrix products read and write
    residual: int = 2  # the residual stream, norm inputs and outputs
    gradient: int = 2  # gradients of weights

    @property
    def autocast(self) -> bool:
        """Whether torch.autocast converts weights and inputs at every matrix product."""
        return self.weight != self.compute


NUMERICS: Final[dict[Precision, Numerics]] = {
    Precision.FP64: Numerics(8, 8, 8, 8),
    Precision.FP32: Numerics(4, 4, 4, 4),
    Precision.TF32: Numerics(4, 4, 4, 4),
    Precision.AMP_FP16: Numerics(4, 2, 4, 4),
    Precision.AMP_BF16: Numerics(4, 2, 4, 4),
    Precision.MIXED_FP16: Numerics(2, 2, 2, 2),
    Precision.MIXED_BF16: Numerics(2, 2, 2, 2),
    Precision.BF16: Numerics(2, 2, 2, 2),
    Precision.FP16: Numerics(2, 2, 2, 2),
}
"""Element sizes by recipe; the optimizer's copies are not activations and live with the states."""


class Dense(Struct, frozen=True):
    """One linear layer's shape and whether it learns."""

    out_features: int
    in_features: int
    bias: bool = False
    trainable: bool = True
    copies: int = 1  # weights of that shape in one grouped product (experts)
    chip: Chip = H100  # decides the buffer of the bias gradient's sum

    @property
    def elements(self) -> int:
        return self.copies * self.out_features * self.in_features


def cast(graph: Graph, value: Value, *, elements: int, to_bytes: int, name: str = "") -> Value:
    """`value.to(dtype)`: itself when the width is the same already, else a copy that saves nothing.

    The gradient of the copy has the copy's width and is cast back into a new tensor.
    """
    if value.num_bytes == elements * to_bytes:
        return value
    gradient = elements * to_bytes if value.gradient_bytes else 0
    copy = graph.value(name or f"{value.name}.cast", elements * to_bytes, gradient_bytes=gradient)
    return graph.call("cast", [value], [copy])


def linear(graph: Graph, name: str, x: Value, *, tokens: int, dense: Dense, numerics: Numerics) -> Value:
    """One matrix product with its cast of the input and of the weight under autocast.

    Leaves out: cuBLAS workspaces, which belong to the process.

    Args:
        name: path of the weight in its layer, "attention.q"
        x: input of (T, I) elements of any width
        tokens: T, rows of x [tokens]
        dense: O, I, bias and whether the weight learns
        numerics: element widths [bytes]

    Returns: the output, (T, O) elements of the compute width
    Source: [autograd], [autocast]
    """
    out, width = tokens * dense.out_features, numerics.compute
    weights, shape = dense.elements, f"{dense.out_features} x {dense.in_features}"
    x = cast(graph, x, elements=tokens * dense.in_features, to_bytes=width, name=f"{name}.input")
    differentiable = dense.trainable or x.gradient_bytes > 0
    y = graph.value(
        name, out * width, gradient_bytes=out * width if differentiable else 0,
        formula=Note("{} tokens x {} x {} B", tokens, dense.out_features, width),
    )
    extra: list[Value] = []
    if numerics.autocast:
        # backward of the input needs it, so it is saved; only that of a weight that learns is cached [autocast]
        kept = f"{name}.{'weight_cast' if dense.trainable else 'weight_copy'}"
        extra.append(graph.value(kept, weights * width, gradient_bytes=0, formula=f"{shape} x {width} B"))
    gradients: list[Tensor] = []
    passing: list[Tensor] = []
    if dense.trainable:
        element = numerics.gradient
        formula = f"{shape} x {element} B"
        gradients.append(graph.tensor(f"{name}.weight_gradient", weights * element, Category.GRADIENTS, formula))
        if element != width:  # the product is 16 bits wide before it becomes the fp32 gradient
            passing.append(graph.tensor(f"{name}.weight_gradient_16bit", weights * width))
    if dense.trainable and dense.bias:
        size = dense.copies * dense.out_features * numerics.gradient
        gradients.append(graph.tensor(f"{name}.bias_gradient", size, Category.GRADIENTS))
        # summed over the tokens while all gradients of the layer are alive (see `reduction`)
        partial = column_sum_bytes(rows=tokens, columns=dense.out_features, chip=dense.chip)
        passing += [graph.tensor(f"{name}.bias_gradient_partial", partial)] if partial else []
    return graph.call(
        "linear", [x], [y], saved=[x] if dense.trainable else [], extra=extra, weight_gradients=gradients,
        backward_temporaries=passing, flops=2 * tokens * dense.out_features * dense.in_features,
        views_gradient=True,  # (B, S, I) inputs are folded to two dimensions and their gradients unfolded
    )
