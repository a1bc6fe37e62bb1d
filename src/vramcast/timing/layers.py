"""One layer's work on one rank: products with its weights, token mixing, the pointwise rest of its tape, collectives.

Symbols:  T rows   E experts   k experts per token
Products follow from the weights themselves, so that every weight is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from vramcast.blocks.parameters import layer_parameters
from vramcast.domain.model import Attention, Layer, MoE, Parameter
from vramcast.parallel.layout import Layout
from vramcast.states.storage import format_of
from vramcast.states.weights import local_shape
from vramcast.timing.merged import FUSED
from vramcast.timing.mixing import mixing
from vramcast.timing.pointwise import pointwise
from vramcast.timing.work import Placement, Setting, Work, collective


def layer_work(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    """Everything one residual layer does in a step on one rank."""
    yield from _products(layer, setting, hidden=hidden)
    yield from mixing(layer.mixer, setting)
    yield from pointwise(layer, setting, hidden=hidden)
    yield from _collectives(layer, setting, hidden=hidden)


def met_experts(experts: int, *, top_k: int, rows: float) -> float:
    """Distinct experts that so many tokens meet, when each picks k of them at random.

    >>> round(met_experts(128, top_k=8, rows=1)), round(met_experts(128, top_k=8, rows=64))
    (8, 126)
    """
    missed: float = (1 - min(1.0, top_k / experts)) ** rows
    return experts * (1 - missed)


def _products(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    execution, placement = setting.execution, setting.placement
    parameters = [p for p in layer_parameters(layer, hidden=hidden) if len(p.shape) > 1 and p.kind != "norm"]
    paths = {parameter.path for parameter in parameters}
    for parameter in parameters:
        merged = execution.fused and FUSED.get(parameter.path) in paths
        yield _product(parameter, layer, setting, merged=merged)
    if isinstance(layer.channel, MoE) and execution.loops_experts:
        moe = layer.channel
        met = met_experts(moe.num_experts, top_k=moe.top_k, rows=setting.step.rows)
        count = met if execution.meets_experts else moe.num_experts
        looped = sum(execution.kernels_of(placement.stored_as(p)) for p in parameters if p.expert)
        yield Work("moe.loop", kernels=count * (execution.loops_experts + looped))


def _layout(layer: Layer, placement: Placement) -> Layout:
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    whole_experts = placement.ep > 1
    return Layout(tp=placement.tp, ep=placement.ep, etp=1 if whole_experts else placement.tp, kv_heads=kv_heads)


def _product(parameter: Parameter, layer: Layer, setting: Setting, *, merged: bool) -> Work:
    """y = W x for the rows of the step, on its own or in the kernel of another product that reads the same x."""
    step, placement = setting.step, setting.placement
    shape, stored = local_shape(parameter, _layout(layer, placement)), placement.stored_as(parameter)
    size: float = format_of(stored).num_bytes(shape)
    rows: float = step.rows
    in_features = shape[-1]
    out_features = prod(shape[1:-1] if parameter.expert else shape[:-1])
    if parameter.expert and isinstance(layer.channel, MoE):
        moe = layer.channel
        # every rank of an expert group sends its tokens: rows of the group x k / E on each expert
        everybody = step.rows * (placement.ep // placement.tp if placement.ep > placement.tp else 1)
        size *= met_experts(moe.num_experts, top_k=moe.top_k, rows=everybody) / moe.num_experts
        rows = everybody * moe.top_k / placement.ep
    return Work(
        parameter.path,
        flops=2.0 * rows * out_features * in_features,
        operands=stored,
        weight_bytes=size,
        activation_bytes=rows * ((0 if merged else in_features) + out_features) * placement.width,
        kernels=0.0 if merged else setting.execution.kernels_of(stored),
    )


def _collectives(layer: Layer, setting: Setting, *, hidden: int) -> Iterator[Work]:
    """One sum after each part under tensor parallelism; tokens to their experts and back under expert parallelism."""
    placement = setting.placement
    size = setting.step.rows * hidden * placement.width
    moe = layer.channel if isinstance(layer.channel, MoE) else None
    spread = moe is not None and placement.ep > placement.tp
    parts = (layer.mixer is not None) + (layer.channel is not None and not spread)
    if placement.tp > 1:
        for _ in range(parts):
            yield collective("all-reduce", size, ranks=placement.tp)
    if spread and moe is not None:
        for _ in range(2):
            yield collective("all-to-all", size * moe.top_k, ranks=placement.ep)
