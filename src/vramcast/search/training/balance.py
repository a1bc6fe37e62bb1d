"""Uneven pipeline stages, chosen exactly: the split of the layers whose slowest stage is fastest and whose stages fit.

A step takes (m - 1) times the slowest stage and once all stages together, whose sum no split changes: the slowest stage
is what to make small. Even stages are not best where the ends carry more (a head over a large vocabulary), or where the
first stages, which hold the most micro-batches, must recompute while the last ones need not.

A split is a path: from layer 0 to the last one, one piece a stage. For a limit on the seconds of a piece the shortest
path along pieces that fit and keep to the limit, in squares of seconds, is the most even split; stage by stage it is
found exactly [Bellman]. The smallest limit is found by bisection over the seconds that occur.
[Bellman] Bellman, Dynamic Programming, 1957, chapter I: the principle of optimality
[recompute] Megatron-LM training/arguments.py: --recompute-num-layers is one number for every stage, which a stage with
fewer layers uses up.   [layout] --pipeline-model-parallel-layout takes any number of layers for each stage.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from vramcast.domain.job import Job, Recompute
from vramcast.engines.megatron.chunk import Chunk, runs_of
from vramcast.estimate.ranks import outside_tensors
from vramcast.estimate.step_time import step_time
from vramcast.search.training.atoms import Atoms
from vramcast.search.training.degrees import Grid
from vramcast.search.training.megatron import sharing
from vramcast.search.training.stages import (
    Recomputation,
    Role,
    chunk_passes,
    lasting_of_role,
    moments,
    step_peak,
    weights_of_role,
)
from vramcast.search.training.states import held_states
from vramcast.search.training.times import Times
from vramcast.timing.training.layer import Recomputed

WIDER: Final = 1.25
"""Step by which the limit grows until some split keeps to it."""

PAYS: Final = 0.002
"""Share of a step that must be gained: less is beyond what step times are known to."""


class Piece(NamedTuple):
    """Layers of one stage."""

    stage: int
    start: int
    layers: int


Cost = Callable[[Piece], float | None]
"""Seconds of a piece, None where it does not fit; a piece that another one begins with is faster and smaller."""


def balanced(job: Job, capacity_bytes: int) -> Job | None:
    """The plan with its layers split best, or None where that gains nothing.

    Args:
        job: a Megatron plan
        capacity_bytes: live bytes a card may hold
    """
    plan = job.plan
    if job.engine != "megatron" or plan.pp == 1 or plan.virtual_stages > 1 or len(job.model.stacks) > 1:
        return None
    modules = plan.recompute_modules if plan.recompute is Recompute.SELECTIVE else ()
    most = 0 if plan.recompute is Recompute.SELECTIVE else -(-job.model.num_layers // plan.pp) + 1
    limited, unlimited = _Pieces(job, capacity_bytes), _Pieces(job, None)
    best, best_s = None, step_time(job).step_s * (1 - PAYS)
    for recomputed in range(most + 1):
        again = Recomputation(modules, recomputed)
        anything = best_split(plan.pp, job.model.num_layers, unlimited.cost(again))
        if anything is None or step_time(_planned(job, anything, recomputed)).step_s >= best_s:
            break  # more recomputation only makes every piece slower
        layers = best_split(plan.pp, job.model.num_layers, limited.cost(again))
        if layers is not None:
            proposed = _planned(job, layers, recomputed)
            seconds = step_time(proposed).step_s
            best, best_s = (proposed, seconds) if seconds < best_s else (best, best_s)
    return best


def _planned(job: Job, layers: tuple[int, ...], recomputed: int) -> Job:
    """The job with its stages of so many layers."""
    again = {"recompute": Recompute.FULL, "recompute_layers": recomputed} if recomputed else {}
    if not recomputed and job.plan.recompute is Recompute.FULL:
        again = {"recompute": Recompute.NONE, "recompute_layers": None}
    plan = replace(job.plan, first_stage_layers=None, last_stage_layers=None, **again)
    options = {**job.engine_options, "stage_layers": "-".join(map(str, layers))}
    return replace(job, plan=plan, engine_options=options)


def best_split(stages: int, layers: int, cost: Cost) -> tuple[int, ...] | None:
    """Layers of every stage such that the slowest stage is fastest, None where no split fits.

    >>> best_split(3, 7, lambda piece: piece.layers + (1.5 if piece.stage == 2 else 0.0))
    (3, 3, 1)
    """
    limit, found = _even_s(stages, layers, cost), None
    while found is None:
        pieces, is_all = _within(limit, stages, layers, cost)
        found = _path(pieces, stages, layers, limit)
        if found is None and is_all:
            return None
        limit *= WIDER
    limits = sorted({seconds for _, seconds in pieces})
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        split = _path(pieces, stages, layers, limits[middle])
        if split is None:
            low = middle + 1
        else:
            high, found = middle, split
    return found


def _even_s(stages: int, layers: int, cost: Cost) -> float:
    """Seconds of the slowest stage of an even split, as far as its stages fit."""
    cuts = [stage * layers // stages for stage in range(stages + 1)]
    pieces = (Piece(stage, start, stop - start) for stage, (start, stop) in enumerate(pairwise(cuts)))
    return max((seconds for piece in pieces if (seconds := cost(piece)) is not None), default=float("inf"))


def _within(limit_s: float, stages: int, layers: int, cost: Cost) -> tuple[list[tuple[Piece, float]], bool]:
    """Pieces that fit, keep to a limit and leave every other stage a layer, and whether the limit left none out.

    A piece with one more layer behind it is slower and larger, so the first that is too slow or too large ends a row.
    """
    found, is_all = [], True
    for stage in range(stages):
        after = stages - 1 - stage
        for start in range(stage, 1 if stage == 0 else layers - after):
            for stop in range(start + 1, layers - after + 1):
                piece = Piece(stage, start, stop - start)
                seconds = cost(piece)
                if seconds is None:
                    break
                if seconds > limit_s:
                    is_all = False
                    break
                if after or stop == layers:
                    found.append((piece, seconds))
    return found, is_all


def _path(pieces: list[tuple[Piece, float]], stages: int, layers: int, limit_s: float) -> tuple[int, ...] | None:
    """The most even split whose pieces keep to a limit, None where there is none.

    Args:
        pieces: of all stages with their seconds, the first stage's first
    """
    reached: dict[tuple[int, int], tuple[float, int]] = {(0, 0): (0.0, 0)}  # -> least sum of squares, layers before
    for piece, seconds in pieces:
        before = reached.get((piece.stage, piece.start))
        if before is None or seconds > limit_s:
            continue
        end, total = (piece.stage + 1, piece.start + piece.layers), before[0] + seconds**2
        if end not in reached or total < reached[end][0]:
            reached[end] = (total, piece.layers)
    split: list[int] = []
    for stage in range(stages, 0, -1):
        if (stage, layers) not in reached:
            return None
        split.append(reached[stage, layers][1])
        layers -= split[-1]
    return tuple(reversed(split))


class _Pieces:
    """Seconds and live bytes of every piece a stage can have, from the atoms of one plan."""

    def __init__(self, job: Job, capacity_bytes: int | None) -> None:
        plan = job.plan
        etp = plan.tp if plan.etp is None else plan.etp
        row = (plan.tp, plan.cp, plan.ep, etp, job.cluster.num_nodes)
        self.job = job
        outside_bytes = sum(tensor.num_bytes for tensor in outside_tensors(job))
        self.capacity = None if capacity_bytes is None else capacity_bytes - outside_bytes
        self.layers = job.model.main.layers
        self.atoms = Atoms(job, Grid(*np.array([row], np.int64).T), (job.workload.micro_batch,))
        ways: list[Recomputed] = [(Recompute.NONE, ()), (Recompute.FULL, ())]
        if plan.recompute_modules:
            ways.append((Recompute.SELECTIVE, plan.recompute_modules))
        self.times = Times(self.atoms, ways)
        self.rules, self.ranks = sharing(job, self.atoms.grid, np.array([job.data_parallel], np.int64))
        self._states: dict[tuple[Chunk, ...], tuple[int, int]] = {}
        self._costs: dict[tuple[Role, Recomputation], float | None] = {}

    def cost(self, recomputation: Recomputation) -> Cost:
        """Seconds of a piece under one way to recompute."""
        pp = self.job.plan.pp

        def seconds(piece: Piece) -> float | None:
            runs = runs_of(self.layers[piece.start : piece.start + piece.layers])
            chunk = Chunk(runs=runs, embedding=piece.stage == 0, head=piece.stage == pp - 1)
            key = (Role(piece.stage, (chunk,), 1), recomputation)
            if key not in self._costs:
                self._costs[key] = self._seconds(*key)
            return self._costs[key]

        return seconds

    def _seconds(self, role: Role, recomputation: Recomputation) -> float | None:
        if self.capacity is not None and self._live(role, recomputation) > self.capacity:
            return None
        stage = self.times.stage(role, (recomputation,))
        return float((stage.forward + stage.backward)[0, 0])

    def _live(self, role: Role, recomputation: Recomputation) -> int:
        """The highest point of the run in the allocator [bytes]."""
        load_peak, steady = self._fixed(role)
        passes = [chunk_passes(self.atoms, chunk, (recomputation,)) for chunk in role.chunks]
        schedule = moments(
            stage=role.stage, stages=self.job.plan.pp, kinds=(0,), micro_batches=self.job.workload.grad_accum
        )
        return max(load_peak, steady + int(step_peak(passes, schedule)[0, 0]))

    def _fixed(self, role: Role) -> tuple[int, int]:
        """Peak of the load, and what lies below every step [bytes]."""
        if role.chunks not in self._states:
            states = held_states(weights_of_role(self.atoms, role), self.rules, self.ranks)
            lasting = int(lasting_of_role(self.atoms, role)[0, 0])
            self._states[role.chunks] = int(states.load_peak[0]), int(states.steady[0]) + lasting
        return self._states[role.chunks]


