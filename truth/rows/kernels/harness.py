"""Liger-Kernel's benchmark harness as a program: what setup leaves allocated, one iteration, and its peak.

`_test_memory` [Liger-Kernel benchmark/scripts/utils.py] calls a function ten times, resets the peak before each call
and reports the median of `max_memory_allocated`: a steady iteration, with the gradients of the earlier ones in `.grad`.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from truth.contract import Refused
from vramcast.domain.cublas import workspace_bytes
from vramcast.domain.program import Alloc, Category, Program, Tensor, extent, live_at_end
from vramcast.operators.graph import Graph, Value
from vramcast.operators.lowering import Caller, WeightGradients, lower, lower_inference
from vramcast.operators.reduction import Chip

FP32: Final = 4
INT64: Final = 8
ITEMSIZE: Final = {"torch.float32": 4, "torch.bfloat16": 2, "torch.float16": 2}


class Gpu(NamedTuple):
    """What of a GPU changes the memory of a kernel."""

    multiprocessors: int
    capability: str
    threads: int = 2048  # of a multiprocessor

    @property
    def chip(self) -> Chip:
        """How its reductions are split."""
        return Chip(self.multiprocessors, self.threads)


GPUS: Final[dict[str, Gpu]] = {  # multiprocessors and their threads: NVIDIA architecture white papers
    "NVIDIA A100-SXM4-80GB": Gpu(108, "8.0"),
    "NVIDIA GeForce RTX 3090": Gpu(82, "8.6", 1536),
    "NVIDIA GeForce RTX 4090": Gpu(128, "8.9", 1536),
    "NVIDIA H100 80GB HBM3": Gpu(132, "9.0"),
    "NVIDIA H100 PCIe": Gpu(114, "9.0"),
    "NVIDIA B200": Gpu(148, "10.0"),
    "NVIDIA A100-SXM4-40GB": Gpu(108, "8.0"),
    "NVIDIA A100 80GB PCIe": Gpu(108, "8.0"),
    "NVIDIA L40S": Gpu(142, "8.9", 1536),
    "NVIDIA H100 NVL": Gpu(132, "9.0"),
    "NVIDIA H200": Gpu(132, "9.0"),
}


class Case(NamedTuple):
    """One row's question."""

    kernel: str
    provider: str
    mode: str  # "forward", "backward", "full"
    x_name: str
    x: str
    config: dict[str, Any]
    gpu: Gpu
    version: tuple[int, ...]  # of Liger-Kernel
    timestamp: str = ""  # of the run, for scripts that changed within a version

    def size(self, name: str) -> int:
        """An integer of the configuration, or the swept value where the sweep is over that name."""
        if name == self.x_name:
            return int(self.x)
        if self.config.get(name) is None:
            raise Refused(f"the row does not say {name}")
        return int(self.config[name])

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the row's dtype."""
        if "dtype" not in self.config:
            return FP32
        return ITEMSIZE[self.config["dtype"]]

    def provided(self, **forms: Any) -> Any:
        """The form that belongs to the row's provider.

        Raises: Refused for a provider that is not among them.
        """
        if self.provider not in forms:
            raise Refused(f"provider {self.provider} of {self.kernel} is not modelled")
        return forms[self.provider]


def case_of(row: dict[str, Any]) -> Case:
    """A row as a question.

    Raises: Refused when the GPU is not known.
    """
    if row["gpu"] not in GPUS:
        raise Refused(f"GPU {row['gpu']} is not in the table of the harness")
    return Case(
        row["kernel"], row["provider"], row["mode"] or "full", row["x_name"], row["x_value"],
        json.loads(row["config"] or "{}"), GPUS[row["gpu"]],
        tuple(int(part) for part in row["liger_version"].split(".")[:3] if part.isdigit()),
        row.get("timestamp", ""),
    )


class Bench:
    """One benchmark function: what its setup leaves allocated, and the graph that its forward records."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.graph = Graph(case.kernel, "Liger-Kernel benchmark/scripts")
        self.residents: list[Tensor] = []
        self.leaves: list[Value] = []
        self.owned: list[Value] = []

    def resident(self, name: str, num_bytes: int) -> None:
        """Memory that exists before the iteration and that nothing differentiates."""
        self.residents.append(self.graph.tensor(name, num_bytes, Category.INPUTS))

    def weight(self, name: str, num_bytes: int) -> None:
        """A parameter whose gradient an operator of the graph names."""
        self.residents.append(self.graph.tensor(name, num_bytes, Category.WEIGHTS))

    def input(self, name: str, num_bytes: int) -> Value:
        """A tensor without gradient that the graph reads."""
        value = self.graph.input(name, num_bytes, gradient_bytes=0)
        self.residents.append(value.tensor)
        self.owned.append(value)
        return value

    def leaf(self, name: str, num_bytes: int) -> Value:
        """A tensor that requires a gradient, kept in `.grad` from one iteration to the next."""
        value = self.graph.input(name, num_bytes)
        self.residents.append(value.tensor)
        self.owned.append(value)
        self.leaves.append(value)
        return value

    def made(self, name: str, num_bytes: int, leaf: Value, operator: str, *, temporaries: int = 0) -> Value:
        """`operator(leaf)` done in setup: its result lives on and backward goes through it to the leaf."""
        result = self.input(name, num_bytes)
        out = self.graph.view(result, name, gradient_bytes=num_bytes)
        return self.graph.call(
            operator, [leaf], [out], saved=[result],
            backward_temporaries=[self.graph.tensor(f"grad.{name}.{index}", num_bytes) for index in range(temporaries)],
        )

    def workspaces(self, count: int = 2) -> None:
        """cuBLAS: one handle for the thread of forward, one for that of backward."""
        for index in range(count):
            self.residents.append(
                self.graph.tensor(f"cublas.{index}", workspace_bytes(self.case.gpu.capability), Category.WORKSPACES)
            )


class Iteration(NamedTuple):
    """How the benchmark calls backward."""

    retains_graph: bool = True
    gradient_in_setup: bool = False  # the gradient of the output is made once, not in each iteration
    accumulates: bool = True  # into `.grad`; else torch.autograd.grad, or `.grad = None` before each iteration


def peak(bench: Bench, outputs: tuple[Value, ...], iteration: Iteration = Iteration()) -> int:  # noqa: B008
    """`max_memory_allocated` of a steady iteration in the row's mode [bytes]."""
    bench.graph.returns(*outputs)
    if bench.case.mode == "no-grad-forward":
        forward = lower_inference(bench.graph, hold_inputs=False)
        return extent(tuple(Alloc(tensor) for tensor in bench.residents) + forward).peak
    lowered = lower(
        bench.graph, hold_inputs=False, weight_gradients=WeightGradients.TRANSIENT,
        caller=Caller(tuple(bench.owned), iteration.accumulates, iteration.retains_graph, holds_gradients=True),
    )
    upstream = tuple(
        Alloc(bench.graph.tensor(f"upstream.{value.name}", value.gradient_bytes)) for value in outputs
    )
    return peak_of(bench, lowered.forward, upstream, lowered.backward, iteration)


def peak_of(bench: Bench, forward: Program, upstream: Program, backward: Program, iteration: Iteration) -> int:
    """The peak of programs that are already there; `upstream` allocates the gradients of the outputs [bytes]."""
    mode = bench.case.mode
    if mode not in ("forward", "backward", "full"):
        raise Refused(f"mode {mode} is not modelled")
    resident = _residents(bench, iteration)
    if iteration.gradient_in_setup:
        resident, upstream = resident + upstream, ()
    if mode == "forward":
        return extent(resident + forward).peak
    if mode == "full":
        return extent(resident + forward + upstream + backward).peak
    kept = extent(resident + forward + upstream).net
    return kept + extent(backward).peak


def _residents(bench: Bench, iteration: Iteration) -> Program:
    """Setup, and the gradients that earlier iterations left."""
    tensors = list(bench.residents)
    if bench.case.mode != "forward" and iteration.accumulates:
        tensors += _accumulated(bench, iteration)
    return tuple(Alloc(tensor) for tensor in tensors)


def _accumulated(bench: Bench, iteration: Iteration) -> list[Tensor]:
    """`.grad` of leaves and weights.

    AccumulateGrad takes the first gradient itself when nobody else holds it, so that a gradient written over its
    leaf costs nothing; with a retained graph the saved tensor holds it and it is copied
    [pytorch torch/csrc/autograd/functions/accumulate_grad.h].
    """
    found: list[Tensor] = []
    operators = bench.graph.operators
    in_place = {storage.storage for operator in operators for _, storage in operator.gradient_storages}
    for leaf in bench.leaves:
        if leaf not in in_place or iteration.retains_graph:
            found.append(bench.graph.tensor(f"{leaf.name}.grad", leaf.gradient_bytes, Category.GRADIENTS))
    for operator in operators:
        found += operator.weight_gradients
        found += [value.tensor for value in operator.saved_weight_gradients]
    return found


def left_after(bench: Bench) -> dict[str, int]:
    """What forward leaves alive, by name: to look into a prediction [bytes]."""
    lowered = lower(bench.graph, hold_inputs=False, caller=Caller(tuple(bench.owned)))
    return {tensor.name: count * tensor.block_bytes for tensor, count in live_at_end(lowered.forward).items()}
