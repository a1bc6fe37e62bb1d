"""Seconds of a step: every operator takes as long as its operations or its bytes, whichever is longer.

[roofline] Williams, Waterman and Patterson, CACM 2009: time = max(operations / rate, bytes / bandwidth).

Seconds of a step from the operators that ran in it, one by one, as the host starts them on one stream.

The rates are those of `timing.training.rates`, with which `vramcast train` times its layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from vramcast.domain.device import Gpu
from vramcast.domain.job import Precision
from vramcast.timing.kernels import Kernels, kernels_of, looked_up, relative_of, routes
from vramcast.timing.rates import (
    OF_FASTEST,
    PCIE_SHARE,
    READS,
    SHAPES,
    Beside,
    Links,
    bandwidth,
    collective_s,
    links_of,
    pcie_bytes_per_s,
    product_rate,
)
from vramcast.timing.training.parts import BACKWARD_LAUNCH, LAUNCH_S, OTHER_LAUNCH_S, Rates, rates_of, spent
from vramcast.timing.work import ROUTING, Execution, Placement, Work

CAUSES: Final = ("weights", "cache", "activations", "compute", "communication", "launch", "main_memory", "offload")
"""What a step's time goes into: reading three kinds of memory, computing, waiting for other cards, starting kernels,
reading and computing on the host, bringing from it."""

MEMORY: Final = ("weights", "cache", "activations")


class StepTime(Struct, frozen=True):
    """How long one step takes, and what it waits for."""

    seconds: float
    shares: dict[str, float]  # cause -> share of the time; they add up to 1

    @property
    def bound(self) -> str:
        """What most of the time goes into: "memory", "compute", "communication", "launch", "main_memory", "offload"."""
        groups = {name: self.shares.get(name, 0.0) for name in CAUSES if name not in MEMORY}
        groups["memory"] = sum(self.shares[name] for name in MEMORY)
        return max(groups, key=lambda name: groups[name])


class Machine(Struct, frozen=True):
    """A card's achieved rates under an engine."""

    gpu: Gpu
    execution: Execution
    bytes_per_s: float
    links: Links
    kernels: Kernels | None = None  # measured on the card or a relative
    beside: Beside | None = None  # what lies on the host

    def measured(self, work: Work) -> dict[str, float] | None:
        """Seconds of an operator whose kernel was measured, by cause; None for others."""
        if self.kernels is not None and work.name == ROUTING and routes(self.kernels, work.operands):
            return {}
        if self.kernels is None or work.sizes is None:
            return None
        if work.pattern and not (
            self.gpu.is_linked and self.links.between(work.ranks, work.pattern) is self.links.whole
        ):
            return None  # tables are of NVLink
        found = looked_up(self.kernels, work.sizes, self.gpu)
        if found is None:
            return None
        if work.pattern:
            return {"communication": found.seconds}
        moved = {"weights": work.weight_bytes, "cache": work.cache_bytes, "activations": work.activation_bytes}
        if found.computes or not work.num_bytes:
            return {"compute": found.seconds / OF_FASTEST.value}
        most = READS.get(self.gpu.arch)
        least_s = least_reading_s([(work, 1)], self.gpu) / most.value if most else 0.0
        return {cause: max(found.seconds, least_s) * size / work.num_bytes for cause, size in moved.items()}

    def product_s(self, work: Work, placement: Placement) -> float:
        """Seconds of an operator's operations at the achieved rate."""
        if not work.flops:
            return 0.0
        rate = product_rate(self.gpu, work.operands or placement.whole, placement.whole)
        assert rate is not None  # `machine_of` asked for the activations' dtype, and every format falls back on it
        share = self.execution.integer_share if rate.dtype == "int8" else 1.0
        return work.flops / (rate.flops_per_s * share * SHAPES.value)


def machine_of(gpu: Gpu, engine: str, execution: Execution, *, whole: str, node_cards: int) -> Machine | None:
    """The machine, or None where the card's bandwidth or its rate in the dtype of activations is unknown."""
    memory = bandwidth(gpu)
    if memory is None or product_rate(gpu, whole, whole) is None:
        return None
    system = relative_of(gpu)
    kernels = None if system is None else kernels_of(system, engine)
    return Machine(gpu, execution, memory[0], links_of(gpu, node_cards=node_cards), kernels)


def step_time(
    works: Iterable[tuple[Work, int]], machine: Machine, placement: Placement, *, replayed: bool, rows: int = 1,
    sequences: int = 0,
) -> StepTime:
    """The time of one forward.

    Args:
        works: what the rank does, and how often
        machine: the card under the engine
        placement: formats, for the rates
        replayed: a CUDA graph starts the kernels instead of the host
        rows: of the products, which decides where those on the host are computed
        sequences: that generate
    """
    seconds = dict.fromkeys(CAUSES, 0.0)
    kernels, beside = 0.0, machine.beside
    for work, repeats in works:
        kernels += work.kernels * repeats
        on_card = repeats * (1.0 if beside is None or beside.brings(work, rows) else 1 - beside.share(work))
        for cause, share in _operator(work, machine, placement).items():
            seconds[cause] += share * on_card
        if beside is not None:
            cause, taken = beside.seconds(work, rows)
            seconds[cause] += taken * repeats
    busy = sum(seconds.values())
    hosted = 0.0 if replayed else kernels * machine.execution.launch_s
    seconds["launch"] += machine.execution.taken_s(busy, hosted, sequences) - busy
    total = sum(seconds.values())
    return StepTime(total, {cause: value / total for cause, value in seconds.items()})


def least_reading_s(works: Iterable[tuple[Work, int]], gpu: Gpu) -> float:
    """What no forward is faster than: weights and caches by the data sheet; 0 where that is unknown."""
    read = sum((work.weight_bytes + work.cache_bytes) * repeats for work, repeats in works)
    return read / gpu.bandwidth_bytes_per_s if gpu.bandwidth_bytes_per_s else 0.0


def _operator(work: Work, machine: Machine, placement: Placement) -> dict[str, float]:
    """Seconds of one operator on the card, by cause."""
    measured = machine.measured(work)
    if measured is not None:
        return measured
    found = {"launch": work.kernels * machine.execution.kernel_s}
    if work.pattern:
        found["communication"] = collective_s(
            work.message_bytes, ranks=work.ranks, pattern=work.pattern,
            link=machine.links.between(work.ranks, work.pattern),
        )
    bandwidth_s = min(machine.bytes_per_s, work.bytes_per_s or machine.bytes_per_s)
    reading = {
        "weights": work.weight_bytes / machine.execution.share_of(work.operands) / bandwidth_s,
        "cache": work.cache_bytes / bandwidth_s,
        "activations": work.activation_bytes / bandwidth_s,
    }
    compute_s = machine.product_s(work, placement)
    return found | ({"compute": compute_s} if compute_s >= sum(reading.values()) else reading)


LAUNCH_QUEUE: Final = 1024
"""Kernels that a stream's queue takes before the host has to wait."""
ROUNDS: Final = 3
"""Steps that are run until host and card are as far apart as they stay [count]."""
OPTIMIZER: Final = "optimizer"
UNREAD: Final = "unread"
"""Kind of what computes, but nobody has read how much: it is timed by what it moves."""
PHASES: Final = ("setup", "forward", "backward", "recompute", OPTIMIZER)
PRECISIONS: Final = {
    "bf16": Precision.BF16, "fp16": Precision.FP16, "fp32": Precision.FP32, "tf32": Precision.TF32,
    "fp64": Precision.FP64, "fp8": Precision.FP8,
}
"""Dtype of a product's operands -> recipe with its rate."""


class Operation(Struct, frozen=True):
    """One call of an operator on a card: what it computes and moves, and whose it is."""

    kind: str  # "product", "attention", "pointwise", UNREAD, "transfer" from or to the host, "wait" of the host for it
    phase: str  # of PHASES
    module: str  # "" outside of all
    dtype: str = "fp32"  # of the operands, key of PRECISIONS
    flops: float = 0.0
    num_bytes: float = 0.0  # read and written
    kernel: str = "flash"  # of attention


class Timed(Struct, frozen=True):
    """A step: seconds by what they go to, and by module; both add up to the step."""

    seconds: dict[str, float]
    modules: dict[str, float]  # waiting for the host is with the module whose kernel came late
    model_flops: float  # without what recomputation repeats
    peak: float  # data sheet in the dtype that most of them are computed in [flop/s]
    sources: tuple[str, ...]  # what the rates rest on

    @property
    def step_s(self) -> float:
        return sum(self.seconds.values())


def step_of(operations: Sequence[Operation], gpu: Gpu) -> Timed | None:
    """A step that repeats; None where nothing ran, or the card's data sheet is not known."""
    flops: dict[str, float] = {}
    for one in operations:
        flops[one.dtype] = flops.get(one.dtype, 0.0) + one.flops
    if not operations or any(_rates(gpu, dtype, "flash") is None for dtype in flops):
        return None
    rates = _rates(gpu, max(flops, key=lambda dtype: flops[dtype]), "flash")
    assert rates is not None
    seconds, modules = _played(operations, cache(lambda one: _seconds(one, gpu)), _launch_s(gpu))
    counted = sum(one.flops for one in operations if one.phase != "recompute")
    return Timed(seconds, modules, counted, rates.peak, rates.sources)


def _rates(gpu: Gpu, dtype: str, kernel: str) -> Rates | None:
    return rates_of(gpu, PRECISIONS[dtype], attention=kernel)


def _launch_s(gpu: Gpu) -> dict[str, float]:
    """Phase -> host time of a kernel."""
    launch = LAUNCH_S.get(gpu.multiplies_as.split()[0], OTHER_LAUNCH_S)
    return dict.fromkeys(PHASES, launch) | {"backward": launch * BACKWARD_LAUNCH}


def _seconds(one: Operation, gpu: Gpu) -> tuple[str, float]:
    """What an operation's time on the card goes to, and how long it is."""
    if one.kind == "transfer":
        return "offload", one.num_bytes / (pcie_bytes_per_s(gpu) * PCIE_SHARE.value)
    rates = _rates(gpu, one.dtype, one.kernel)
    assert rates is not None  # `step_of` asked
    cause, taken = spent(
        one.kind, rates, flops=one.flops, num_bytes=one.num_bytes, backward=one.phase == "backward"
    )
    return OPTIMIZER if one.phase == OPTIMIZER else cause, taken


def _played(
    operations: Sequence[Operation], seconds_of: Callable[[Operation], tuple[str, float]], launch_s: dict[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the last of several equal steps, by cause and by module."""
    host = card = 0.0
    queue: deque[float] = deque(maxlen=LAUNCH_QUEUE)  # when the kernels started last begin
    for _ in range(ROUNDS):
        causes: dict[str, float] = {}
        modules: dict[str, float] = {}
        for one in operations:
            if one.kind == "wait":
                host = max(host, card)
                continue
            cause, taken = seconds_of(one)
            host += launch_s[one.phase]
            if len(queue) == LAUNCH_QUEUE:
                host = max(host, queue[0])
            idle = max(0.0, host - card)
            queue.append(card + idle)
            card += idle + taken
            causes[cause] = causes.get(cause, 0.0) + taken
            causes["launch"] = causes.get("launch", 0.0) + idle
            name = OPTIMIZER if one.phase == OPTIMIZER else one.module
            modules[name] = modules.get(name, 0.0) + idle + taken
    return causes, modules
