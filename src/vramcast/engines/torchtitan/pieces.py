"""FSDP stages of a torchtitan model: units of weights around lowered graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.ends import boundary
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import embedding_parameters, head_parameters, stack_parameters
from vramcast.blocks.parts import Sizes
from vramcast.domain.job import Recompute
from vramcast.domain.model import Layer, Model, Parameter
from vramcast.domain.program import Category, Free, Program, Tensor, live_at_end
from vramcast.engines.torchtitan import model as graphs
from vramcast.engines.torchtitan.model import Choices
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import Lowered, WeightGradients, lower
from vramcast.parallel.fsdp import Fsdp, Stage, Unit, unit
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import local_shape, sharded_shape
from vramcast.states.steps import Weight, kind_of

MOST_KNOWN: Final = 512
"""Lowered layers that are kept [count]."""


class Sharing(Struct, frozen=True):
    """Groups that share weights."""

    layout: Layout
    dense: Fsdp
    experts: Fsdp
    block_width: float = 2  # bytes of a gathered element of blocks: 1 with float8 all-gather
    weight_width: int = 4  # bytes of a stored element
    whole_experts: bool = False  # experts that no two ranks share stand outside FSDP


class Span(Struct, frozen=True):
    """What one pipeline chunk owns."""

    runs: tuple[tuple[int, Layer], ...]
    first: bool = True
    last: bool = True
    kept: frozenset[int] = frozenset()  # places of runs that keep what they save, whatever is recomputed


class Pieces(Struct, frozen=True):
    """One chunk's stages, in order of execution."""

    stages: tuple[Stage, ...]
    root: Unit | None  # embedding and head as the root's own unit (before 2025-07-28)
    embedding: Lowered | None
    head: Lowered | None
    root_gradients: tuple[Tensor, ...]
    weights: tuple[Weight, ...]
    loss_gradient: Program
    received: tuple[Tensor, ...]  # states that come from the chunk before
    returned: tuple[Tensor, ...]  # gradients that come from the chunk behind
    hidden: Tensor
    gradient: Tensor


class Block(Struct, frozen=True):
    """One layer or end as torchtitan runs it."""

    graph: Graph
    lowered: Lowered


def pieces(
    model: Model, sizes: Sizes, choices: Choices, sharing: Sharing, *, span: Span, split_root: bool, reshard: str,
    place: int = 0,
) -> Pieces:
    """Stages of one chunk of the model.

    Args:
        sizes: one micro-batch on one rank
        choices: recomputation, compilation, loss
        sharing: tensor, expert and data parallelism
        span: layers and ends of the chunk
        split_root: embedding and head are units of their own
        reshard: "always", "last" (all but the last block, as before 2025-07-28), "blocks" (all blocks) or "never"
        place: which chunk of its rank it is: the hidden states of two are different tensors
    """
    hidden, gradient = _between(sizes, place)
    ends = {
        "embedding": (
            _end("embedding", model, sizes, choices, hidden, gradient) if span.first else None,
            embedding_parameters(model),
        ),
        "head": (
            _end("head", model, sizes, choices, hidden, gradient) if span.last else None,
            (*stack_parameters(model.main), *head_parameters(model)),
        ),
    }
    lowered = {name: end.lowered if end else None for name, (end, _) in ends.items()}
    plain = replace(choices, recompute=Recompute.NONE)
    blocks = [
        (count, spec, _block(spec, sizes, plain if place_of in span.kept else choices, hidden, gradient))
        for place_of, (count, spec) in enumerate(span.runs)
    ]
    middle = list(_layer_stages(model, sharing, blocks, reshard))
    root: Unit | None = None
    root_gradients: tuple[Tensor, ...] = ()
    first: list[Stage] = []
    last: list[Stage] = []
    owned = [p for end, found in ends.values() if end for p in found]
    if not split_root:
        root = _units("root", owned, sharing)[0]
        root_gradients = tuple(t for end, _ in ends.values() if end for t in end.graph.weight_gradients)
    else:
        for name, target, stays in (("embedding", first, reshard == "never"), ("head", last, reshard != "always")):
            end, found = ends[name]
            if end is not None:
                units, left = _units(name, found, sharing), end.graph.weight_gradients
                low = end.lowered
                target.append(Stage(units, low.forward, low.backward, left, reshard=not stays, label=name))
    loss_gradient = _loss_gradient(lowered["head"])
    return Pieces(
        (*first, *middle, *last), root, lowered["embedding"], lowered["head"], root_gradients,
        tuple(_weights(owned, model, sharing, span)), loss_gradient, () if span.first else (hidden,),
        () if span.last else (gradient,), hidden, gradient,
    )


def _lower(graph: Graph, gradient: Tensor) -> Lowered:
    return lower(graph, weight_gradients=WeightGradients.KEPT, gradient=gradient)


def _loss_gradient(head: Lowered | None) -> Program:
    """The gradient of the loss, which the head's backward frees but nobody in it makes; the loss itself dies."""
    if head is None:
        return ()
    ends = live_at_end(head.forward + head.backward)
    return (*head.loss_gradient, *(Free(tensor) for tensor, net in ends.items() if net > 0 and tensor.name == "loss"))


@lru_cache(maxsize=MOST_KNOWN)
def _between(sizes: Sizes, place: int) -> tuple[Tensor, Tensor]:
    """Hidden states between the layers of a chunk, and their gradient."""
    hidden = boundary(sizes, "decoder")
    gradient = Tensor(
        name="gradient of hidden states", num_bytes=hidden.num_bytes, category=Category.TEMPORARIES, owner="decoder"
    )
    return hidden, gradient


@lru_cache(maxsize=MOST_KNOWN)
def _block(spec: Layer, sizes: Sizes, choices: Choices, hidden: Tensor, gradient: Tensor) -> Block:
    """One layer lowered: the same for every pipeline, sharding and number of micro-batches that a search looks at.

    Known by the very tensors between layers: when those are made anew, so is what frees them.
    """
    graph = graphs.layer(spec, sizes, choices, hidden)
    return Block(graph, _lower(graph, gradient))


@lru_cache(maxsize=MOST_KNOWN)
def _end(name: str, model: Model, sizes: Sizes, choices: Choices, hidden: Tensor, gradient: Tensor) -> Block:
    """The embedding or the head, as `_block`."""
    is_head = name == "head"
    graph = graphs.head(model, sizes, choices, hidden) if is_head else graphs.embedding(model, sizes, hidden)
    return Block(graph, _lower(graph, gradient))


def _layer_stages(
    model: Model, sharing: Sharing, blocks: Sequence[tuple[int, Layer, Block]], reshard: str
) -> Iterator[Stage]:
    wide = sharing.block_width
    narrowed = replace(
        sharing, dense=replace(sharing.dense, gather_width=wide, compute_width=wide),
        experts=replace(sharing.experts, gather_width=wide, compute_width=wide),
    )
    left = sum(count for count, _, _ in blocks)
    for count, spec, block in blocks:
        graph, low = block.graph, block.lowered
        units = _units("decoder.layers", layer_parameters(spec, hidden=model.hidden), narrowed)
        left -= count
        parts = ((count - 1, True), (1, False)) if reshard == "last" and not left else ((count, reshard != "never"),)
        for repeats, again in parts:
            if repeats:
                yield Stage(units, low.forward, low.backward, graph.weight_gradients, repeats, reshard=again)


def _units(owner: str, found: Sequence[Parameter], sharing: Sharing) -> tuple[Unit, ...]:
    units = []
    for expert, plan in ((False, sharing.dense), (True, sharing.experts)):
        shapes = [(p.path, local_shape(p, sharing.layout)) for p in found if p.expert is expert and p.trainable]
        if not shapes:
            continue
        piece = unit(owner, shapes, plan, stored_width=sharing.weight_width)
        if expert and sharing.whole_experts and plan.ranks == 1:
            piece = piece.outside(reduced=plan.reduce_width, stored=sharing.weight_width)
        units.append(piece)
    return tuple(units)


def _weights(owned: Sequence[Parameter], model: Model, sharing: Sharing, span: Span) -> Iterator[Weight]:
    for p in owned:
        yield _weight("ends", p, 1, sharing)
    for count, spec in span.runs:
        for p in layer_parameters(spec, hidden=model.hidden):
            yield _weight("decoder.layers", p, count, sharing)


def _weight(owner: str, parameter: Parameter, count: int, sharing: Sharing) -> Weight:
    ranks = (sharing.experts if parameter.expert else sharing.dense).ranks
    shape = sharded_shape(local_shape(parameter, sharing.layout), ranks)
    return Weight(
        owner, parameter.path, shape, repeats=count, width=sharing.weight_width, learns=parameter.trainable,
        kind=kind_of(parameter),
    )
