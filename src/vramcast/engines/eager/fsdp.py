"""Eager model code under FSDP2, weights sharded by rows, and the phases of either FSDP.

[FSDP2] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: weights that learn and frozen ones of a unit
are gathered together; only gradients are reduced
[Accelerate] accelerate utils/fsdp_utils.py `fsdp2_prepare_model`: since 1.14 the embedding is a unit of its own, and
so are final norm and head together, which stay gathered between forward and backward; before, the root holds them all
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import prod

from msgspec.structs import replace

from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, TensorsOf, between, transient
from vramcast.engines.eager.flat import Flat
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.passes import Around, Piece, evaluation, inference, passes
from vramcast.engines.eager.phases import Stepping, stepped
from vramcast.engines.eager.preference import Rated, renamed
from vramcast.engines.eager.recipe import (
    ROOT,
    Part,
    Recipe,
    Sharding,
    owner_of,
    parts,
    sharded,
    whole,
    with_experts_outside,
    with_frozen_in_root,
    with_local_experts,
    with_rest_in_root,
)
from vramcast.errors import Note
from vramcast.parallel.fsdp import (
    GATHER_STREAM,
    REDUCE_STREAM,
    Stage,
    Unit,
    backward,
    copy_out,
    drop_inputs,
    forward,
    gather,
    reduce,
    release,
    scatter_accumulated,
    sharded_gradients,
)
from vramcast.states.optimizers import sharded_shape
from vramcast.states.steps import Weight, state_program, weight_program
from vramcast.units import FP32

SOURCE = "pytorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"


class PerWeight(Around):
    """What FSDP2 does around the parts of a model.

    Args:
        found: weights by what owns them
        sharding: who shards
        tied: whether embedding and head are one table
    """

    def __init__(self, found: Mapping[str, Part], sharding: Sharding, *, tied: bool) -> None:
        self.found, self.sharding = found, sharding
        self.units = {owner: tuple(_units(owner, part.own, sharding)) for owner, part in found.items() if owner != ROOT}
        rest = found[ROOT].own
        table = () if tied or not sharding.split_root else tuple(w for w in rest if w.path == "embedding.tokens")
        self.table = _unit("embedding", table, sharding) if table else None
        self.rest = _unit("head" if table else ROOT, tuple(w for w in rest if w not in table), sharding)
        self.first = self.synchronises = True
        self.begun = False  # a pass, and none of its stacks has run
        self.stages: dict[str, tuple[Stage, ...]] = {}
        self.ends: tuple[Stage, ...] = ()
        self.head_gradients: tuple[Tensor, ...] = ()

    def load(self) -> Iterator[Node]:
        """Weights are moved to the card and sharded one after the other."""
        for weight in sharded(self.found):
            moved = Tensor(
                name=f"{weight.path} on the card", num_bytes=weight.num_bytes, owner=weight.owner,
                category=Category.TEMPORARIES, source=SOURCE,
            )
            share = self._share(weight)
            kept = Tensor(
                name=weight.path, num_bytes=share.num_bytes, owner=weight.owner, category=Category.WEIGHTS,
                formula=Note("{:,} x {} B over {} ranks", weight.elements, share.width, self.sharding.ranks_of(weight)),
                source=SOURCE,
            )
            body = (Alloc(moved), *(() if self.sharding.offload else (Alloc(kept),)), Free(moved))
            yield Loop(weight.repeats, body, label=weight.path)

    def _share(self, weight: Weight) -> Weight:
        width = self.sharding.stored_width(weight)
        shape = sharded_shape(weight.shape, self.sharding.ranks_of(weight))
        return replace(weight, shape=shape, width=width, gradient_width=width)

    def shards(self) -> Iterator[Weight]:
        """What the optimizer steps."""
        return map(self._share, sharded(self.found))

    def begin(self) -> Program:
        """The first unit is gathered; what the root holds stays, an embedding of its own goes with the first layer."""
        units = (self.rest,) if self.table is None else (self.table,)
        self.begun = True
        return (*gather(units), *copy_out(units))

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """Gathered, copied out, run, freed."""
        reshard = self.sharding.reshard or not differentiates
        stages = tuple(self._stage(stack, piece, reshard=reshard) for piece in pieces)
        first, self.begun = self.begun, False
        if differentiates:
            self.stages[stack] = stages
        before = (self.rest if self.table is None else self.table,) if first else ()
        nodes = forward(stages, before=before)
        if self.table is not None and first:
            nodes = (*release((self.table,)), *nodes)
        if self.table is not None and first:  # final norm and head, which stay until their backward
            drop = (Free(self.rest.gathered),) if self.rest.shared else ()
            nodes = (*nodes, *gather((self.rest,)), *copy_out((self.rest,)), *drop)
        return nodes

    def layers(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """Those alone."""
        return forward([self._stage(stack, piece, reshard=True) for piece in pieces])

    def _stage(self, stack: str, piece: Piece, *, reshard: bool) -> Stage:
        owner, lowered = owner_of(self.found, stack, piece.run), piece.lowered
        units = () if owner == ROOT else self.units[owner]  # what the root holds is there
        return Stage(units, lowered.forward, lowered.backward, piece.gradients, piece.count, reshard=reshard)

    def leave(self, pieces: tuple[Piece, ...]) -> Program:
        """Autocast caches nothing: weights are in its type already, or no leaves."""
        return ()

    def turn(self) -> Program:
        """The backward of what the root holds gathers the last layer."""
        *_, stages = self.stages.values()
        return gather(stages[-1].units) if stages and stages[-1].reshard else ()

    def between(self, gradients: tuple[Tensor, ...]) -> Program:
        """A head of its own is done."""
        if self.table is None:
            return ()
        self.head_gradients = gradients
        return self._finished(self.rest, gradients)

    def _finished(self, unit: Unit, gradients: tuple[Tensor, ...]) -> Program:
        stage = Stage((unit,), (), (), gradients)
        self.ends = (*(end for end in self.ends if end.units != stage.units), stage)
        if self.synchronises:
            reduced = reduce(stage, first=self.first and not self.sharding.offload)
            return (*release((unit,)), *reduced, *(drop_inputs((unit,)) if gradients else ()))
        born = tuple(map(Alloc, unit.accumulated)) if self.first and gradients else ()
        return (*born, *map(Free, gradients), *release((unit,)))

    def backward(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """Gathered ahead, run, reduced."""
        *_, last = self.stages
        ahead = stack == last and bool(self.stages[stack]) and self.stages[stack][-1].reshard
        first = self.first and not (self.sharding.offload and self.synchronises)  # reduced ones leave for the host
        return backward(self.stages[stack], first=first, synchronise=self.synchronises, ahead=ahead)

    def end(self, gradients: tuple[Tensor, ...]) -> Program:
        """What is left: the root, or an embedding of its own, which is gathered again."""
        if self.table is None:
            return self._finished(self.rest, gradients)
        again = (*gather((self.table,)), *copy_out((self.table,)), Free(self.table.gathered))
        left = tuple(tensor for tensor in gradients if tensor not in self.head_gradients)
        return (*(again if left and self.table.shared else copy_out((self.table,))), *self._finished(self.table, left))

    def close(self) -> Program:
        """After an evaluation."""
        return release((self.rest,))

    def scatter(self) -> Program:
        """Gradients of several micro-batches are reduced at once."""
        stages = (*self.ends, *chain.from_iterable(self.stages.values()))
        gone = tuple(Loop(count, (Free(tensor),)) for tensor, count in sharded_gradients(stages))
        return (*scatter_accumulated(stages), *(gone if self.sharding.offload else ()))

    def zero(self) -> Program:
        """zero_grad(set_to_none=True)."""
        if self.sharding.offload:
            return ()
        found = sharded_gradients((*self.ends, *chain.from_iterable(self.stages.values())))
        return tuple(Loop(count, (Free(tensor),)) for tensor, count in found)


def _units(owner: str, own: tuple[Weight, ...], sharding: Sharding) -> Iterator[Unit]:
    """A layer's, its experts apart where other ranks divide them; those that none divide stand outside of FSDP."""
    experts = tuple(weight for weight in own if sharding.ranks_of(weight) != sharding.ranks)
    yield _unit(owner, tuple(weight for weight in own if weight not in experts), sharding)
    if experts:
        apart = _unit(owner, experts, replace(sharding, ranks=sharding.ranks_of(experts[0])))
        alone, widest = sharding.ranks_of(experts[0]) == 1, max(experts, key=lambda weight: weight.learns)
        widths = {"reduced": sharding.reduced_width(widest), "stored": sharding.stored_width(widest)}
        yield apart.outside(**widths) if alone else apart


def _unit(owner: str, own: tuple[Weight, ...], sharding: Sharding) -> Unit:
    """Weights that are gathered together; those that learn are reduced together."""
    ranks = sharding.ranks
    padded = {weight: prod(sharded_shape(weight.shape, ranks)) * ranks for weight in own}
    learning = [weight for weight in own if weight.learns]
    gathered = sum(count * sharding.computed_width(weight) for weight, count in padded.items())
    reduced = sum(padded[weight] * sharding.reduced_width(weight) for weight in learning)
    stored = sum(padded[weight] * sharding.stored_width(weight) for weight in learning)
    formula = Note("{:,} elements over {} ranks", sum(padded.values()), ranks)

    def tensor(name: str, num_bytes: int, category: Category, stream: str = "") -> Tensor:
        return Tensor(
            name=name, num_bytes=num_bytes, category=category, owner=owner, formula=formula, source=SOURCE,
            stream=stream,
        )

    kind, whole = Category.COMMUNICATION, 0 if ranks == 1 else gathered
    return Unit(
        tensor("all-gather input", whole // ranks, kind, GATHER_STREAM),
        tensor("all-gather output", whole, kind, GATHER_STREAM),
        tuple(
            tensor(f"unsharded {weight.path}", count * sharding.computed_width(weight), Category.WEIGHTS)
            for weight, count in padded.items()
        ),
        tensor("reduce-scatter input", reduced, kind),
        tensor("sharded gradients", stored // ranks, Category.GRADIENTS, REDUCE_STREAM),
        tuple(
            tensor(f"accumulated gradient of {weight.path}", padded[weight] * sharding.reduced_width(weight),
                   Category.GRADIENTS)
            for weight in learning
        ),
        None if reduced == stored else tensor("reduced gradients", reduced // ranks, kind, REDUCE_STREAM),
    )


class Again(Around):
    """Another forward through weights that a forward has just run with: what the root gathered is still there."""

    def __init__(self, around: Flat | PerWeight) -> None:
        self.around = around

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """The layers, gathered again where forward freed them."""
        if not self.around.sharding.reshard:
            return super().forward(stack, pieces, differentiates=False)
        return self.around.layers(stack, pieces)


def _reference(compared: Rated, around: Flat | PerWeight) -> tuple[Program, Program]:
    """What the reference of a preference loss adds: its load, and what runs between forward and backward."""
    recipe, sharding = compared.reference, around.sharding
    if recipe is None:
        return (), compared.between(())
    if not compared.own:
        return (), compared.between(inference(recipe, blocks(recipe), Again(around)))
    sharding = replace(sharding, master=FP32 if compared.loads_fp32 and sharding.compute else None)
    if sharding.by == "fsdp1" or not compared.one_unit:
        found = parts(recipe, leaves=True)
        wrapped = Flat(found, sharding)
        load, forward = tuple(wrapped.load()), inference(recipe, blocks(recipe), wrapped)
    else:
        found = parts(recipe, leaves=False)
        load = tuple(PerWeight(found, sharding, tied=recipe.model.tied).load())
        every = (replace(w, shape=(w.repeats * w.shape[0], *w.shape[1:]), repeats=1) for w in sharded(found))
        unit = _unit("reference", tuple(every), sharding)
        dropped = (Free(unit.gathered),) if unit.shared else ()
        forward = (*gather((unit,)), *copy_out((unit,)), *inference(recipe), *release((unit,)), *dropped)
    load, forward = renamed(load, forward, prefix=compared.name)
    return load, compared.between(forward)


def _loaded_whole(found: Mapping[str, Part]) -> Program:
    """A packed base is on every card before it is sharded, one layer after the other."""
    total = sum(weight.num_bytes * weight.repeats for weight in sharded(found))
    layer = max(sum(weight.num_bytes for weight in part.own) for part in found.values())
    tensor = TensorsOf(owner=ROOT, source="transformers quantizers/quantizer_bnb_4bit.py `update_device_map`")
    return transient(tensor("base before it is sharded", total), tensor("layer that is sharded", layer))


def sharded_phases(
    recipe: Recipe, stepping: Stepping, sharding: Sharding, compared: Rated | None = None,
    shortest: Recipe | None = None, ways: Sequence[float] = (),
) -> Mapping[Phase, Program]:
    """Load, first step, step, evaluation of one rank under FSDP.

    Micro-batches before the last are not synchronised, unless `sharding` does not defer it: their gradients add up
    unsharded.

    Args:
        stepping: optimizer and accumulation
        sharding: who shards
        compared: whose answers a reference rates, too
        shortest: of the micro-batches, where their lengths differ
        ways: from it to `recipe`, of each micro-batch but the last, which is the recipe's
    """
    built, flat = blocks(recipe), sharding.by == "fsdp1"
    found = parts(recipe, leaves=flat)
    if flat and sharding.expert_ranks is not None:
        found = with_experts_outside(found, recipe.sizes.expert_ranks)
    elif recipe.sizes.dispatch is not None:
        found = with_local_experts(found, recipe.sizes.dispatch.ranks)
    if sharding.frozen_in_root:
        found = with_frozen_in_root(found, (tower.stack.name for tower in recipe.towers))
    if sharding.experts_alone:
        found = with_rest_in_root(found)
    around = Flat(found, sharding) if flat else PerWeight(found, sharding, tied=recipe.model.tied)
    held = tuple(around.shards())
    around.synchronises = stepping.grad_accum == 1 or not sharding.defers
    load, compares = ((), ()) if compared is None else _reference(compared, around)
    micro_batches: list[Node] = []
    for around.first, times in ((True, 1), (False, stepping.grad_accum - 1)):
        if times:
            body = passes(recipe, built=built, around=around, between=compares).micro_batch
            if shortest is None:
                micro_batches += body if times == 1 else (Loop(times, body, label="micro-batches"),)
                continue
            least = passes(shortest, around=around).micro_batch
            for way in ways[:1] if around.first else (*ways[1:], 1.0):
                micro_batches += between(least, body, way)
    micro_batches += () if around.synchronises else around.scatter()
    on_host = sharding.offload
    made = () if on_host else state_program(held, stepping.optimizer)
    end = (*(() if on_host else stepped(held, stepping)), *around.zero())
    before = _loaded_whole(found) if sharding.loads_whole else ()
    return {
        Phase.LOAD: (*before, *around.load(), *weight_program(whole(found)), *load),
        Phase.FIRST_STEP: (*stepping.workspaces, *micro_batches, *made, *end),
        Phase.STEP: (*micro_batches, *end),
        Phase.EVALUATION: evaluation(recipe, built, around),
        Phase.CHECKPOINT: (),
    }
