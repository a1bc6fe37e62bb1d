"""Seconds of one residual layer for one micro-batch: the atom that steps are made of.

Stable: `layer_passes(layer, hidden=, shape=, machine=, recompute=, modules=)`.

[Megatron] Megatron-LM core/tensor_parallel/layers.py `LinearWithGradAccumulationAndAsyncCommunication`: backward
gathers the input again under the product for x, and reduces that product's result under the product for W.
[Ring] Liu et al., arXiv:2310.01889: keys and values travel under the attention of the piece before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramcast.domain.job import Recompute
from vramcast.domain.model import Attention, Layer, MoE, MultiLatentAttention
from vramcast.timing.composition import Number, larger, overlapped, positive
from vramcast.timing.training.operators import layer_operators
from vramcast.timing.training.parts import Machine, Operator, Parts, Passes, Shape
from vramcast.timing.training.rates import DENSE_TRAFFIC, GROUPED_TRAFFIC, KERNEL_S, OVERLAP_LOSS

BACKWARD_LAUNCH: Final = 0.5
"""Host time of a kernel that autograd's C++ starts, relative to one that Python starts."""

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
        layer: its parts
        choices: what backward computes again
        hidden: H
        shape: the micro-batch, which may be an array of them, and the degrees
        machine: card, links, engine
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
    """One operator on the card."""
    cause, taken = _spent(operator, machine, backward=backward)
    return Parts(**{cause: taken})


def _spent(operator: Operator, machine: Machine, *, backward: bool) -> tuple[str, Number]:
    """What an operator's seconds go to, field of `Parts`, and how many they are."""
    rates = machine.rates
    flops = operator.backward_flops if backward else operator.flops
    num_bytes = (
        operator.backward_bytes + operator.backward_weight_bytes if backward else operator.bytes + operator.weight_bytes
    )
    moved = num_bytes / rates.bytes_per_s
    start = KERNEL_S * (operator.backward_kernels if backward else operator.kernels)
    match operator.kind:
        case "product":
            return "products", larger(moved, flops / rates.products + DENSE_TRAFFIC * moved) + start
        case "grouped":
            rate = rates.whole if machine.style.float8 else rates.products
            return "products", flops / rate + GROUPED_TRAFFIC * moved + start
        case "scores":
            return "attention", flops / rates.whole + moved + start
        case "attention":
            rate = rates.attention_backward if backward else rates.attention_forward
            return "attention", larger(moved, flops / rate) + start
        case _:
            return "pointwise", moved + start


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
