"""Single tensors in, single tensors out: Liger-Kernel benchmark/scripts/benchmark_{softmax,relu_squared,group_norm}.py

[group] pytorch aten/src/ATen/native/cuda/group_norm_kernel.cu `GroupNormBackwardKernelImplInternal`
"""

from __future__ import annotations

from truth.rows.kernels import operators
from truth.rows.kernels.harness import FP32, Bench, Case, Iteration, peak
from vramcast.domain.program import Category
from vramcast.operators import aten
from vramcast.operators.activation import FUSED, activation
from vramcast.operators.graph import Graph, Value


def softmax_peak(case: Case) -> int:
    """The runs of April 2025 made one row of N elements whatever M was."""
    bench = Bench(case)
    x = bench.leaf("x", case.size("N") * case.itemsize)
    out = case.provided(torch=operators.softmax, liger=_softmax_liger)(bench.graph, x, num_bytes=x.num_bytes, name="y")
    return peak(bench, (out,), Iteration(gradient_in_setup=True))


def _softmax_liger(graph: Graph, x: Value, *, num_bytes: int, name: str) -> Value:
    return aten.unary(graph, x, num_bytes=num_bytes, name=name, saves="output")


def relu_squared_peak(case: Case) -> int:
    """The runs of March 2026 made a vector of N elements whatever M was."""
    bench = Bench(case)
    elements = case.size("N")
    x = bench.leaf("x", elements * case.itemsize)
    variant = case.provided(torch="relu2", liger=FUSED)
    out = activation(bench.graph, x, elements=elements, itemsize=case.itemsize, variant=variant)
    return peak(bench, (out,))


def group_norm_peak(case: Case) -> int:
    """Every mode measures forward and backward; both modules are set up."""
    bench = Bench(case._replace(mode="full"))
    channels, batch = case.size("C"), case.size("M")
    size = batch * channels * case.size("H") * case.itemsize
    statistics = batch * (channels // case.size("channels_per_group")) * FP32
    weight = channels * FP32
    for index in range(4):
        bench.weight(f"weight.{index}", weight)
    x = bench.leaf("x", size)
    graph = bench.graph
    sums = case.provided(huggingface=3, liger=0)  # ds, db and c1: one fp32 number a sample and channel
    temporaries = [graph.tensor(f"grad.channel.{index}", batch * weight) for index in range(sums)]
    temporaries += [graph.tensor(f"grad.group.{index}", statistics) for index in range(2 if sums else 0)]
    out = graph.call(
        "group_norm", [x], [graph.value("y", size)], saved=[x],
        extra=[graph.value(name, statistics, gradient_bytes=0) for name in ("mean", "rstd")],
        weight_gradients=[graph.tensor(f"grad.{name}", weight, Category.GRADIENTS) for name in ("weight", "bias")],
        backward_temporaries=temporaries,
    )
    return peak(bench, (out,), Iteration(gradient_in_setup=True))
