"""Mixture of experts: Liger-Kernel benchmark/scripts/benchmark_fused_moe.py

Symbols:  T tokens   K experts a token   E experts   H hidden size   I intermediate size
[liger] Liger-Kernel src/liger_kernel/ops/fused_moe.py `LigerFusedMoEFunction`
[hf] transformers models/mixtral/modeling_mixtral.py: a Python loop over experts. Tokens are taken as balanced.
"""

from __future__ import annotations

from typing import Final

from truth.rows.kernels import operators
from truth.rows.kernels.harness import INT64, Bench, Case, peak
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value

INT32: Final = 4
BLOCK_TOKENS: Final = 64  # BLOCK_M_TOKEN [liger]


class _Sizes:
    def __init__(self, case: Case) -> None:
        self.tokens, self.top_k, self.experts = case.size("T"), case.size("K"), case.size("E")
        self.hidden, self.inner = case.size("H"), case.size("intermediate_dim")
        self.itemsize = case.itemsize
        self.routed = self.tokens * self.top_k
        self.states = self.tokens * self.hidden * self.itemsize
        self.up = self.experts * 2 * self.inner * self.hidden * self.itemsize
        self.down = self.experts * self.inner * self.hidden * self.itemsize


class _Inputs:
    """Setup: both weights are a leaf times a number, so that leaf and product live."""

    def __init__(self, bench: Bench, sizes: _Sizes) -> None:
        bench.workspaces()
        self.x = bench.leaf("x", sizes.states)
        self.up = _scaled(bench, "gate_up", sizes.up)
        self.down = _scaled(bench, "down", sizes.down)
        bench.resident("top_k_index", sizes.routed * INT32)
        self.weights = bench.leaf("top_k_weights", sizes.routed * sizes.itemsize)


def _scaled(bench: Bench, name: str, num_bytes: int) -> Value:
    leaf = bench.leaf(f"{name}.leaf", num_bytes)
    bench.resident(name, num_bytes)
    product = bench.graph.view(leaf, name)
    return bench.graph.call("mul", [leaf], [product])


def fused_moe_peak(case: Case) -> int:
    """One sweep over tokens, one over experts."""
    bench, sizes = Bench(case), _Sizes(case)
    inputs = _Inputs(bench, sizes)
    out = case.provided(liger=_liger, huggingface=_huggingface)(bench, sizes, inputs)
    return peak(bench, (out,))


def _liger(bench: Bench, sizes: _Sizes, inputs: _Inputs) -> Value:
    """[liger]: keeps the up-projection only; backward's buffers live until it returns."""
    graph, size = bench.graph, sizes.itemsize
    per_expert = sizes.routed // sizes.experts
    # the last tile of an expert is half full on average
    tiles = sizes.experts if per_expert < BLOCK_TOKENS // 2 else sizes.routed // BLOCK_TOKENS + sizes.experts // 2
    saved = [
        graph.value(name, num_bytes, gradient_bytes=0)
        for name, num_bytes in (
            ("pre_act", sizes.routed * 2 * sizes.inner * size), ("expert_start", (sizes.experts + 1) * INT32),
            ("gather", sizes.routed * INT32), ("scatter", sizes.routed * INT32),
            ("reverse_scatter", sizes.routed * INT32), ("tile_row", tiles * INT32), ("tile_expert", tiles * INT32),
        )
    ]
    act, wide = sizes.routed * sizes.inner * size, sizes.routed * sizes.hidden * size
    return graph.call(
        "moe", [inputs.x, inputs.up, inputs.down, inputs.weights], [graph.value("out", sizes.states)],
        saved=[inputs.x, inputs.up, inputs.down], extra=saved,
        temporaries=[
            graph.tensor("post_act", act), graph.tensor("expert_out", wide),
            graph.tensor("expert_token_count", sizes.experts * INT32),
        ],
        backward_temporaries=[
            graph.tensor("d_pre_act", 2 * act), graph.tensor("weighted_act", act), graph.tensor("dx_expanded", wide),
        ],
    )


def _huggingface(bench: Bench, sizes: _Sizes, inputs: _Inputs) -> Value:
    """[hf]: one-hot mask in int64, then every expert in turn; a slice's gradient is padded to all experts."""
    graph = bench.graph
    out = graph.value("final", sizes.states)
    graph.call("zeros", [], [out], differentiable=False)
    mask = graph.value("expert_mask", sizes.routed * sizes.experts * INT64, gradient_bytes=0)
    graph.call(
        "one_hot", [], [mask], differentiable=False, temporaries=[graph.tensor("index.int64", sizes.routed * INT64)]
    )
    left = sizes.routed
    for index in range(sizes.experts):
        tokens = left // (sizes.experts - index)
        left -= tokens
        if tokens:
            out = _expert(graph, sizes, inputs, out, tokens)
    graph.hold(mask)
    return out


def _expert(graph: Graph, sizes: _Sizes, inputs: _Inputs, final: Value, tokens: int) -> Value:
    wide, narrow = tokens * sizes.hidden * sizes.itemsize, tokens * sizes.inner * sizes.itemsize
    where = graph.value("where", tokens * 2 * INT64, gradient_bytes=0)
    graph.call("nonzero", [], [where], differentiable=False)
    chosen = graph.value("chosen", wide)
    graph.call("index", [inputs.x, where], [chosen], saved=[where])
    up_weight, down_weight = (
        graph.view(weight, f"{weight.name}.expert", gradient_bytes=weight.gradient_bytes // sizes.experts)
        for weight in (inputs.up, inputs.down)
    )
    graph.call("select", [inputs.up], [up_weight])
    gate_up = operators.matmul(graph, chosen, up_weight, num_bytes=2 * narrow, name="gate_up.out")
    gate, up = (graph.view(gate_up, name, gradient_bytes=narrow) for name in ("gate", "up"))
    graph.call("chunk", [gate_up], [gate, up])
    act = aten.unary(graph, gate, num_bytes=narrow, name="act", saves="input")
    hidden = graph.value("hidden", narrow)
    graph.call("mul", [act, up], [hidden], saved=[act, up])
    graph.call("select", [inputs.down], [down_weight])
    projected = operators.matmul(graph, hidden, down_weight, num_bytes=wide, name="down.out")
    weight = graph.value("weight", tokens * sizes.itemsize)
    graph.call("index", [inputs.weights, where], [weight], saved=[where])
    weighted = aten.multiply(graph, projected, weight, num_bytes=wide, name="weighted")
    out = graph.view(final, "final")
    graph.call("index_add", [final, weighted, where], [out], saved=[where, weighted], passes_gradient=True)
    graph.hold(where, gate_up, weighted)
    return out
