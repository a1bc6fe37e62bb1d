"""Step times of every plan at once: the atoms and the composition of `estimate.step_time`, on arrays.

An atom is timed once for every combination of degrees that it sees, for all micro-batches together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from vramcast.domain.job import Job, Recompute
from vramcast.domain.model import Layer
from vramcast.engines.megatron.chunk import Chunk
from vramcast.estimate.step_time import NOISE_S, Exchange, Stage, causes_of, compose, exchange_of, step_time, timing_of
from vramcast.estimate.training_styles import Recipe, recipe_of
from vramcast.search.training.atoms import EMBEDDING, HEAD, Atoms, Piece
from vramcast.search.training.degrees import Stages
from vramcast.search.training.stages import Recomputation, Recomputations, Role, pieces
from vramcast.search.training.states import Counts, with_arrays
from vramcast.timing.training.fabric import Route, spread_of
from vramcast.timing.training.layer import (
    Elements,
    embedding_elements,
    embedding_passes,
    head_elements,
    head_passes,
    layer_elements,
    layer_passes,
    passes_of_layer,
)
from vramcast.timing.training.parts import Parts, Passes

Seconds = Any
"""An array of float64: degrees x micro-batches."""


class PassTimes(NamedTuple):
    """One micro-batch through a piece or a stage."""

    forward: Seconds
    backward: Seconds


class Times:
    """Seconds of the pieces of one model under one choice of everything that is not numeric."""

    def __init__(self, atoms: Atoms, ways: Sequence[tuple[Recompute, tuple[str, ...]]]) -> None:
        self.atoms = atoms
        self.ways = list(ways)  # to recompute a layer
        self.timings = [self._timing(index) for index in range(len(atoms.grid))]
        self.spread = np.array([spread_of(int(nodes)) for nodes in atoms.grid.nodes])[:, None]
        self._passes: dict[Piece, PassTimes] = {}
        self._stacked: dict[tuple[Piece, ...], PassTimes] = {}
        self._elements: dict[Piece, Elements] = {}
        self._of_ranks: dict[tuple[Chunk, ...], Elements] = {}
        self._exchanges: dict[tuple[Any, int], Exchange] = {}

    def _timing(self, index: int) -> Any:
        """The plan of one combination of degrees, its micro-batch an array of all of them."""
        tp, cp, ep, etp = self.atoms.grid.at(index)
        job = self.atoms.job
        plan = replace(job.plan, tp=tp, cp=cp, ep=ep, etp=etp, pp=1)
        timing = timing_of(replace(job, plan=plan, cluster=self.atoms.cluster(index)))
        batches: Any = np.array(self.atoms.micro_batches, np.float64)
        return replace(timing, shape=replace(timing.shape, sequences=batches))

    def passes(self, piece: Piece) -> PassTimes:
        """Seconds of a piece at every shape."""
        if piece not in self._passes:
            if piece.layer is not None:
                self._time_layer(piece.layer)
            else:
                self._passes[piece] = self._each(piece, lambda timing: [_end(piece, timing)])[0]
        return self._passes[piece]

    def _time_layer(self, layer: Layer) -> None:
        """All ways to recompute a layer together: they share their operators."""
        plain = Piece("layer", layer)
        found = self._each(
            plain,
            lambda timing: passes_of_layer(
                layer, self.ways, hidden=timing.job.model.hidden, shape=timing.shape, machine=timing.machine
            ),
        )
        for (recompute, modules), times in zip(self.ways, found, strict=True):
            piece = Piece("layer", layer, recomputed=recompute is Recompute.FULL, modules=modules)
            self._passes[piece] = times

    def _each(self, piece: Piece, timed: Any) -> list[PassTimes]:
        seen: dict[tuple[int, ...], list[Passes]] = {}
        rows = []
        for index, timing in enumerate(self.timings):
            key = self.atoms.seen_by(piece, index)
            if key not in seen:
                seen[key] = timed(timing)
            rows.append(seen[key])
        width = self.atoms.shape[1]
        return [
            PassTimes(
                np.array([np.broadcast_to(row[way].forward.total, width) for row in rows]),
                np.array([np.broadcast_to(row[way].backward.total, width) for row in rows]),
            )
            for way in range(len(rows[0]))
        ]

    def elements(self, piece: Piece) -> Elements:
        """Weights of a piece on one rank; arrays of one column."""
        if piece not in self._elements:
            rows: Any = np.array([_elements(piece, timing) for timing in self.timings])
            self._elements[piece] = Elements(rows[:, :1], rows[:, 1:])
        return self._elements[piece]

    def passes_of(self, alike: tuple[Piece, ...]) -> PassTimes:
        """Seconds of one piece, or of several as the first axis."""
        if len(alike) == 1:
            return self.passes(alike[0])
        if alike not in self._stacked:
            found = [self.passes(piece) for piece in alike]
            self._stacked[alike] = PassTimes(*(np.stack(axis) for axis in zip(*found, strict=True)))
        return self._stacked[alike]

    def stage(self, role: Role, recomputations: Recomputations) -> Stage:
        """A pipeline rank: the sum of its pieces."""
        forward: Seconds = 0.0
        backward: Seconds = 0.0
        for chunk in role.chunks:
            for count, alike in pieces(chunk, recomputations):
                times = self.passes_of(alike)
                forward, backward = forward + count * times.forward, backward + count * times.backward
        return Stage(forward, backward, self._held(role), role.alike)

    def _held(self, role: Role) -> Elements:
        """Weights of a pipeline rank."""
        if role.chunks not in self._of_ranks:
            elements = Elements()
            for chunk in role.chunks:
                for count, (piece, *_) in pieces(chunk, (Recomputation(),)):
                    elements = elements.plus(self.elements(piece), count)
            self._of_ranks[role.chunks] = elements
        return self._of_ranks[role.chunks]

    def step_s(
        self, stages: Stages, roles: Sequence[Stage], job: Job, recipe: Recipe, grad_accum: Counts, dp: Counts
    ) -> Seconds:
        """Seconds of a step at every shape.

        Args:
            stages: the pipeline
            roles: its ranks, equal ones once
            job: how states are kept
            recipe: how the engine runs the job
            grad_accum: micro-batches of a step, degrees x micro-batches
            dp: data-parallel ranks of every combination of degrees, 0 where there is none
        """
        plan = replace(
            job.plan, pp=stages.pp, virtual_stages=stages.chunks,
            schedule="interleaved" if stages.chunks > 1 else "1f1b",
        )
        # `compose` multiplies by the number of micro-batches wherever it stands: an array does as well
        whole = replace(job, plan=plan, workload=_Workload(grad_accum))
        exchange = self._exchange(job, stages.pp, dp)
        return compose(whole, recipe, roles, exchange, self.timings[0].machine.rates, self.spread).total

    def _exchange(self, job: Job, pp: int, dp: Counts) -> Exchange:
        key = (job.plan.shards, pp)
        if key not in self._exchanges:
            rows = []
            for timing, ranks in zip(self.timings, dp, strict=True):
                plan = replace(timing.job.plan, pp=pp, shards=job.plan.shards)
                layout = replace(timing.layout, pp=pp, dp=max(1, int(ranks)))
                rows.append(exchange_of(replace(timing, job=replace(timing.job, plan=plan), layout=layout)))
            self._exchanges[key] = _stacked(rows, self.atoms.shape[1])
        return self._exchanges[key]


def steps_s(jobs: Sequence[Job]) -> Seconds:
    """Seconds of a step of jobs that differ in their micro-batches alone: `step_time` of all of them at once."""
    first, recipes = jobs[0], [recipe_of(job) for job in jobs]
    if len({replace(recipe, pieces=None) for recipe in recipes}) > 1:
        return np.array([step_time(job).step_s for job in jobs])
    timing, pieces = timing_of(first), [recipe.pieces for recipe in recipes]
    batches: Any = np.array([job.workload.micro_batch for job in jobs])
    accumulated = np.array([job.workload.grad_accum for job in jobs])
    cut: Any = None if pieces[0] is None else np.array(pieces)
    workload = with_arrays(first.workload, micro_batch=batches, grad_accum=accumulated)
    several = replace(
        timing, job=with_arrays(first, workload=workload), recipe=replace(recipes[0], pieces=cut),
        shape=replace(timing.shape, sequences=batches if cut is None else batches // cut),
    )
    known: dict[tuple[Layer, Recompute], Passes] = {}

    def of_layer(layer: Layer, *, recompute: Recompute, **rest: Any) -> Passes:
        if (layer, recompute) not in known:
            known[layer, recompute] = layer_passes(layer, recompute=recompute, **rest)
        return known[layer, recompute]

    causes = causes_of(several, of_layer, _slowest)
    return np.broadcast_to(sum(value * (value > NOISE_S) for value in causes.values()), batches.shape)


def _slowest(found: list[Passes]) -> Passes:
    """The stage with the largest total, the first of equals, for every micro-batch."""

    def stacked(values: Sequence[Seconds]) -> Seconds:
        return np.array(np.broadcast_arrays(*values, found[0].total)[:-1])

    largest = stacked([each.total for each in found]).argmax(axis=0)
    every = np.arange(len(largest))
    ways = ([each.forward for each in found], [each.backward for each in found])
    return Passes(*(Parts(*(stacked(axis)[largest, every] for axis in zip(*way, strict=True))) for way in ways))


class _Workload(NamedTuple):
    """What `compose` reads of a workload."""

    grad_accum: Counts


def _end(piece: Piece, timing: Any) -> Passes:
    model = timing.job.model
    if piece == EMBEDDING:
        return embedding_passes(model, shape=timing.shape, machine=timing.machine)
    return head_passes(model, shape=timing.shape, machine=timing.machine, loss=timing.recipe.loss)


def _elements(piece: Piece, timing: Any) -> Elements:
    model = timing.job.model
    if piece.layer is not None:
        return layer_elements(piece.layer, hidden=model.hidden, layout=timing.layout)
    return (embedding_elements if piece == EMBEDDING else head_elements)(model, layout=timing.layout)


def _stacked(rows: Sequence[Exchange], width: int) -> Exchange:
    """Exchanges of all degrees as one of columns."""

    def column(values: list[float]) -> Seconds:
        return np.array(values)[:, None]

    def routes(kind: str, group: int) -> Route:
        found = [getattr(row, kind)[group] for row in rows]
        return Route(column([route.latency_s for route in found]), column([route.s_per_byte for route in found]))

    return Exchange(
        sent_s=np.array([np.broadcast_to(row.sent_s, width) for row in rows]),
        reduce=(routes("reduce", 0), routes("reduce", 1)),
        gather=(routes("gather", 0), routes("gather", 1)),
        owners=(column([row.owners[0] for row in rows]), column([row.owners[1] for row in rows])),
        loss=column([row.loss for row in rows]),
    )


__all__ = ["HEAD", "PassTimes", "Times"]
