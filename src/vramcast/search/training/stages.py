"""Live memory of one pipeline rank at its highest point, for every shape at once, joined from atoms.

Equal to `domain.program.extent` of the engine's own programs (`engines.megatron.run`), which a property test holds.
The highest point of a run is that of the steady step, of the optimizer after it, or the moment in which the model is
built and moves into the buffers: the first step allocates the same as a later one, and its moments, which stay, at its
end.

A schedule is a maximum of sums: between two passes a stage holds some micro-batches of each of its chunks; the
peak of a step is the largest, over all passes, of what is held then plus the peak of that pass. A moment at which no
chunk holds more than at another moment of the same pass cannot be the highest one and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from vramcast.domain.job import Job, Plan, Recompute
from vramcast.domain.model import Layer
from vramcast.engines.megatron.chunk import Chunk, chunks_of
from vramcast.engines.megatron.options import Context
from vramcast.parallel.layout import Slot, interleaved, one_forward_one_backward
from vramcast.search.training.atoms import EMBEDDING, HEAD, HEAD_BESIDE_EMBEDDING, Atoms, Passes, Piece
from vramcast.search.training.degrees import Stages
from vramcast.search.training.states import Counts, Extents, WeightGroups, freed, held, joined, joined_groups

MOST_KNOWN: Final = 1024
"""Chunks whose pieces are kept: every kind of card asks for the same ones [count]."""


class Role(NamedTuple):
    """Pipeline ranks with the same chunks; the first of them needs the most memory."""

    stage: int
    chunks: tuple[Chunk, ...]
    alike: int


class Recomputation(NamedTuple):
    """What is computed again in backward."""

    modules: tuple[str, ...] = ()  # parts of every layer
    layers: int = 0  # whole layers of each chunk, from the first

    @property
    def kind(self) -> Recompute:
        """As a plan says it."""
        return Recompute.FULL if self.layers else Recompute.SELECTIVE if self.modules else Recompute.NONE


Recomputations = tuple[Recomputation, ...]
"""Those that are looked at together: where there are several, they are the first axis of all arrays."""


def roles(job: Job, stages: Stages) -> list[Role]:
    """The ranks that decide. Later ranks with the same chunks hold fewer micro-batches, never more."""
    plan = Plan(
        pp=stages.pp, virtual_stages=stages.chunks, first_stage_layers=stages.first, last_stage_layers=stages.last,
        precision=job.plan.precision, optimizer=job.plan.optimizer, shards=job.plan.shards,
    )
    cluster = replace(job.cluster, gpus_per_node=stages.pp, num_nodes=1)
    one = replace(job, plan=plan, cluster=cluster)
    found: dict[tuple[Chunk, ...], Role] = {}
    for stage, chunks in enumerate(chunks_of(Context(one))):
        first = found.get(tuple(chunks), Role(stage, tuple(chunks), 0))
        found[tuple(chunks)] = first._replace(alike=first.alike + 1)
    return list(found.values())


def chunk_passes(atoms: Atoms, chunk: Chunk, recomputations: Recomputations) -> Passes:
    """One micro-batch forward and backward through a chunk [engines.megatron.chunk, `ChunkBuilder.build`]."""
    passed = [(count, atoms.passes_of(alike)) for count, alike in pieces(chunk, recomputations)]
    forward = [passes.forward.times(count) for count, passes in passed]
    backward = [passes.backward.times(count) for count, passes in reversed(passed)]
    if not chunk.embedding:
        forward.insert(0, held(atoms.stream))
        backward.append(freed(atoms.stream))
    if not chunk.head:
        forward.append(freed(atoms.stream))
        backward.insert(0, held(atoms.stream))
    if chunk.embedding or chunk.head:
        forward.insert(0, held(atoms.inputs))
        backward.append(freed(atoms.inputs))
    return Passes(joined(*forward), joined(*backward))


@lru_cache(maxsize=MOST_KNOWN)
def pieces(chunk: Chunk, recomputations: Recomputations) -> tuple[tuple[Counts, tuple[Piece, ...]], ...]:
    """What a chunk is made of, in the order of forward, and how many of each: one piece, or one for each recomputation.
    """
    found: list[tuple[Counts, tuple[Piece, ...]]] = [(1, (EMBEDDING,))] if chunk.embedding else []
    left: Counts = np.array([each.layers for each in recomputations], np.int64)
    left = left[:, None, None] if len(left) > 1 else left[0]
    for run in chunk.runs:
        whole = np.minimum(run.count, left)
        left = left - whole
        if whole.any():
            found.append((whole, (Piece("layer", run.layer, recomputed=True),)))
        if (run.count > whole).any():
            again = [() if each.layers else each.modules for each in recomputations]
            parts = tuple(Piece("layer", run.layer, modules=modules) for modules in again)
            found.append((run.count - whole, parts if len(set(again)) > 1 else parts[:1]))
    return (*found, (1, (HEAD,))) if chunk.head else tuple(found)


def step_peak(passes: Sequence[Passes], moments: Sequence[Moment]) -> Counts:
    """The highest point of a step, without what lives through the run [bytes]."""
    highest: Counts = np.int64(0)
    for moment in moments:
        own = passes[moment.slot.chunk]
        now: Extents = own.forward if moment.slot.forward else own.backward
        base = sum(count * chunk.forward.net for count, chunk in zip(moment.held, passes, strict=True))
        highest = np.maximum(highest, base + now.peak)
    return highest


def weights_of_role(atoms: Atoms, role: Role) -> WeightGroups:
    """Weights of all chunks of a rank, in the order the model registers them."""
    found: list[tuple[int, WeightGroups]] = []
    for chunk in role.chunks:
        if chunk.embedding:
            found.append((1, atoms.weights(EMBEDDING)))
        found += [(run.count, atoms.weights(Piece("layer", run.layer))) for run in chunk.runs]
        if chunk.head:
            found.append((1, atoms.weights(HEAD_BESIDE_EMBEDDING if chunk.embedding else HEAD)))
    return joined_groups(found)


def lasting_of_role(atoms: Atoms, role: Role) -> Counts:
    """What lives through the run beside states [bytes]."""
    layers: list[Layer] = list(dict.fromkeys(run.layer for chunk in role.chunks for run in chunk.runs))
    return atoms.lasting(
        embedding=any(chunk.embedding for chunk in role.chunks), head=any(chunk.head for chunk in role.chunks),
        layers=layers,
    )


PERIODS: Final = 3
"""Groups of micro-batches after which an interleaved schedule repeats itself: later ones hold nothing new."""


class Moment(NamedTuple):
    """A pass about to start, and how many micro-batches of each kind of chunk are held."""

    held: tuple[int, ...]
    slot: Slot  # its chunk is a kind, too


@cache
def moments(*, stage: int, stages: int, kinds: tuple[int, ...], micro_batches: int) -> tuple[Moment, ...]:
    """The moments of a step among which the highest one is.

    Args:
        stage: from 0 [index]
        stages: pipeline ranks [count]
        kinds: of each model chunk of the rank, from 0; chunks of one kind are alike [index]
        micro_batches: of the step; more than `enough` change nothing [count]
    """
    chunks = len(kinds)
    if chunks == 1:
        slots = one_forward_one_backward(stage=stage, stages=stages, micro_batches=micro_batches)
    else:
        slots = interleaved(
            stage=stage, stages=stages, micro_batches=micro_batches, chunks=chunks, group=stages
        )
    by_slot: dict[Slot, set[tuple[int, ...]]] = {}
    held = [0] * (max(kinds) + 1)
    different = {*slots.warmup, *slots.steady, *slots.cooldown}
    places = {slot: (replace(slot, chunk=kinds[slot.chunk]), 1 if slot.forward else -1) for slot in different}
    for slot in (*slots.warmup, *slots.steady * min(slots.repeats, 2), *slots.cooldown):
        found, more = places[slot]
        by_slot.setdefault(found, set()).add(tuple(held))
        held[found.chunk] += more
    return tuple(Moment(held, slot) for slot, seen in by_slot.items() for held in _undominated(seen))


def enough(*, stages: int, chunks: int) -> int:
    """Micro-batches beyond which no more of them are held at once.

    >>> enough(stages=8, chunks=1), enough(stages=8, chunks=2)
    (8, 24)
    """
    return stages if chunks == 1 else PERIODS * stages


def _undominated(seen: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for candidate in sorted(seen, key=sum, reverse=True):
        if not any(all(a >= b for a, b in zip(other, candidate, strict=True)) for other in kept):
            kept.append(candidate)
    return kept
