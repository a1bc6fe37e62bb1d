"""Output projections fused with their loss: Liger-Kernel benchmark/scripts/benchmark_fused_linear_cross_entropy.py"""

from __future__ import annotations

from truth.rows.kernels.harness import INT64, Bench, Case, Iteration, peak
from vramcast.domain.program import Category
from vramcast.operators.graph import Value
from vramcast.operators.loss import LinearLoss, Vocabulary, cross_entropy, linear_cross_entropy


def fused_linear_cross_entropy_peak(case: Case) -> int:
    """Both modules are set up, each with its weight; inputs have two dimensions."""
    spec = LinearLoss(case.size("BT"), case.size("H"), case.size("V"), case.itemsize)
    bench = Bench(case)
    bench.workspaces()
    for name in ("torch", "liger"):
        bench.weight(f"{name}.weight", spec.weight_bytes)
    x = bench.leaf("x", spec.hidden_bytes)
    bench.resident("target", spec.tokens * INT64)
    loss = case.provided(huggingface=_torch, liger=_liger)(bench, x, spec)
    return peak(bench, (loss,), Iteration(retains_graph=False))


def _liger(bench: Bench, x: Value, spec: LinearLoss) -> Value:
    variant = "liger_0.4.2" if bench.case.version <= (0, 4, 2) else "liger"
    return linear_cross_entropy(bench.graph, x, spec, variant)


def _torch(bench: Bench, x: Value, spec: LinearLoss) -> Value:
    """nn.Linear, then nn.CrossEntropyLoss in the type of the logits, which a variable holds."""
    graph = bench.graph
    logits = graph.value("logits", spec.tokens * spec.vocabulary * spec.itemsize)
    weight_gradient = graph.tensor("weight.grad", spec.weight_bytes, Category.GRADIENTS)
    graph.call("linear", [x], [logits], saved=[x], weight_gradients=[weight_gradient])
    loss = cross_entropy(graph, logits, Vocabulary(spec.tokens, spec.vocabulary, spec.itemsize), "torch")
    graph.hold(logits)
    return loss
