"""Distances between distributions: Liger-Kernel benchmark/scripts/benchmark_{kl_div,jsd,tvd}.py

The student's input is softmax or log_softmax of a leaf; backward, with the graph retained, goes through it each time.
[kl] pytorch aten/src/ATen/native/Loss.cpp `kl_div`
[liger] Liger-Kernel src/liger_kernel/ops/kl_div.py, jsd.py, tvd.py
"""

from __future__ import annotations

from typing import NamedTuple

from truth.rows.kernels import operators
from truth.rows.kernels.harness import FP32, Bench, Case, peak
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.reduction import Kernel, Strided, launch, reduction
from vramcast.units import round_up


class Distributions(NamedTuple):
    """Student and target of one loss, in fp32."""

    bench: Bench
    rows: int
    size: int  # bytes of one distribution
    student: Value
    target: Value

    @property
    def graph(self) -> Graph:
        """The benchmark's graph."""
        return self.bench.graph

    def row_bytes(self) -> int:
        """One fp32 number a row."""
        return self.rows * FP32


def _setup(case: Case, operator: str) -> Distributions:
    if case.x_name == "BT":
        rows, vocabulary = case.size("BT"), case.size("vocab_size")
    else:
        rows, vocabulary = case.size("B") * case.size("T"), case.size("V")
    size = rows * vocabulary * FP32
    bench = Bench(case)
    leaf = bench.leaf("leaf", size)
    student = bench.made("student", size, leaf, operator, temporaries=1 if operator == "softmax" else 0)
    return Distributions(bench, rows, size, student, bench.input("target", size))


def random_gradient(case: Case) -> bool:
    """Since Liger 0.8.0 the scripts pass a random gradient to the loss, so that kernels have to scale theirs."""
    return case.version >= (0, 8, 0)


def _mean(setup: Distributions, x: Value, name: str) -> Value:
    """`x.sum() / rows`."""
    total = operators.total(setup.graph, x, num_bytes=FP32, name=f"{name}.sum")
    return aten.unary(setup.graph, total, num_bytes=FP32, name=name)


def kl_div_peak(case: Case) -> int:
    """benchmark_kl_div.py: probabilities as target."""
    setup = _setup(case, "log_softmax")
    loss = case.provided(torch=_kl_torch, liger=_kl_liger)(setup)
    return peak(setup.bench, (loss,))


def _kl_torch(setup: Distributions) -> Value:
    """[kl]: xlogy(target, target) - target * input."""
    graph, size = setup.graph, setup.size
    entropy = aten.unary(graph, setup.target, num_bytes=size, name="xlogy")
    cross = aten.multiply(graph, setup.target, setup.student, num_bytes=size, name="target_input")
    return _mean(setup, aten.subtract(graph, entropy, cross, num_bytes=size, name="pointwise"), "loss")


def _kl_liger(setup: Distributions) -> Value:
    """[liger]: the gradient is written over the input, then divided into a new tensor."""
    return setup.graph.call(
        "kl_div", [setup.student], [setup.graph.value("loss", FP32)], saved=[setup.student, setup.target],
        temporaries=[setup.graph.tensor("rows", setup.row_bytes())],
        backward_temporaries=[
            setup.graph.tensor("grad.scaled", setup.size if random_gradient(setup.bench.case) else 0)
        ],
    )


def jsd_peak(case: Case) -> int:
    """benchmark_jsd.py: log-probabilities on both sides, beta 1/2."""
    setup = _setup(case, "log_softmax")
    loss = case.provided(torch=jensen_shannon, liger=_jsd_liger)(setup)
    return peak(setup.bench, (loss,))


def _kl_log_target(setup: Distributions, log_mean: Value, target: Value, name: str) -> Value:
    """[kl]: exp(target) * (target - input)."""
    graph, size = setup.graph, setup.size
    exp = aten.unary(graph, target, num_bytes=size, name=f"{name}.exp", saves="output")
    difference = aten.subtract(graph, target, log_mean, num_bytes=size, name=f"{name}.difference")
    loss = _mean(setup, aten.multiply(graph, exp, difference, num_bytes=size, name=f"{name}.pointwise"), name)
    graph.hold(log_mean)  # the caller's argument
    return loss


def jensen_shannon(setup: Distributions) -> Value:
    """The script's `TorchJSD`: two KL divergences to the mean distribution."""
    graph, size = setup.graph, setup.size
    p = aten.unary(graph, setup.target, num_bytes=size, name="exp.p", saves="output")
    q = aten.unary(graph, setup.student, num_bytes=size, name="exp.q", saves="output")
    mean = graph.value("mean", size)
    graph.call("lerp", [p, q], [mean])
    sides = []
    for name, target in (("kl.p", setup.target), ("kl.q", setup.student)):
        log_mean = aten.unary(graph, mean, num_bytes=size, name=f"{name}.log", saves="input")
        kl = _kl_log_target(setup, log_mean, target, name)
        sides.append(aten.unary(graph, kl, num_bytes=FP32, name=f"{name}.weighted"))
    graph.hold(mean)
    return aten.add(graph, *sides, num_bytes=FP32, name="loss")


def _jsd_liger(setup: Distributions) -> Value:
    """[liger]: loss and gradient of every element in forward; the gradient is saved."""
    graph = setup.graph
    gradient = graph.value("grad.saved", setup.size, gradient_bytes=0)
    graph.call("empty", [], [gradient], differentiable=False)
    scaled = random_gradient(setup.bench.case)
    walk = reduction(Strided((setup.size // FP32,), (1,), FP32), (0,), FP32)
    shared = launch(walk, Kernel(FP32), setup.bench.case.gpu.chip)
    buffer = 0 if shared is None else round_up(shared.buffer_bytes, 512) + shared.semaphore_bytes
    return graph.call(
        "jsd", [setup.student], [graph.value("loss", FP32)], saved=[gradient],
        gradient_storages=[] if scaled else [(setup.student, gradient)],
        temporaries=[graph.tensor("loss.elements", setup.size), graph.tensor("loss.buffer", buffer)],
    )


def tvd_peak(case: Case) -> int:
    """benchmark_tvd.py: probabilities on both sides."""
    setup = _setup(case, "softmax")
    loss = case.provided(torch=_tvd_torch, liger=_tvd_liger)(setup)
    return peak(setup.bench, (loss,))


def _tvd_torch(setup: Distributions) -> Value:
    """abs(p - q) / 2; the gradient of abs makes the sign first."""
    graph, size = setup.graph, setup.size
    difference = aten.subtract(graph, setup.student, setup.target, num_bytes=size, name="difference")
    absolute = aten.unary(graph, difference, num_bytes=size, name="abs", saves="input", temporaries=1)
    return _mean(setup, aten.unary(graph, absolute, num_bytes=size, name="half"), "loss")


def _tvd_liger(setup: Distributions) -> Value:
    """[liger]: the gradient is made in forward and divided into the tensor that is saved."""
    graph = setup.graph
    gradient = graph.value("grad.saved", setup.size, gradient_bytes=0)
    graph.call(
        "tvd_forward", [], [gradient], differentiable=False,
        temporaries=[graph.tensor("grad", setup.size), graph.tensor("rows", setup.row_bytes())],
    )
    return graph.call(
        "tvd", [setup.student], [graph.value("loss", FP32)], saved=[gradient],
        gradient_storages=[] if random_gradient(setup.bench.case) else [(setup.student, gradient)],
    )
