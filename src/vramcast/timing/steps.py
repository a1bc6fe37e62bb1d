"""Seconds of a step by what is in it: sequences that generate, their context, and chunks of prompts.

Products have one row for each token of both; attention is worked out for those that generate and for every chunk. What
`timing.forward` says of a step is taken at points a quarter apart and is interpolated between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from vramcast.domain.model import Layer, Model, Run
from vramcast.timing.forward import forward_work, mixing
from vramcast.timing.roofline import Machine, step_time
from vramcast.timing.work import Placement, Setting, Step, Work

TAIL = ("head", "sampler")
MIXING = ("attention.cache", "attention.scores", "indexer.scores", "scan")


def points(most: int) -> list[int]:
    """From 0 past a number, a quarter apart.

    >>> points(10)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    """
    found = [0, 1]
    while found[-1] < most:
        found.append(max(found[-1] + 1, found[-1] * 5 // 4))
    return found


class Surface:
    """A function of two numbers, taken at points and interpolated."""

    def __init__(self, function: Callable[[int, int], float], most: tuple[int, int]) -> None:
        self.function = function
        self.axes = points(most[0]), points(most[1])
        self.taken: dict[tuple[int, int], float] = {}
        self.rows: dict[int, dict[int, float]] = {}  # first number -> place on the second axis -> value

    def __call__(self, one: int, other: float) -> float:
        axis = self.axes[1]
        low = min(bisect_right(axis, other), len(axis) - 1) - 1
        row = self.rows.get(one)
        if row is None:
            row = self.rows[one] = {}
        if low not in row:
            row[low] = self._between(one, axis[low])
        if low + 1 not in row:
            row[low + 1] = self._between(one, axis[low + 1])
        below = row[low]
        return below + (row[low + 1] - below) * (other - axis[low]) / (axis[low + 1] - axis[low])

    def _between(self, one: int, other: int) -> float:
        axis = self.axes[0]
        low = min(bisect_right(axis, one), len(axis) - 1) - 1
        below, above = self._taken(axis[low], other), self._taken(axis[low + 1], other)
        return below + (above - below) * (one - axis[low]) / (axis[low + 1] - axis[low])

    def _taken(self, one: int, other: int) -> float:
        if (one, other) not in self.taken:
            self.taken[one, other] = self.function(one, other) if one else 0.0
        return self.taken[one, other]


class StepCosts:
    """Steps of one copy of a network on its ranks; see `timing.batching.Costs`."""

    def __init__(
        self, model: Model, runs: Sequence[Run], machine: Machine, placement: Placement, *, replayed: bool,
        sequences: int, tokens: int, context: int,
    ) -> None:
        """Args:
            runs: the layers of a rank
            replayed: a CUDA graph starts the kernels of steps without prompts
            sequences, tokens, context: the most that a step and a sequence have
        """
        self.model, self.runs, self.machine, self.placement = model, runs, machine, placement
        self.unscheduled = replace(machine, execution=replace(machine.execution, step_s=0.0))
        self.layers: dict[Layer, int] = {}
        for run in runs:
            self.layers[run.layer] = self.layers.get(run.layer, 0) + run.count
        launch_s = machine.execution.launch_s
        self.hosted_s = launch_s * sum(work.kernels * count for work, count in self._forward(Step(1, 512)))
        self.hosted_decode_s = 0.0 if replayed else launch_s * sum(
            work.kernels * count for work, count in self._forward(Step(1, 1, 1)))
        self.linear = Surface(lambda rows, _: self._products(rows), (sequences + tokens, 1))
        self.tail = Surface(lambda count, _: self._tail(count), (sequences, 1))
        self.generating = Surface(lambda count, _: self._generating(count), (sequences, 1))
        self.attention = Surface(lambda count, cached: self._mixing(Step(count, 1, max(1, cached))),
                                 (sequences, context))
        self.prompts = Surface(lambda count, before: self._mixing(Step(1, count, before)), (tokens, context))

    def decode(self, sequences: int, context: float) -> float:
        """One token of each, with so many tokens computed on average [s]."""
        busy = self.generating(sequences, 0) + self.attention(sequences, context)
        return self.machine.execution.taken_s(busy, self.hosted_decode_s, sequences)

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Beside them chunks of prompts: tokens, and those computed before [s]."""
        busy, rows = 0.0, sequences
        for tokens, before in chunks:
            busy += self.prompts(tokens, before)
            rows += tokens
        busy += self.linear(rows, 0) + self.tail(sequences + len(chunks), 0)
        if sequences:
            busy += self.attention(sequences, context)
        return self.machine.execution.taken_s(busy, self.hosted_s, sequences)

    def _forward(self, step: Step) -> Iterable[tuple[Work, int]]:
        return forward_work(self.model, self.runs, Setting(step, self.placement, self.machine.execution))

    def _busy(self, works: Iterable[tuple[Work, int]]) -> float:
        return step_time(works, self.unscheduled, self.placement, replayed=True).seconds

    def _products(self, rows: int) -> float:
        works = self._forward(Step(1, rows))
        return self._busy((work, count) for work, count in works if work.name not in MIXING and not _in_tail(work))

    def _tail(self, count: int) -> float:
        return self._busy((work, times) for work, times in self._forward(Step(count, 1)) if _in_tail(work))

    def _generating(self, count: int) -> float:
        return self._busy(
            (work, times) for work, times in self._forward(Step(count, 1, 1)) if work.name not in MIXING)

    def _mixing(self, step: Step) -> float:
        setting = Setting(step, self.placement, self.machine.execution)
        return self._busy(
            (work, count) for layer, count in self.layers.items() for work in mixing(layer.mixer, setting))


def _in_tail(work: Work) -> bool:
    return work.name in TAIL or work.pattern == "all-gather"
