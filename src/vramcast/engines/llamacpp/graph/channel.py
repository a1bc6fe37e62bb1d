"""Feed-forward blocks and experts.

[ffn] ggml-org/llama.cpp src/llama-graph.cpp `build_ffn`, `build_moe_ffn`. [ik] ikawrakow/ik_llama.cpp src/llama.cpp
`llm_build_ffn`, `llm_build_moe_ffn`.
"""

from __future__ import annotations

from vramcast.domain.model import MLP, MoE
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.llamacpp.graph.context import Build


def feed_forward(build: Build, mlp: MLP, x: Tensor, *, layer: int, suffix: str = "") -> Tensor:
    """up, gate, activation, down."""
    up = build.linear(f"ffn_up{suffix}", x, mlp.width, layer=layer, bias=mlp.bias)
    if mlp.gated:
        gate = build.linear(f"ffn_gate{suffix}", x, mlp.width, layer=layer, bias=mlp.bias)
        inner = build.gated(gate, up, mlp.activation)
    else:
        inner = ops.like("unary", up)
    return build.linear(f"ffn_down{suffix}", inner, build.model.hidden, layer=layer, bias=mlp.bias)


def experts(build: Build, moe: MoE, x: Tensor, *, layer: int) -> Tensor:
    """Routed experts, shared ones added."""
    routed = _routed(build, moe, x, layer)
    if not moe.shared_width:
        return routed
    shared_mlp = MLP(
        width=moe.shared_width, gated=moe.expert.gated, activation=moe.expert.activation, bias=moe.expert.bias
    )
    shared = feed_forward(build, shared_mlp, x, layer=layer, suffix="_shexp")
    if moe.shared_gate:
        gate = ops.like("unary", build.linear("ffn_gate_inp_shexp", x, 1, layer=layer))
        shared = ops.like("mul", shared, gate)
    return build.add(routed, shared)


def _routed(build: Build, moe: MoE, x: Tensor, layer: int) -> Tensor:
    settings, tokens = build.settings, x.ne[1]
    probabilities, scores = _probabilities(build, moe, x, layer)
    ids = ops.top_k(scores, moe.top_k)
    weights = ops.get_rows(ops.reshape(probabilities, 1, moe.num_experts, tokens), ids)
    weights = _normed(build, weights, moe.top_k, tokens)
    if moe.score_bias:  # such routers scale the weights too
        weights = ops.like("scale", weights)
    if settings.has("early weights"):
        build.expand(weights)
    if moe.latent_width:
        x = build.linear("ffn_latent_down", x, moe.latent_width, layer=layer)
    width = x.ne[0]
    inner = _inner(build, moe, ops.reshape(x, width, 1, tokens), ids, layer)
    down = build.weight("ffn_down_exps.weight", layer, moe.expert.width, width, moe.num_experts)
    each = ops.mul_mat_id(down, inner, ids)
    if moe.expert.bias:
        each = ops.like("add_id", each, build.weight("ffn_down_exps.bias", layer, width, moe.num_experts), ids)
    summed = _summed(build, ops.like("mul", each, weights), moe.top_k, tokens)
    return build.linear("ffn_latent_up", summed, build.model.hidden, layer=layer) if moe.latent_width else summed


def _probabilities(build: Build, moe: MoE, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """What experts are weighted by, and what they are chosen by."""
    logits = build.linear("ffn_gate_inp", x, moe.num_experts, layer=layer, bias=moe.router_bias)
    if not moe.score_bias:
        probabilities = logits if moe.router_bias else ops.like("soft_max", logits)
        return probabilities, probabilities
    probabilities = ops.like("unary", logits)
    return probabilities, build.add(probabilities, build.weight("exp_probs_b.bias", layer, moe.num_experts))


def _normed(build: Build, weights: Tensor, top_k: int, tokens: int) -> Tensor:
    flat = ops.reshape(weights, top_k, tokens)
    total = ops.sum_rows(flat)
    if build.settings.has("clamped weights"):
        total = ops.like("clamp", total)
    return ops.reshape(ops.like("div", flat, total), 1, top_k, tokens)


def _inner(build: Build, moe: MoE, x: Tensor, ids: Tensor, layer: int) -> Tensor:
    """Activated products of the chosen experts: (F, k, tokens)."""
    expert, count, width = moe.expert, moe.num_experts, x.ne[0]
    up = build.weight("ffn_up_exps.weight", layer, width, expert.width, count)
    if not expert.gated:
        return ops.like("unary", ops.mul_mat_id(up, x, ids))
    gate = build.weight("ffn_gate_exps.weight", layer, width, expert.width, count)
    if build.settings.fused_experts:
        return ops.moe_up_gate(up, gate, x, ids)
    raised, gated = ops.mul_mat_id(up, x, ids), ops.mul_mat_id(gate, x, ids)
    if expert.bias:
        raised = ops.like("add_id", raised, build.weight("ffn_up_exps.bias", layer, expert.width, count), ids)
        gated = ops.like("add_id", gated, build.weight("ffn_gate_exps.bias", layer, expert.width, count), ids)
    return build.gated(gated, raised, expert.activation)


def _summed(build: Build, each: Tensor, top_k: int, tokens: int) -> Tensor:
    """The sum over the chosen experts."""
    settings = build.settings

    def part() -> Tensor:
        return ops.view(each, each.ne[0], tokens, steps=(each.nb[2],))

    if settings.has("ordered experts"):
        build.expand(each)
    if top_k == 1:
        return ops.cont(part())
    if settings.fork and top_k > 2:
        first = part()
        return ops.sized("multi_add", "f32", (each.ne[0], tokens), first)
    parts = [part() for _ in range(top_k)]
    if settings.has("ordered experts"):
        build.expand(*parts)
    total = parts[0]
    for one in parts[1:]:
        total = build.add(total, one)
        if settings.has("ordered experts"):
            build.expand(total)
    return total
