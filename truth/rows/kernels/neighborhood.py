"""Neighborhood attention: Liger-Kernel benchmark/scripts/benchmark_fused_neighborhood_attention.py

Symbols:  B batch   S sequence   H hidden size   A heads
[liger] Liger-Kernel src/liger_kernel/ops/fused_neighborhood_attention.py: masked scores and probabilities in memory
"""

from __future__ import annotations

from truth.rows.kernels import operators
from truth.rows.kernels.harness import FP32, Bench, Case, Iteration, peak
from vramcast.operators import aten
from vramcast.operators.graph import Value
from vramcast.operators.linear import Dense, Numerics, linear


class _Sizes:
    def __init__(self, case: Case) -> None:
        batch, sequence = case.size("batch_size"), case.size("seq_len")
        self.hidden = case.size("hidden_size")
        self.tokens = batch * sequence
        self.mask_elements = sequence * sequence
        self.states = self.tokens * self.hidden * case.itemsize
        self.scores = batch * case.size("num_heads") * self.mask_elements * case.itemsize
        self.itemsize = case.itemsize


def _project(bench: Bench, sizes: _Sizes, name: str, x: Value) -> Value:
    size = sizes.itemsize
    dense = Dense(sizes.hidden, sizes.hidden, bias=True, chip=bench.case.gpu.chip)
    numerics = Numerics(size, size, size, size)
    return linear(bench.graph, name, x, tokens=sizes.tokens, dense=dense, numerics=numerics)


def neighborhood_attention_peak(case: Case) -> int:
    """Both modules are set up, x and dy too; the graph is kept."""
    bench, sizes = Bench(case), _Sizes(case)
    bench.workspaces()
    x = bench.leaf("x", sizes.states)
    for module in ("liger", "torch"):
        for name in ("q", "k", "v", "out"):
            bench.weight(f"{module}.{name}.weight", sizes.hidden * sizes.hidden * sizes.itemsize)
            bench.weight(f"{module}.{name}.bias", sizes.hidden * sizes.itemsize)
    attend = case.provided(torch=_torch, liger=_liger)
    projected = [_project(bench, sizes, name, x) for name in ("q", "k", "v")]
    heads = [operators.transposed(bench.graph, value, name=f"{value.name}.heads") for value in projected]
    attended = attend(bench, sizes, heads)
    merged = operators.contiguous(bench.graph, attended, num_bytes=sizes.states, name="attention.merged")
    bench.graph.hold(*heads)
    out = _project(bench, sizes, "out", merged)
    bench.graph.hold(merged)
    return peak(bench, (out,), Iteration(gradient_in_setup=True))


def _torch(bench: Bench, sizes: _Sizes, heads: list[Value]) -> Value:
    """Scores, scale, mask, softmax, product; matmul copies its transposed operands."""
    graph = bench.graph
    query, key = (
        operators.contiguous(graph, value, num_bytes=sizes.states, name=f"{value.name}.copy") for value in heads[:2]
    )
    raw = operators.matmul(graph, query, key, num_bytes=sizes.scores, name="scores.raw")
    scaled = aten.unary(graph, raw, num_bytes=sizes.scores, name="scores.scaled")
    mask = graph.value("mask", sizes.mask_elements, gradient_bytes=0)
    inverted = graph.value("mask.inverted", sizes.mask_elements, gradient_bytes=0)
    graph.call("zeros", [], [mask], differentiable=False)
    graph.call("bitwise_not", [mask], [inverted], differentiable=False)
    masked = graph.value("scores.masked", sizes.scores)
    graph.call("masked_fill", [scaled, inverted], [masked], saved=[inverted])
    weights = operators.softmax(graph, masked, num_bytes=sizes.scores, name="attention.weights")
    value = operators.contiguous(graph, heads[2], num_bytes=sizes.states, name="v.copy")
    attended = operators.matmul(graph, weights, value, num_bytes=sizes.states, name="attended")
    graph.hold(mask, masked, weights)
    return operators.transposed(graph, attended, name="attended.heads")


def _liger(bench: Bench, sizes: _Sizes, heads: list[Value]) -> Value:
    """[liger]: contiguous copies, scores and probabilities of full size; backward needs two more of them."""
    graph = bench.graph
    copies = [
        operators.contiguous(graph, value, num_bytes=sizes.states, name=f"{value.name}.copy") for value in heads
    ]
    attended = graph.value("attended", sizes.states)
    weights = graph.value("attention.weights", sizes.scores, gradient_bytes=0)
    graph.call(
        "neighborhood_attention", copies, [attended], saved=copies, extra=[weights],
        temporaries=[
            graph.tensor("scores", sizes.scores), graph.tensor("mask", sizes.mask_elements * FP32),
        ],
        backward_temporaries=[
            graph.tensor("grad.weights", sizes.scores), graph.tensor("grad.scores", sizes.scores),
            graph.tensor("grad.attended.copy", sizes.states),
        ],
    )
    return operators.view(graph, attended, name="attended.heads")
