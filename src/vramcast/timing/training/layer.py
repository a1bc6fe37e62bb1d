"""Seconds of one residual layer for one micro-batch, the atom of steps, and of the embedding and the head.

Stable: `layer_passes(layer, hidden=, shape=, machine=, recompute=, modules=)`.

Stable: `embedding_passes`, `head_passes`, `layer_elements`, `embedding_elements`, `head_elements`.

[Megatron] Megatron-LM core/tensor_parallel/layers.py `LinearWithGradAccumulationAndAsyncCommunication`: backward
gathers the input again under the product for x, and reduces that product's result under the product for W; Megatron-LM
core/tensor_parallel/cross_entropy.py: fp32 logits, a maximum and two sums over the ranks
[Ring] Liu et al., arXiv:2310.01889: keys and values travel under the attention of the piece before.
[TE] TransformerEngine common/triton/cross_entropy.py: one pass for the softmax, one that writes the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import embedding_parameters, head_parameters
from vramcast.domain.job import Loss, Recompute
from vramcast.domain.model import Attention, Layer, Model, MoE, MultiLatentAttention, Parameter
from vramcast.parallel.layout import Layout
from vramcast.timing.composition import Number, overlapped, positive
from vramcast.timing.training.operators import POOLED, entry_matrices, exit_matrices, layer_operators, output_elements
from vramcast.timing.training.parts import BACKWARD_LAUNCH, OVERLAP_LOSS, Machine, Operator, Parts, Passes, Shape, spent

MODULES: Final[dict[str, frozenset[str]]] = {
    "core_attn": frozenset({"core"}),
    "layernorm": frozenset({"norm"}),
    "mla_up_proj": frozenset({"up_proj"}),
    "moe_act": frozenset({"gate"}),
    "mlp": frozenset({"channel", "gate"}),
    "moe": frozenset({"channel", "gate", "router"}),
    "shared_experts": frozenset({"shared"}),
}
"""Module of selective recomputation -> parts of the layer that run again."""


PER_OPERATOR: Final = ("per-operator",)
"""Selective recomputation of engines that keep single operators' outputs."""

Recomputed = tuple[Recompute, tuple[str, ...]]
"""What backward computes again; of SELECTIVE the modules, keys of MODULES."""


def layer_passes(
    layer: Layer, *, hidden: int, shape: Shape, machine: Machine, recompute: Recompute = Recompute.NONE,
    modules: tuple[str, ...] = (),
) -> Passes:
    """Forward and backward of one layer under one way to recompute it."""
    return passes_of_layer(layer, ((recompute, modules),), hidden=hidden, shape=shape, machine=machine)[0]


def passes_of_layer(
    layer: Layer, choices: Sequence[Recomputed], *, hidden: int, shape: Shape, machine: Machine
) -> list[Passes]:
    """Forward and backward of one layer under each of several ways to recompute it.

    Args:
        choices: what backward computes again
        shape: the micro-batch, which may be an array of them, and the degrees
    """
    operators = list(layer_operators(layer, hidden=hidden, shape=shape, style=machine.style))
    forward = _sum(operators, machine, backward=False)
    backward = _sum(operators, machine, backward=True)
    expert = Parts(expert=_expert(layer, hidden, shape, machine, (forward.total + backward.total) / 2))
    forward = forward.plus(_transfers(layer, hidden, shape, machine, forward)).plus(expert)
    backward = backward.plus(_transfers(layer, hidden, shape, machine, backward, backward=True)).plus(expert)
    return [Passes(forward, backward.plus(_again(operators, forward, choice, machine))) for choice in choices]


def _again(operators: list[Operator], forward: Parts, choice: Recomputed, machine: Machine) -> Parts:
    """What is computed a second time: a layer, modules, or every operator but attention and each second product
    [torchtitan distributed/activation_checkpoint.py, `_apply_op_sac`]."""
    recompute, modules = choice
    if recompute is Recompute.FULL:
        return forward
    if recompute is Recompute.NONE:
        return Parts()
    if modules == PER_OPERATOR:
        whole = _sum(operators, machine, backward=False)
        return whole._replace(products=whole.products / 2, attention=0.0)
    parts = frozenset[str]().union(*(MODULES.get(module, frozenset()) for module in modules))
    return _sum([operator for operator in operators if operator.part in parts], machine, backward=False)


def _sum(operators: list[Operator], machine: Machine, *, backward: bool) -> Parts:
    """All operators, and how long the card waits for the host where that is the slower one."""
    spent: dict[str, Number] = {"products": 0.0, "attention": 0.0, "pointwise": 0.0}
    kernels, modules = 0.0, 0
    for operator in operators:
        cause, taken = _spent(operator, machine, backward=backward)
        spent[cause] = spent[cause] + taken
        kernels += operator.backward_kernels if backward else operator.kernels
        modules += operator.weight_bytes > 0
    hosted = kernels * machine.style.launch_s * (BACKWARD_LAUNCH if backward else 1.0)
    hosted += modules * machine.style.module_s
    return Parts(**spent, launch=positive(hosted - sum(spent.values())))


def seconds(operator: Operator, machine: Machine, *, backward: bool) -> Parts:
    cause, taken = _spent(operator, machine, backward=backward)
    return Parts(**{cause: taken})


def _spent(operator: Operator, machine: Machine, *, backward: bool) -> tuple[str, Number]:
    """What an operator's seconds go to, field of `Parts`, and how many they are."""
    return spent(
        operator.kind, machine.rates, flops=operator.backward_flops if backward else operator.flops,
        num_bytes=(
            operator.backward_bytes + operator.backward_weight_bytes if backward
            else operator.bytes + operator.weight_bytes
        ),
        kernels=operator.backward_kernels if backward else operator.kernels, backward=backward,
        grouped=machine.rates.whole if machine.style.float8 else None,
    )


def _transfers(
    layer: Layer, hidden: int, shape: Shape, machine: Machine, own: Parts, *, backward: bool = False
) -> Parts:
    return Parts(
        tensor=_tensor(layer, hidden, shape, machine, own, backward=backward),
        context=_context(layer, shape, machine, own, backward=backward),
    )


def _tensor(layer: Layer, hidden: int, shape: Shape, machine: Machine, own: Parts, *, backward: bool) -> Number:
    """Every part gathers its input and reduces its output, or sums it without sequence parallelism [Megatron]."""
    if shape.tp == 1:
        return 0.0
    style, fabric = machine.style, machine.fabric
    size = shape.tokens * hidden * style.width
    routed = isinstance(layer.channel, MoE)
    parts = (layer.mixer is not None) + (layer.channel is not None and not routed)
    if isinstance(layer.channel, MoE) and layer.channel.shared_width:
        parts += 1
    if not shape.sequence_parallel:
        summed = parts * fabric.collective("all-reduce", ranks=shape.tp).seconds(size)
        return _under(summed, own.products / 2) if backward and style.tensor_overlap else summed
    gather = fabric.collective("all-gather", ranks=shape.tp).seconds(size)
    both = parts * (gather + fabric.collective("reduce-scatter", ranks=shape.tp).seconds(size))
    if style.tensor_overlap == "both":
        return _under(both + (parts * gather if backward else 0.0), own.products)
    if not backward:
        return both
    return parts * gather + (_under(both, own.products) if style.tensor_overlap else both)


def _under(transfer: Number, work: Number) -> Number:
    """What a transfer that runs under other work costs."""
    return overlapped(transfer, work, hidden=1.0, loss=OVERLAP_LOSS)


def _context(layer: Layer, shape: Shape, machine: Machine, own: Parts, *, backward: bool) -> Number:
    """Keys and values go round under attention; or heads are exchanged for positions before and after it."""
    mixer = layer.mixer
    if shape.cp == 1 or not isinstance(mixer, (Attention, MultiLatentAttention)):
        return 0.0
    query, key = _widths(mixer, shape)
    rows = shape.tokens * machine.style.width
    fabric = machine.fabric
    match shape.cp_kind:
        case "ulysses":
            route = fabric.all_to_all(ranks=shape.cp, stride=shape.tp)
            return 4 * route.latency_s + rows * 2 * (query + key) * route.s_per_byte
        case "allgather":
            route = fabric.collective("all-gather", ranks=shape.cp, stride=shape.tp)
            return (2 if backward else 1) * route.seconds(rows * shape.cp * 2 * key)
        case _:
            route = fabric.send(stride=shape.tp)
            passes = (2 if backward else 1) * (shape.cp - 1)
            return _under(passes * route.seconds(rows * 2 * key), own.attention)


def _widths(mixer: Attention | MultiLatentAttention, shape: Shape) -> tuple[float, float]:
    """Elements of a token's queries and of its keys on one rank."""
    if isinstance(mixer, Attention):
        return (mixer.num_heads * mixer.head_dim / shape.tp,
                max(1.0, mixer.num_kv_heads / shape.tp) * mixer.head_dim)
    width = mixer.num_heads * (mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim) / 2 / shape.tp
    return width, width


def _expert(layer: Layer, hidden: int, shape: Shape, machine: Machine, work: Number) -> Number:
    """Tokens to their experts and back; under tensor parallelism inside experts also to its other ranks.

    Where that overlaps it runs under a pass of another micro-batch, `work` seconds long.
    """
    if not isinstance(layer.channel, MoE):
        return 0.0
    moe, fabric = layer.channel, machine.fabric
    found: Number = 0.0
    size = shape.tokens / shape.tp * moe.top_k * (moe.latent_width or hidden) * machine.style.width
    if shape.ep > 1:
        if machine.style.dispatch:
            route = fabric.dispatch(ranks=shape.ep, stride=shape.etp, copies=moe.top_k)
        else:
            route = fabric.all_to_all(ranks=shape.ep, stride=shape.etp)
        found = found + 2 * route.seconds(size)
    if shape.etp > 1:
        found = found + 2 * fabric.collective("all-gather", ranks=shape.etp).seconds(size * shape.etp)
    return _under(found, work) if machine.style.expert_overlap else found


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
