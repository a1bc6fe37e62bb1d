"""Seconds of the embedding and of the head with its loss, and the weights of every piece of a stage.

Stable: `embedding_passes`, `head_passes`, `layer_elements`, `embedding_elements`, `head_elements`.

[Megatron] Megatron-LM core/tensor_parallel/cross_entropy.py: fp32 logits, a maximum and two sums over the ranks.
[TE] TransformerEngine common/triton/cross_entropy.py: one pass for the softmax, one that writes the gradient.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.blocks.parameters import embedding_parameters, head_parameters, layer_parameters
from vramcast.domain.job import Loss
from vramcast.domain.model import Layer, Model, Parameter
from vramcast.parallel.layout import Layout
from vramcast.timing.training.layer import seconds
from vramcast.timing.training.matrices import POOLED, entry_matrices, exit_matrices, output_elements
from vramcast.timing.training.parts import Machine, Operator, Parts, Passes, Shape

LOGIT_BYTES: Final[dict[Loss, tuple[float, float]]] = {
    Loss.EAGER: (22.0, 22.0),  # cast to fp32, log-softmax, its gradient, cast back
    Loss.COMPILED: (6.0, 6.0),
    Loss.FUSED: (8.0, 2.0),  # [TE]
    Loss.FUSED_LINEAR: (8.0, 2.0),
    Loss.CHUNKED: (22.0, 22.0),
}
"""Loss -> bytes moved for every logit, forward and backward."""


class Elements(NamedTuple):
    """Weights of one rank: those every data-parallel rank holds, and those of experts."""

    dense: float = 0.0
    expert: float = 0.0

    def plus(self, other: Elements, times: float = 1.0) -> Elements:
        """Both, the other one `times` over."""
        return Elements(self.dense + times * other.dense, self.expert + times * other.expert)


def embedding_passes(model: Model, *, shape: Shape, machine: Machine) -> Passes:
    """Rows are gathered, backward adds to as many; patches and narrow tables are projected to the residual's width."""
    style, width = machine.style, model.embedding_width or model.hidden
    moved = 2.0 * shape.tokens * width * style.residual
    lookup = Operator("embedding", "pointwise", "embedding", bytes=moved, backward_bytes=3 * moved)
    waiting = 0.0
    if shape.tp > 1:
        pattern = "reduce-scatter" if shape.sequence_parallel else "all-reduce"
        size = shape.tokens * width * style.width
        waiting = machine.fabric.collective(pattern, ranks=shape.tp).seconds(size)
    return _products(_passes(lookup, machine, waiting), entry_matrices(model), shape, machine)


def head_passes(model: Model, *, shape: Shape, machine: Machine, loss: Loss, again: bool = False) -> Passes:
    """Final norm, what the head has of its own, output projection and cross entropy; `again`: both run once more for
    their backward."""
    style, hidden = machine.style, model.embedding_width or model.hidden
    norm = Operator(
        "final norm", "pointwise", "norm", bytes=2 * shape.residual_tokens * model.hidden * style.residual,
        backward_bytes=3 * shape.residual_tokens * model.hidden * style.residual,
    )
    found = _products(_passes(norm, machine), exit_matrices(model), shape, machine)
    if not output_elements(model):
        return found
    columns = model.vocab / shape.tp
    product = _product("head", shape.tokens, (columns, hidden), machine)
    forward, backward = LOGIT_BYTES[loss]
    logits = shape.tokens * columns
    entropy = Operator("loss", "pointwise", "loss", bytes=forward * logits, backward_bytes=backward * logits, kernels=4)
    waiting = 0.0
    if shape.tp > 1:
        waiting = 3 * machine.fabric.collective("all-reduce", ranks=shape.tp).seconds(4 * shape.tokens)
        if shape.sequence_parallel:
            size = shape.tokens * hidden * style.width
            waiting += machine.fabric.collective("all-gather", ranks=shape.tp).seconds(size)
    output = _passes(product, machine, waiting).plus(_passes(entropy, machine))
    return found.plus(Passes(output.forward, output.backward.plus(output.forward)) if again else output)


def _products(found: Passes, weights: tuple[Parameter, ...], shape: Shape, machine: Machine) -> Passes:
    """And products with these weights, which every tensor-parallel rank has whole."""
    for weight in weights:
        rows = shape.sequences if weight.path in POOLED else shape.tokens
        columns = weight.elements / weight.shape[0]
        found = found.plus(_passes(_product(weight.path, rows, (weight.shape[0], columns), machine), machine))
    return found


def _product(path: str, rows: float, features: tuple[float, float], machine: Machine) -> Operator:
    """One product and those of its gradients; no recipe converts the ends: they count at the rate of 16 bits."""
    style, weights = machine.style, features[0] * features[1]
    flops = 2.0 * rows * weights * machine.rates.products / machine.rates.whole
    moved, read = rows * sum(features) * style.width, weights * style.width
    written = weights * style.gradient_bytes if style.trains else 0.0
    passes = 2 if style.trains else 1
    return Operator(
        path, "product", "head", flops, moved, passes * flops, passes * moved, weight_bytes=read,
        backward_weight_bytes=read + written,
    )


def _passes(operator: Operator, machine: Machine, waiting: float = 0.0) -> Passes:
    waits = Parts(tensor=waiting)
    return Passes(
        seconds(operator, machine, backward=False).plus(waits), seconds(operator, machine, backward=True).plus(waits)
    )


def _elements(parameters: tuple[Parameter, ...], layout: Layout) -> Elements:
    dense = sum(layout.local_elements(parameter) for parameter in parameters if not parameter.expert)
    expert = sum(layout.local_elements(parameter) for parameter in parameters if parameter.expert)
    return Elements(float(dense), float(expert))


def layer_elements(layer: Layer, *, hidden: int, layout: Layout) -> Elements:
    """Weights of a layer on one rank."""
    return _elements(layer_parameters(layer, hidden=hidden), layout)


def embedding_elements(model: Model, *, layout: Layout) -> Elements:
    """Weights of the embedding on one rank."""
    return _elements(embedding_parameters(model), layout)


def head_elements(model: Model, *, layout: Layout) -> Elements:
    """Weights of the head on one rank; a tied one belongs to the embedding."""
    return _elements(head_parameters(model), layout)
