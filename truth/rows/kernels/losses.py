"""Losses over logits or probabilities as the benchmark scripts set them up.

Scripts: Liger-Kernel benchmark/scripts/benchmark_{cross_entropy,kl_div,jsd,tvd}.py
"""

from __future__ import annotations

from truth.rows.kernels.harness import INT64, Bench, Case, Iteration, peak
from vramcast.operators.loss import Vocabulary, cross_entropy


def cross_entropy_peak(case: Case) -> int:
    """benchmark_cross_entropy.py: fp32 logits."""
    tokens = case.size("B") * case.size("T")
    spec = Vocabulary(tokens, case.size("V"), case.itemsize)
    bench = Bench(case)
    logits = bench.leaf("logits", spec.num_bytes)
    bench.resident("target", tokens * INT64)
    loss = cross_entropy(bench.graph, logits, spec, case.provided(huggingface="torch", liger="liger"))
    return peak(bench, (loss,), Iteration(retains_graph=False))
