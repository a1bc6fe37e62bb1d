"""Mixture of experts as transformers runs it: tokens sorted by expert, all experts' rows in one grouped product.

Symbols:  T tokens   E experts   k experts per token   F expert width
[HF] transformers models/mixtral/modeling_mixtral.py `MixtralSparseMoeBlock`, integrations/moe.py grouped experts
Balanced load: every expert sees T k / E rows, so all together see T k.
"""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.blocks import parts
from vramcast.blocks.dispatched import routed_experts
from vramcast.blocks.mlp import mlp_block
from vramcast.blocks.projection import project
from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import MoE
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.units import ceil_div

FP32 = 4


def moe_block(graph: Graph, x: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Router, gathered rows, experts, weighted sum, shared experts.

    Args:
        graph: the block under construction
        x: normed states (T, H)
        spec: experts
        sizes: local sizes and implementations
    """
    tokens, width = sizes.tokens, spec.latent_width or sizes.hidden
    routing = _router(graph, x, spec=spec, sizes=sizes)
    states = x
    if spec.latent_width:
        states = project(graph, "moe.latent_in", x, tokens=tokens, shape=(width, sizes.hidden), sizes=sizes)
    if sizes.dispatch is not None:
        total = routed_experts(graph, states, routing, spec=spec, sizes=sizes, dispatch=sizes.dispatch)
    elif sizes.expert_loop:
        total = _one_by_one(graph, states, routing, spec=spec, sizes=sizes, width=width)
    else:
        total = _grouped(graph, states, routing, spec=spec, sizes=sizes, width=width)
    if spec.latent_width:
        total = project(graph, "moe.latent_out", total, tokens=tokens, shape=(sizes.hidden, width), sizes=sizes)
    if spec.shared_width:
        total = _shared(graph, x, total, spec=spec, sizes=sizes)
    graph.hold(x)
    return total


def _grouped(graph: Graph, states: Value, routing: Value, *, spec: MoE, sizes: Sizes, width: int) -> Value:
    """All experts' rows in one grouped product."""
    tokens = sizes.tokens
    rows = tokens * spec.top_k
    size = rows * width * (states.num_bytes // (tokens * width))
    gathered = graph.value("moe.gathered", size)
    index = graph.value("moe.order", rows * 8, gradient_bytes=0)
    graph.call("index", [states], [gathered], extra=[index])
    out = mlp_block(
        graph, gathered, spec=spec.expert, sizes=sizes, tokens=rows, owner="moe.experts", width=width,
        copies=spec.num_experts,
    )
    weighted = aten.multiply(graph, out, routing, num_bytes=out.num_bytes, name="moe.weighted")
    total = graph.value("moe.combined", out.num_bytes // spec.top_k)
    graph.call("index_add", [weighted], [total])
    return total


def _one_by_one(graph: Graph, states: Value, routing: Value, *, spec: MoE, sizes: Sizes, width: int) -> Value:
    """A loop over experts, each with its share of the rows: one expert's activations are alive at a time.

    The mask of chosen experts has eight bytes for every token, choice and expert (`one_hot`).
    """
    tokens, element = sizes.tokens, states.num_bytes // (sizes.tokens * width)
    mask = graph.value("moe.expert_mask", tokens * spec.top_k * spec.num_experts * 8, gradient_bytes=0)
    graph.call("one_hot", [routing], [mask], differentiable=False)
    total = graph.value("moe.combined", tokens * width * element)
    graph.call("zeros", [], [total])
    rows = max(1, ceil_div(tokens * spec.top_k, spec.num_experts))
    gathered = graph.value("moe.gathered", rows * width * element)
    graph.call("index", [states], [gathered])
    out = mlp_block(
        graph, gathered, spec=spec.expert, sizes=sizes, tokens=rows, owner="moe.experts", width=width
    )
    weighted = aten.multiply(graph, out, routing, num_bytes=out.num_bytes, name="moe.weighted")
    added = graph.view(total, "moe.combined.added")
    graph.call("index_add", [weighted, total], [added])
    graph.hold(mask)
    return added


def _router(graph: Graph, x: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Logits, fp32 softmax, the k largest."""
    tokens, shape = sizes.tokens, (spec.num_experts, sizes.hidden)
    if sizes.dispatch is not None and sizes.dispatch.fp32_gate:
        x = cast(graph, x, elements=tokens * sizes.hidden, to_bytes=FP32, name="moe.router_input")
    logits = project(graph, "moe.router", x, tokens=tokens, shape=shape, sizes=sizes, bias=spec.router_bias)
    size = tokens * spec.num_experts * FP32
    scores = aten.unary(graph, logits, num_bytes=size, name="moe.scores", saves="output")
    top = graph.value("moe.top_scores", tokens * spec.top_k * sizes.numerics.compute)
    index = graph.value("moe.top_index", tokens * spec.top_k * 8, gradient_bytes=0)
    return graph.call("topk", [scores], [top], extra=[index])


def _shared(graph: Graph, x: Value, total: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Experts that every token meets, behind a gate where the family has one."""
    mlp = replace(spec.expert, width=spec.shared_width)
    out = mlp_block(graph, x, spec=mlp, sizes=sizes, tokens=sizes.tokens, owner="moe.shared")
    if spec.shared_gate:
        gate = project(graph, "moe.shared_gate", x, tokens=sizes.tokens, shape=(1, sizes.hidden), sizes=sizes)
        opened = aten.unary(graph, gate, num_bytes=gate.num_bytes, name="moe.shared_gate.sigmoid", saves="output")
        out = aten.multiply(graph, out, opened, num_bytes=out.num_bytes, name="moe.shared_gated")
    return parts.add(graph, "moe.total", total, out)
