"""GRPO and GSPO fused with the output projection: Liger-Kernel benchmark/scripts/benchmark_grpo_loss.py

[torch] Liger-Kernel test/chunked_loss/test_grpo_loss.py `TorchLMHeadGRPO`
[liger] Liger-Kernel src/liger_kernel/chunked_loss/fused_linear_ppo.py: one compiled call a sequence
"""

from __future__ import annotations

from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from truth.rows.kernels.preference import Pairs
from vramcast.operators import aten
from vramcast.operators.graph import Value
from vramcast.operators.linear import Dense, Numerics, linear


def grpo_peak(case: Case) -> int:
    """Both modules are set up, each with a trained and a reference projection."""
    sizes = Pairs(case.size("B"), case.size("T"), case.size("H"), case.size("V"), case.itemsize)
    bench = Bench(case)
    bench.workspaces()
    for name in ("torch", "torch.ref", "liger", "liger.ref"):
        bench.weight(f"{name}.weight", sizes.weight)
    states = sizes.rows * sizes.hidden * sizes.itemsize
    x = bench.leaf("x", states)
    bench.resident("ref_input", states)
    bench.resident("selected_token_ids", sizes.rows * INT64)
    bench.resident("attention_mask", sizes.rows * FP32)
    bench.resident("advantages", sizes.sequences * sizes.itemsize)
    loss = case.provided(torch=_torch, liger=_liger)(bench, x, sizes)
    return peak(bench, (loss,), Iteration(retains_graph=False))


def _torch(bench: Bench, x: Value, sizes: Pairs) -> Value:
    """[torch]: logits, log-probabilities in fp32, then the same of the reference, all held by variables."""
    graph, size = bench.graph, sizes.itemsize
    narrow = sizes.rows * sizes.vocabulary * size
    wide = narrow // size * FP32
    dense, numerics = Dense(sizes.vocabulary, sizes.hidden), Numerics(size, size, size, size)
    logits = linear(graph, "logits", x, tokens=sizes.rows, dense=dense, numerics=numerics)
    upcast = aten.unary(graph, logits, num_bytes=wide, name="logits.fp32")
    log_probs = aten.unary(graph, upcast, num_bytes=wide, name="log_probs", saves="output")
    picked = graph.value("per_token_logps", sizes.rows * FP32)
    graph.call("gather", [log_probs], [picked], saved=[log_probs])
    reference, reference32, reference_probs = (
        graph.value(name, num_bytes, gradient_bytes=0)
        for name, num_bytes in (("ref.logits", narrow), ("ref.fp32", wide), ("ref.log_probs", wide))
    )
    graph.call("linear", [], [reference], differentiable=False)
    graph.call("cast", [reference], [reference32], differentiable=False)
    graph.call("log_softmax", [reference32], [reference_probs], differentiable=False)
    loss = graph.call("grpo", [picked], [graph.value("loss", FP32)])
    graph.hold(logits, log_probs, reference, reference_probs)
    return loss


def _liger(bench: Bench, x: Value, sizes: Pairs) -> Value:
    """[liger]: the largest moment of a compiled call holds the logits' gradient and the weight's."""
    graph = bench.graph
    logits, chunk = sizes.chunk_logits // 2, sizes.chunk // 2
    weight = graph.value("grad.weight", sizes.weight, gradient_bytes=0)
    graph.call("zeros", [], [weight], differentiable=False)
    gradients: list[Value] = []
    for index in range(sizes.sequences):
        gradient = graph.value(f"grad.x.{index}", chunk, gradient_bytes=0)
        graph.call("linear", [], [gradient], differentiable=False, temporaries=[
            graph.tensor("grad.logits", logits), graph.tensor("grad.weight.chunk", sizes.weight),
        ])
        gradients.append(gradient)
    whole = graph.value("grad.x.all", chunk * sizes.sequences, gradient_bytes=0)
    graph.call("cat", gradients, [whole], differentiable=False)
    return graph.call(
        "grpo", [x], [graph.value("loss", FP32)], saved=[whole, weight], gradient_storages=[(x, whole)],
        saved_weight_gradients=[weight],
    )
