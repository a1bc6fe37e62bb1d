"""Output projections fused with their loss.

Scripts: Liger-Kernel benchmark/scripts/benchmark_fused_linear_{cross_entropy,jsd}.py

[jsd] Liger-Kernel src/liger_kernel/ops/fused_linear_jsd.py: a loop over chunks in plain PyTorch around one kernel
"""

from __future__ import annotations

from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from truth.rows.kernels.probabilities import Distributions, jensen_shannon
from vramcast.domain.program import Category
from vramcast.operators import aten
from vramcast.operators.graph import Value
from vramcast.operators.linear import cast
from vramcast.operators.linear_loss import LinearLoss, linear_cross_entropy
from vramcast.operators.loss import Vocabulary, cross_entropy
from vramcast.units import ceil_div


def fused_linear_cross_entropy_peak(case: Case) -> int:
    """Both modules are set up, each with its weight; inputs have two dimensions."""
    spec = LinearLoss(case.size("BT"), case.size("H"), case.size("V"), case.itemsize)
    bench = Bench(case)
    bench.workspaces()
    for name in ("torch", "liger"):
        bench.weight(f"{name}.weight", spec.product_bytes)
    x = bench.leaf("x", spec.hidden_bytes)
    bench.resident("target", spec.tokens * INT64)
    loss = case.provided(huggingface=_torch, liger=_liger)(bench, x, spec)
    return peak(bench, (loss,), Iteration(retains_graph=False))


def _liger(bench: Bench, x: Value, spec: LinearLoss) -> Value:
    variant = "liger_0.4.2" if bench.case.version <= (0, 4, 2) else "liger"
    return linear_cross_entropy(bench.graph, x, spec, variant)


def _torch(bench: Bench, x: Value, spec: LinearLoss) -> Value:
    """nn.Linear, then nn.CrossEntropyLoss in the type of the logits, which a variable holds."""
    graph, logits = bench.graph, _project(bench, x, spec)
    loss = cross_entropy(graph, logits, Vocabulary(spec.tokens, spec.vocabulary, spec.itemsize), "torch")
    graph.hold(logits)
    return loss


def _project(bench: Bench, x: Value, spec: LinearLoss) -> Value:
    graph = bench.graph
    logits = graph.value("logits", spec.tokens * spec.vocabulary * spec.itemsize)
    weight_gradient = graph.tensor("weight.grad", spec.product_bytes, Category.GRADIENTS)
    return graph.call("linear", [x], [logits], saved=[x], weight_gradients=[weight_gradient])


def fused_linear_jsd_peak(case: Case) -> int:
    """Student and teacher weights are shared by both modules; the teacher's states need no gradient."""
    spec = LinearLoss(case.size("BT"), case.size("H"), case.size("V"), case.itemsize)
    bench = Bench(case)
    bench.workspaces()
    for name in ("student", "teacher"):
        bench.weight(f"{name}.weight", spec.product_bytes)
    x = bench.leaf("student", spec.hidden_bytes)
    teacher = bench.input("teacher", spec.hidden_bytes)
    loss = case.provided(torch=_jsd_torch, liger=_jsd_liger)(bench, x, teacher, spec)
    return peak(bench, (loss,), Iteration(retains_graph=False))


def _jsd_torch(bench: Bench, x: Value, teacher: Value, spec: LinearLoss) -> Value:
    """The script's `TorchLMHeadJSD`: the teacher's projection is in the graph too; its states are constants."""
    graph, elements = bench.graph, spec.tokens * spec.vocabulary
    narrow = elements * spec.itemsize
    logits = [_project(bench, value, spec) for value in (x, teacher)]
    log_probs = []
    for value in logits:
        scaled = aten.unary(graph, value, num_bytes=narrow, name="scaled")
        log_probs.append(aten.unary(graph, scaled, num_bytes=narrow, name="log_softmax", saves="output"))
    target, student = (cast(graph, value, elements=elements, to_bytes=FP32) for value in reversed(log_probs))
    loss = jensen_shannon(Distributions(bench, spec.tokens, elements * FP32, student, target))
    graph.hold(*logits, *log_probs, student, target)
    return loss


def _jsd_liger(bench: Bench, x: Value, teacher: Value, spec: LinearLoss) -> Value:
    """[jsd]: a fp32 loss for every logit; variables of the last chunk live until the next one replaces them."""
    del teacher
    graph = bench.graph
    tokens = min(spec.liger_chunk_tokens, spec.tokens)
    size = tokens * spec.vocabulary * spec.itemsize
    weight = graph.value("grad.weight", spec.product_bytes, gradient_bytes=0)
    states = graph.value("grad.student", spec.hidden_bytes, gradient_bytes=0)
    losses = graph.value("loss.elements", spec.tokens * spec.vocabulary * FP32, gradient_bytes=0)
    for value in (weight, states, losses):
        graph.call("zeros", [], [value], differentiable=False)
    held: dict[str, Value] = {}
    for _ in range(min(3, ceil_div(spec.tokens, tokens))):
        for step in ("student", "teacher", "student", "teacher", "student.prob", "teacher.prob", "softmax", "product",
                     "difference", "student"):
            value = graph.value(step, size, gradient_bytes=0)
            graph.call("chunk", [], [value], differentiable=False)
            dead = [held.pop(name) for name in (step, *_DIES_AFTER.get(step, ())) if name in held]
            held[step] = value
            graph.hold(*dead)
        graph.hold(held.pop("difference"))
    graph.hold(*held.values(), losses)
    return graph.call(
        "fused_linear_jsd", [x], [graph.value("loss", spec.itemsize)], saved=[states, weight],
        gradient_storages=[(x, states)], saved_weight_gradients=[weight],
    )


_DIES_AFTER = {"product": ("softmax",), "difference": ("product",)}
"""Operands of an expression that no variable holds, by the step that reads them last."""
