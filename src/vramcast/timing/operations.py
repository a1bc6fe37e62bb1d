"""Seconds of a step from the operators that ran in it, one by one, as the host starts them on one stream.

The rates are those of `timing.training.rates`, with which `vramcast train` times its layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.job import Precision
from vramcast.timing.links import pcie_bytes_per_s
from vramcast.timing.rates import PCIE_SHARE
from vramcast.timing.training.rates import BACKWARD_LAUNCH, LAUNCH_S, OTHER_LAUNCH_S, Rates, rates_of, spent

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


class Operation(NamedTuple):
    """One call of an operator on a card: what it computes and moves, and whose it is."""

    kind: str  # "product", "attention", "pointwise", UNREAD, "transfer" from or to the host, "wait" of the host for it
    phase: str  # of PHASES
    module: str  # "" outside of all
    dtype: str = "fp32"  # of the operands, key of PRECISIONS
    flops: float = 0.0
    num_bytes: float = 0.0  # read and written
    kernel: str = "flash"  # of attention


class Timed(NamedTuple):
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
