"""Megatron call shapes: Liger-Kernel benchmark/scripts/benchmark_megatron_{rms_norm,cross_entropy,swiglu}.py

The output is summed before backward, so its gradient is one number expanded; kernels that want it contiguous copy it.
[megatron] Megatron-LM megatron/core/tensor_parallel/cross_entropy.py, megatron/core/fusions/fused_cross_entropy.py
[liger] Liger-Kernel src/liger_kernel/megatron, src/liger_kernel/ops/vocab_parallel_cross_entropy.py
"""

from __future__ import annotations

from functools import partial
from typing import Final

from truth.contract import Refused
from truth.rows.kernels import operators
from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from truth.rows.kernels.layers import liger_out_of_place
from vramcast.blocks.mlp import halves
from vramcast.operators import aten
from vramcast.operators.activation import activation, gated_activation
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.operators.loss import Vocabulary
from vramcast.operators.norm import Norm, rms_norm

BF16: Final = 2


def _peak_of_sum(bench: Bench, y: Value, iteration: Iteration, *, copies: bool) -> int:
    """`y.sum().backward()`, y staying in its variable; `copies`: the kernel makes the expanded gradient contiguous."""
    graph = bench.graph
    held = graph.view(y, "y.variable", gradient_bytes=0)
    expanded = graph.view(y, "y.expanded")
    graph.call("expand", [y], [expanded], slices_gradient=not copies)
    loss = operators.total(graph, expanded, num_bytes=FP32, name="loss")
    graph.outputs.append(held)
    return peak(bench, (loss,), iteration)


def megatron_rms_norm_peak(case: Case) -> int:
    """bf16 weight; `.grad`s accumulate."""
    bench = Bench(case)
    norm = Norm(
        case.size("S") * case.size("B"), case.size("H"), BF16, BF16,
        partial_sums=case.gpu.multiprocessors, chip=case.gpu.chip,
    )
    x = bench.leaf("x", norm.num_bytes)
    bench.weight("weight", norm.weight_bytes)
    fused = partial(rms_norm, variant="torch")
    y = case.provided(torch=fused, megatron=fused, liger=liger_out_of_place)(bench.graph, x, norm)
    return _peak_of_sum(bench, y, Iteration(retains_graph=False), copies=True)


def megatron_cross_entropy_peak(case: Case) -> int:
    """bf16 logits, one loss a token, `.grad` cleared before each iteration; the barrier keeps one number."""
    if case.size("TP") != 1:
        raise Refused("the benchmark is modelled for one rank")
    tokens = case.size("S") * case.size("B")
    spec = Vocabulary(tokens, case.size("V"), BF16)
    bench = Bench(case)
    logits = bench.leaf("logits", spec.num_bytes)
    bench.resident("target", tokens * INT64)
    bench.resident("barrier", FP32)
    kernels = {"megatron-fused": _megatron_fused, "megatron-unfused": _megatron_unfused, "liger": _liger_vocab_parallel}
    loss = case.provided(**kernels)(bench.graph, logits, spec)
    iteration = Iteration(retains_graph=False, accumulates=False)
    return _peak_of_sum(bench, loss, iteration, copies=case.provider == "liger")


def _megatron_unfused(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[megatron] unfused: a fp32 copy is turned into the softmax and then into the gradient, in place."""
    softmax = cast(graph, logits, elements=spec.elements, to_bytes=FP32, name="logits.fp32")
    copied = softmax is not logits
    if copied:
        graph.operators[-1].differentiable = False
        softmax.gradient_bytes = 0
    extra = _megatron_masks(graph, spec)
    return graph.call(
        "cross_entropy", [logits, softmax] if copied else [logits], [graph.value("loss", spec.row_bytes)],
        saved=[softmax], extra=extra, gradient_storages=[] if copied else [(logits, logits)],
        temporaries=[graph.tensor(f"loss.rows.{index}", spec.row_bytes) for index in range(4)],
    )


def _megatron_masks(graph: Graph, spec: Vocabulary) -> list[Value]:
    """Which targets lie outside this rank's vocabulary, and the others' indices."""
    return [
        graph.value("loss.target_mask", spec.tokens, gradient_bytes=0),
        graph.value("loss.masked_target", spec.tokens * INT64, gradient_bytes=0),
    ]


def _megatron_fused(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[megatron] fused: compiled pieces; backward copies the softmax before it writes into it, then casts."""
    softmax = graph.value("loss.softmax", spec.fp32_bytes, gradient_bytes=0)
    return graph.call(
        "cross_entropy", [logits], [graph.value("loss", spec.row_bytes)],
        extra=[softmax, *_megatron_masks(graph, spec)],
        temporaries=[graph.tensor("logits.fp32", spec.fp32_bytes)],
        backward_temporaries=[graph.tensor("loss.softmax.copy", spec.fp32_bytes)],
    )


def _liger_vocab_parallel(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """[liger] `LigerVocabParallelCEFunction`: exponentials in fp32, turned into the gradient in place, then cast."""
    return graph.call(
        "cross_entropy", [logits], [graph.value("loss", spec.row_bytes)],
        extra=[
            graph.value("loss.exp", spec.fp32_bytes, gradient_bytes=0),
            graph.value("loss.sum_exp", spec.row_bytes, gradient_bytes=0),
        ],
        temporaries=[graph.tensor(f"loss.rows.{index}", spec.row_bytes) for index in range(3)],
    )


def megatron_swiglu_peak(case: Case) -> int:
    """One tensor holds gate and up, `.grad` cleared before each iteration."""
    bench = Bench(case)
    elements = case.size("S") * case.size("B") * case.size("ffn_local")
    x = bench.leaf("x", 2 * elements * BF16)
    variant = case.provided(torch="torch", megatron="compiled", liger="compiled", liger_in_place="liger")
    if variant == "torch":
        gate, up = halves(bench.graph, x)
        act = activation(bench.graph, gate, elements=elements, itemsize=BF16)
        y = aten.multiply(bench.graph, act, up, num_bytes=gate.num_bytes, name="gated")
    else:
        y = gated_activation(bench.graph, [x], variant, "mlp")
    iteration = Iteration(retains_graph=False, accumulates=False)
    return _peak_of_sum(bench, y, iteration, copies=case.provider.startswith("liger"))
