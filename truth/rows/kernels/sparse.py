"""Sparsemax: Liger-Kernel benchmark/scripts/benchmark_sparsemax.py

[sort] pytorch aten/src/ATen/native/cuda/Sort.cu: rows of more than 4096 elements are sorted as (segment, index) pairs
"""

from __future__ import annotations

from typing import Final

from truth.contract import Refused
from truth.rows.kernels import operators
from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value

SORT_IN_PLACE: Final = 4096


def sparsemax_peak(case: Case) -> int:
    """fp32, graph retained.

    The runs of April 2025 have one number for both providers, that of the PyTorch code; later scripts are not modelled
    for the kernel.
    """
    if case.provider == "liger" and case.version > (0, 5, 8):
        raise Refused("sparsemax of Liger is only known from runs before its release")
    case.provided(torch=True, liger=True)
    rows, width = case.size("B") * case.size("T"), case.size("V")
    bench = Bench(case)
    x = bench.leaf("x", rows * width * case.itemsize)
    return peak(bench, (_torch(bench.graph, x, rows, width),), Iteration(gradient_in_setup=True))


def _sorted(graph: Graph, x: Value, width: int) -> tuple[Value, Value]:
    """Values and int64 indices; wide rows need pairs (twice) and a copy of the keys beside them."""
    pairs = 2 * x.num_bytes if width > SORT_IN_PLACE else 0
    keys = x.num_bytes if width > SORT_IN_PLACE else 0
    values = graph.value("sorted", x.num_bytes)
    indices = graph.value("sorted.indices", x.num_bytes // FP32 * INT64, gradient_bytes=0)
    graph.call("sort", [x], [values, indices], saved=[indices], temporaries=[
        graph.tensor("sort.pairs", pairs), graph.tensor("sort.pairs.out", pairs), graph.tensor("sort.keys", keys),
    ])
    return values, indices


def _torch(graph: Graph, x: Value, rows: int, width: int) -> Value:
    """The script's `torch_sparsemax`, whose variables live until it returns."""
    size, small = x.num_bytes, rows * FP32
    values, indices = _sorted(graph, x, width)
    cumulative = aten.unary(graph, values, num_bytes=size, name="cumsum")
    positions = graph.value("range", width * FP32, gradient_bytes=0)
    graph.call("arange", [], [positions], differentiable=False)
    product = aten.multiply(graph, positions, values, num_bytes=size, name="range*sorted")
    bound = aten.shift(graph, product, num_bytes=size, name="k_bound")
    support = graph.value("support", size // FP32, gradient_bytes=0)
    graph.call("gt", [bound, cumulative], [support], differentiable=False)
    count = graph.value("k", rows * INT64, gradient_bytes=0)
    graph.call("sum", [support], [count], differentiable=False)
    supported = aten.multiply(graph, values, support, num_bytes=size, name="sorted*support")
    total = operators.total(graph, supported, num_bytes=small, name="support_sum")
    tau = graph.call("div", [total, count], [graph.value("tau", small)], saved=[count])
    shifted = aten.subtract(graph, x, tau, num_bytes=size, name="x-tau")
    out = aten.unary(graph, shifted, num_bytes=size, name="out", saves="input")
    graph.hold(values, indices, cumulative, positions, bound, support, count, total, tau)
    return out
