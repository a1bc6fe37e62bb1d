"""The pieces a pipeline stage is put together from, each built by the engine itself, once for every shape it can have.

An atom is the extent of one layer's, the embedding's or the head's programs. It depends on the degrees inside a stage
and on the micro-batch; the number of layers, stages, micro-batches and data-parallel ranks only repeat and join atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Recompute
from vramcast.domain.model import Layer, MoE, Run
from vramcast.domain.program import extent
from vramcast.engines.megatron.chunk import Chunk, ChunkBuilder
from vramcast.engines.megatron.options import Context
from vramcast.engines.megatron.run import buffers, inputs, weights_of, workspaces
from vramcast.operators.lowering import Lowered
from vramcast.search.training.degrees import Grid
from vramcast.search.training.states import Counts, Extents, NotAffine, WeightGroups, affine, tabulate
from vramcast.states.megatron import Weight

Shape = tuple[int, ...]
Place = tuple[int, int]
"""Index of the degrees and of the micro-batch."""

PROBES: Final = 3
"""Builds behind a line: two that it goes through, one that confirms it."""


class Passes(NamedTuple):
    """Forward and backward of a piece of a stage, for every shape."""

    forward: Extents
    backward: Extents


class Piece(NamedTuple):
    """What a stage is made of."""

    kind: str  # "layer", "embedding" or "head"
    layer: Layer | None = None
    recomputed: bool = False  # as a whole
    modules: tuple[str, ...] = ()  # parts of it that are recomputed

    @property
    def sparse(self) -> bool:
        """Whether the degrees of expert parallelism matter."""
        return self.layer is not None and isinstance(self.layer.channel, MoE)


EMBEDDING = Piece("embedding")
HEAD = Piece("head")  # on another rank than the embedding: with a copy of a tied weight
HEAD_BESIDE_EMBEDDING = Piece("head beside embedding")


class Atoms:
    """Atoms of one model under one choice of everything that is not numeric; arrays are degrees x micro-batches."""

    def __init__(self, job: Job, grid: Grid, micro_batches: tuple[int, ...]) -> None:
        self.job = job
        self.grid = grid
        self.micro_batches = micro_batches
        self._builders: dict[tuple[Shape, int, tuple[str, ...]], ChunkBuilder] = {}
        self._passes: dict[Piece, Passes] = {}
        self._stacked: dict[tuple[Piece, ...], Passes] = {}
        self._lasting: dict[Chunk, Counts] = {}
        self._weights: dict[Piece, WeightGroups] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """Of every array of bytes."""
        return len(self.grid), len(self.micro_batches)

    def cluster(self, index: int) -> Cluster:
        """The machines of one combination."""
        return replace(self.job.cluster, num_nodes=int(self.grid.nodes[index]))

    def context(self, index: int, batch: int = 0) -> Context:
        """The engine's view of one shape."""
        return self._builder(index, batch).context

    def _builder(self, index: int, batch: int, modules: tuple[str, ...] = ()) -> ChunkBuilder:
        degrees = self.grid.at(index)
        key = (degrees, batch, modules)
        if key not in self._builders:
            tp, cp, ep, etp = degrees
            plan = replace(
                self.job.plan, tp=tp, cp=cp, ep=ep, etp=etp, pp=1, virtual_stages=1, recompute_modules=modules,
                recompute=Recompute.SELECTIVE if modules else Recompute.NONE,
            )
            workload = replace(self.job.workload, micro_batch=self.micro_batches[batch])
            job = replace(self.job, plan=plan, workload=workload, cluster=self.cluster(index))
            self._builders[key] = ChunkBuilder(Context(job))
        return self._builders[key]

    def seen_by(self, piece: Piece, index: int) -> Shape:
        """What of the degrees a piece sees."""
        tp, cp, ep, etp = self.grid.at(index)
        return (tp, cp, ep, etp) if piece.sparse else (tp, cp)

    def passes(self, piece: Piece) -> Passes:
        """Extents of a piece at every shape."""
        if piece not in self._passes:
            found = np.empty((4, *self.shape), np.int64)
            for places in self._alike(piece).values():
                at = tuple(np.array(places).T)
                forward, backward = self._extents(piece, places)
                found[(slice(None), *at)] = (*forward, *backward)
            self._passes[piece] = Passes(Extents(found[0], found[1]), Extents(found[2], found[3]))
        return self._passes[piece]

    def passes_of(self, alike: tuple[Piece, ...]) -> Passes:
        """Extents of one piece, or of several as the first axis."""
        if len(alike) == 1:
            return self.passes(alike[0])
        if alike not in self._stacked:
            found = [self.passes(piece) for piece in alike]
            forward, backward = (
                Extents(*(np.stack([axis[way] for axis in each]) for way in range(2)))
                for each in ([passes.forward for passes in found], [passes.backward for passes in found])
            )
            self._stacked[alike] = Passes(forward, backward)
        return self._stacked[alike]

    def _alike(self, piece: Piece) -> dict[Shape, list[Place]]:
        """Shapes at which a piece differs in its number of tokens only; in whether there is context parallelism, too,
        not in its degree."""
        found: dict[Shape, list[Place]] = {}
        for index, batch in np.ndindex(*self.shape):
            tp, cp, *experts = self.seen_by(piece, index)
            found.setdefault((tp, int(cp > 1), *experts), []).append((index, batch))
        return found

    def _extents(self, piece: Piece, places: list[Place]) -> tuple[Extents, Extents]:
        """Forward and backward at so many shapes: from two builds where a third one confirms them, else from all."""
        tokens = np.array([self.context(*place).tokens for place in places], np.int64)
        chosen = {int(number): place for number, place in zip(tokens, places, strict=True)}
        if len(chosen) < PROBES + 1:
            return self._built(piece, places)
        numbers = sorted(chosen)
        low, high, between = numbers[0], numbers[-1], numbers[len(numbers) // 2]
        small, large, check = (self._lower(piece, chosen[number]) for number in (low, high, between))
        try:
            forward = affine(small.forward, large.forward, (low, high))
            backward = affine(small.backward, large.backward, (low, high))
        except NotAffine:
            return self._built(piece, places)
        one = np.array([between], np.int64)
        for line, program in ((forward, check.forward), (backward, check.backward)):
            if tuple(int(value[0]) for value in line.extents(one)) != extent(program):
                return self._built(piece, places)
        return forward.extents(tokens), backward.extents(tokens)

    def _built(self, piece: Piece, places: list[Place]) -> tuple[Extents, Extents]:
        built = [self._lower(piece, place) for place in places]
        forward, backward = (
            np.array([extent(program) for program in programs], np.int64).T
            for programs in ([lowered.forward for lowered in built], [lowered.backward for lowered in built])
        )
        return Extents(*forward), Extents(*backward)

    def _lower(self, piece: Piece, place: Place) -> Lowered:
        builder = self._builder(*place, piece.modules)
        if piece.layer is not None:
            return builder.layer(piece.layer, recomputed=piece.recomputed)
        return builder.embedding() if piece == EMBEDDING else builder.head()

    @cached_property
    def stream(self) -> Counts:
        """The hidden states a stage receives or sends, and their gradient [bytes]."""
        return self._each(lambda index, batch: self._builder(index, batch).hidden.block_bytes)

    @cached_property
    def inputs(self) -> Counts:
        """What a micro-batch reads where there is an embedding or a head [bytes]."""
        return self._each(lambda *at: sum(tensor.block_bytes for tensor in inputs(self.context(*at))))

    def lasting(self, *, embedding: bool, head: bool, layers: Iterable[Layer]) -> Counts:
        """Workspaces, global buffers and dummy gradients of a stage with such parts [bytes]."""
        chunk = Chunk(runs=tuple(Run(count=1, layer=layer) for layer in layers), embedding=embedding, head=head)
        if chunk not in self._lasting:
            self._lasting[chunk] = self._lasting_bytes(chunk)
        return self._lasting[chunk]

    def _lasting_bytes(self, chunk: Chunk) -> Counts:
        dummies = np.array([[self._dummy_bytes(chunk, index)] for index in range(len(self.grid))], np.int64)

        def fixed(index: int, batch: int) -> int:
            context = self.context(index, batch)
            return sum(tensor.block_bytes for tensor in (*workspaces(context, [chunk]), *buffers(context, [chunk])))

        return self._each(fixed) + dummies

    def _dummy_bytes(self, chunk: Chunk, index: int) -> int:
        """Each shape of a weight has one dummy gradient, however many layers use it."""
        together: dict[str, int] = {}
        for run in chunk.runs:
            together |= self._dummies[self.seen_by(Piece("layer", run.layer), index), run.layer]
        return sum(together.values())

    @cached_property
    def _dummies(self) -> Mapping[tuple[Shape, Layer], dict[str, int]]:
        found: dict[tuple[Shape, Layer], dict[str, int]] = {}
        for layer in dict.fromkeys(run.layer for run in self.job.model.main.runs):
            for index in range(len(self.grid)):
                key = (self.seen_by(Piece("layer", layer), index), layer)
                if key not in found:
                    builder = self._builder(index, 0)
                    builder.layer(layer, recomputed=False)
                    tensors = builder.dummy_gradients(Chunk(runs=(Run(count=1, layer=layer),)))
                    found[key] = {shape: tensor.block_bytes for shape, tensor in tensors.items()}
        return found

    def weights(self, piece: Piece) -> WeightGroups:
        """The weights of one piece, for all degrees."""
        if piece not in self._weights:
            chunk = _chunk_of(piece)
            left_out = len(self.weights(EMBEDDING).expert) if piece == HEAD_BESIDE_EMBEDDING else 0
            built: dict[Shape, list[Weight]] = {}
            for index in range(len(self.grid)):
                if self.grid.at(index) not in built:
                    built[self.grid.at(index)] = weights_of(self.context(index), [chunk], stage=0)[left_out:]
            columns = [built[self.grid.at(index)] for index in range(len(self.grid))]
            elements, copies = (
                np.array([[getattr(weight, name) for weight in column] for column in columns], np.int64).T
                for name in ("elements", "count")
            )
            traits = ([getattr(weight, name) for weight in columns[0]] for name in ("expert", "matrix", "decays"))
            self._weights[piece] = WeightGroups(elements, copies, *(np.array(trait, np.bool_) for trait in traits))
        return self._weights[piece]

    def _each(self, value: Callable[[int, int], int]) -> Counts:
        """A figure that expert parallelism does not change, at every shape."""
        seen: dict[Shape, int] = {}

        def once(index: int, batch: int) -> int:
            tp, cp, _, _ = self.grid.at(index)
            key = (tp, cp, batch)
            if key not in seen:
                seen[key] = value(index, batch)
            return seen[key]

        return tabulate(self.shape, once)


def _chunk_of(piece: Piece) -> Chunk:
    runs = () if piece.layer is None else (Run(count=1, layer=piece.layer),)
    return Chunk(
        runs=runs, embedding=piece in (EMBEDDING, HEAD_BESIDE_EMBEDDING), head=piece in (HEAD, HEAD_BESIDE_EMBEDDING)
    )
