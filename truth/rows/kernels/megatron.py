"""Megatron call shapes: Liger-Kernel benchmark/scripts/benchmark_megatron_{rms_norm,cross_entropy,swiglu}.py

The output is summed before backward, so its gradient is one number expanded; kernels that want it contiguous copy it.
[liger] Liger-Kernel src/liger_kernel/megatron, src/liger_kernel/ops/vocab_parallel_cross_entropy.py
"""

from __future__ import annotations

from typing import Final

from truth.contract import Refused
from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from vramcast.operators import aten
from vramcast.operators.activation import Gate, gated_activation
from vramcast.operators.graph import Value
from vramcast.operators.loss import Vocabulary, cross_entropy
from vramcast.operators.norm import Norm, rms_norm

BF16: Final = 2


def _peak_of_sum(bench: Bench, y: Value, iteration: Iteration, *, copies: bool) -> int:
    """`y.sum().backward()`, y staying in its variable; `copies`: the kernel makes the expanded gradient contiguous."""
    graph = bench.graph
    held = graph.view(y, "y.variable", gradient_bytes=0)
    expanded = graph.view(y, "y.expanded")
    graph.call("expand", [y], [expanded], slices_gradient=not copies)
    loss = aten.total(graph, expanded, num_bytes=FP32, name="loss")
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
    y = rms_norm(bench.graph, x, norm, case.provided(torch="torch", megatron="torch", liger="liger_out_of_place"))
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
    variants = {"megatron-fused": "megatron_fused", "megatron-unfused": "megatron", "liger": "liger_vocab_parallel"}
    loss = cross_entropy(bench.graph, logits, spec, case.provided(**variants))
    iteration = Iteration(retains_graph=False, accumulates=False)
    return _peak_of_sum(bench, loss, iteration, copies=case.provider == "liger")


def megatron_swiglu_peak(case: Case) -> int:
    """One tensor holds gate and up, `.grad` cleared before each iteration."""
    bench = Bench(case)
    gate = Gate(case.size("S") * case.size("B") * case.size("ffn_local"), BF16)
    x = bench.leaf("x", 2 * gate.num_bytes)
    variant = case.provided(
        torch="torch", megatron="megatron", liger="liger_fused_gate_up", liger_in_place="liger",
    )
    y = gated_activation(bench.graph, x, None, gate, variant)
    iteration = Iteration(retains_graph=False, accumulates=False)
    return _peak_of_sum(bench, y, iteration, copies=case.provider.startswith("liger"))
