"""Eager model code under FSDP1: flat weights around layers and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parts import EXPERTS
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.eager.passes import Around, Piece
from vramcast.engines.eager.recipe import ROOT, STORAGE_WIDTH, Part, Sharding, owner_of, sharded
from vramcast.parallel.fsdp import (
    FlatStage,
    FlatUnit,
    flat_backward,
    flat_forward,
    flat_gather,
    flat_reduce,
    flat_release,
    flat_scatter,
    flat_unit,
    shard_gradients,
)
from vramcast.states.steps import Weight
from vramcast.units import ceil_div

HOOK: Final = "pytorch torch/distributed/fsdp/_runtime_utils.py _register_post_backward_reshard_only_hook"


class Flat(Around):
    """What FSDP1 does around the parts of a model.

    Args:
        found: weights by what owns them
        sharding: who shards
    """

    def __init__(self, found: Mapping[str, Part], sharding: Sharding) -> None:
        self.whole = sharding.ranks == 1  # NO_SHARD: casts die behind forward whatever was asked
        self.found, self.sharding = found, replace(sharding, reshard=True) if self.whole else sharding
        self.units = {owner: self._unit(owner, part.own) for owner, part in found.items() if part.own}
        self.outside = self.sharding.expert_ranks is not None
        apart = {owner: self._unit(owner, part.leaves, "experts'" if self.outside else "adapters'")
                 for owner, part in found.items() if part.leaves}
        self.leaves: Mapping[str, FlatUnit] = apart
        self.frozen = not any(part.learns for part in found.values())
        self.first = self.synchronises = True
        self.stages: dict[str, tuple[FlatStage, ...]] = {}

    def _unit(self, owner: str, own: tuple[Weight, ...], name: str = "") -> FlatUnit:
        """All weights of a unit have one type; packed ones are read as numbers of 16 bits."""
        sharding = self.sharding
        if name == "experts'":  # as they are loaded
            sharding = replace(sharding, ranks=1, master=None, compute=None, reduced=None, offload=False)
        widest = max(own, key=sharding.stored_width)
        width = max(sharding.stored_width(widest), STORAGE_WIDTH)
        elements = sum(ceil_div(weight.elements * sharding.stored_width(weight), width) for weight in own)
        return flat_unit(
            owner, elements=elements, ranks=sharding.ranks, width=width, gathered=sharding.compute or width,
            reduced=sharding.reduced, learns=any(weight.learns for weight in own), name=name, on_host=sharding.offload,
        )

    def _root(self) -> tuple[FlatUnit, ...]:
        return tuple(units[ROOT] for units in (self.units, self.leaves) if ROOT in units)

    def load(self) -> Iterator[Node]:
        """Modules are moved to the card, flattened and sharded one after the other, the root last."""
        for owner in sorted(self.found, key=lambda name: name == ROOT):
            part = self.found[owner]
            for units, own in ((self.leaves, part.leaves), (self.units, part.own)):
                if owner not in units:
                    continue
                moved, flattened = (_loaded(name, owner, own) for name in ("module on the card", "flattened module"))
                kept = () if self.sharding.offload else (Alloc(units[owner].shard),)
                body = (Alloc(moved), Alloc(flattened), Free(moved), *kept, Free(flattened))
                if self.whole and kept:  # the flattened module is the shard
                    body = (Alloc(moved), *kept, Free(moved))
                yield Loop(1 if owner == ROOT else part.repeats, body, label="layers")

    def shards(self) -> Iterator[Weight]:
        """What the optimizer steps."""
        experts = {weight for part in self.found.values() for weight in part.leaves} if self.outside else set()
        for weight in sharded(self.found):
            if weight in experts:
                yield weight
                continue
            share, width = ceil_div(weight.elements, self.sharding.ranks), self.sharding.stored_width(weight)
            yield replace(weight, shape=(share,), width=width, gradient_width=width)

    def begin(self) -> Program:
        """The root's weights are gathered, and stay."""
        return flat_gather(self._root())

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """Gathered, run, freed."""
        stages = tuple(map(self._stage, pieces, (owner_of(self.found, stack, piece.run) for piece in pieces)))
        if differentiates:
            self.stages[stack] = stages
        return flat_forward(stages, reshard=self.sharding.reshard or not differentiates)

    def layers(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """Those alone."""
        return flat_forward([self._stage(piece, owner_of(self.found, stack, piece.run)) for piece in pieces])

    def _stage(self, piece: Piece, owner: str) -> FlatStage:
        kept = piece.gradients
        leaves = self.leaves.get(owner)
        own, apart = ((), kept) if leaves is not None else (kept, ())
        if leaves is not None and self.outside:
            apart = tuple(tensor for tensor in kept if tensor.name.startswith(EXPERTS))
            own = tuple(tensor for tensor in kept if tensor not in apart)
        return FlatStage(
            self.units[owner], piece.lowered.forward, piece.lowered.backward, own, piece.count, leaves, apart,
            self._held(piece, owner),
        )

    def _held(self, piece: Piece, owner: str) -> tuple[Tensor, ...]:
        if not self.sharding.hooks_hold or not piece.graph.checkpoints or self.units[owner].learns:
            return ()
        hidden = piece.graph.inputs[0].tensor
        return tuple(
            Tensor(
                name=name, num_bytes=hidden.num_bytes, category=Category.ACTIVATIONS, owner=piece.graph.owner,
                formula=hidden.formula, source=HOOK,
            )
            for name in ("layer input held by FSDP's hook", "its gradient")
        )

    def leave(self, pieces: tuple[Piece, ...]) -> Program:
        """Autocast caches no views of flat weights."""
        return ()

    def turn(self) -> Program:
        """The root's own backward gathers the last unit."""
        return flat_gather(self._last()) if self.sharding.prefetch and self.sharding.reshard else ()

    def _last(self) -> tuple[FlatUnit, ...]:
        *_, stages = self.stages.values()
        return tuple(stage.unit for stage in stages[-1:])

    def backward(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """Gathered ahead, run, reduced."""
        *_, last = self.stages
        return flat_backward(
            self.stages[stack], first=self.first, synchronise=self.synchronises, reshard=self.sharding.reshard,
            prefetch=self.sharding.prefetch, ahead=self.sharding.prefetch and stack == last,
        )

    def end(self, gradients: tuple[Tensor, ...]) -> Program:
        """The root's turn."""
        nodes: list[Node] = []
        learning = [unit for unit in self._root() if unit.learns]
        for unit in learning:
            nodes.append(Alloc(unit.gradient))
        nodes += [*map(Free, gradients), *flat_release(self._root())]
        for unit in learning:
            if self.synchronises:
                nodes += flat_scatter(unit, first=self.first)
            elif not self.first:
                nodes.append(Free(unit.gradient))
        return tuple(nodes)

    def close(self) -> Program:
        """After an evaluation."""
        return flat_release(self._root())

    def scatter(self) -> Program:
        """Gradients of several micro-batches are reduced at once."""
        roots = (flat_scatter(unit) for unit in self._root() if unit.learns)
        return (*flat_reduce(tuple(chain.from_iterable(self.stages.values()))), *chain.from_iterable(roots))

    def zero(self) -> Program:
        """zero_grad(set_to_none=True)."""
        if self.sharding.offload:
            return ()
        roots = tuple((unit.shard_gradient, 1) for unit in self._root() if unit.learns)
        found = (*shard_gradients(tuple(chain.from_iterable(self.stages.values()))), *roots)
        return tuple(Loop(count, (Free(tensor),)) for tensor, count in found)


def _loaded(name: str, owner: str, own: tuple[Weight, ...]) -> Tensor:
    return Tensor(
        name=name, num_bytes=sum(weight.num_bytes for weight in own), owner=owner, category=Category.TEMPORARIES,
        source="pytorch torch/distributed/fsdp/_init_utils.py _init_param_handle_from_module",
    )
