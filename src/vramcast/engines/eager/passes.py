"""Forward and backward of one micro-batch as programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, live_at_end
from vramcast.engines.eager.graphs import ADDED_MASK, Blocks, Layers, blocks, input_tensors
from vramcast.engines.eager.recipe import Recipe
from vramcast.operators.graph import Graph, Operator
from vramcast.operators.lowering import Lowered, WeightGradients, lower, lower_inference
from vramcast.operators.storages import saver_counts
from vramcast.units import ceil_div


class Gradient(NamedTuple):
    """Weight gradients that a backward leaves behind."""

    tensor: Tensor
    repeats: int


class Passes(NamedTuple):
    """One micro-batch."""

    forward: Program
    backward: Program
    gradients: tuple[Gradient, ...]

    @property
    def micro_batch(self) -> Program:
        """Forward, then backward."""
        return self.forward + self.backward


class Piece(Struct, frozen=True, kw_only=True):
    """Equal layers of a stack, lowered."""

    count: int
    graph: Graph
    lowered: Lowered
    run: int  # of equal layers in its stack

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """Those of its weights."""
        return tuple(weight_gradients(self.graph))


class Around:
    """What happens around the parts of a model while they run. Here nothing: every rank has its weights whole."""

    def begin(self) -> Program:
        """Before anything runs forward."""
        return ()

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """The layers of a stack; in training autocast's casts of recomputed ones stay in its cache."""
        casts = [_weight_casts(piece.graph, 1)[0] if differentiates else () for piece in pieces]
        bodies = ((piece.count, piece.lowered.forward + kept) for piece, kept in zip(pieces, casts, strict=True))
        return tuple(Loop(count, body, label="layers") for count, body in bodies)

    def leave(self, pieces: tuple[Piece, ...]) -> Program:
        """The end of forward."""
        return tuple(node for piece in pieces for node in _weight_casts(piece.graph, piece.count)[1])

    def turn(self) -> Program:
        """Before anything runs backward."""
        return ()

    def between(self, gradients: tuple[Tensor, ...]) -> Program:
        """After the head's backward; `gradients` are those of its weights."""
        return ()

    def backward(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """The layers of a stack, the last first."""
        return tuple(Loop(piece.count, piece.lowered.backward, label="layers") for piece in reversed(pieces))

    def end(self, gradients: tuple[Tensor, ...]) -> Program:
        """After all backward; `gradients` are those of all weights outside the layers."""
        return ()

    def close(self) -> Program:
        """After an evaluation."""
        return ()


class Gathered(NamedTuple):
    """Full weights that exist only while their block runs (ZeRO-3): one tensor per block of the main stack."""

    embedding: Tensor
    layers: tuple[Tensor, ...]
    head: Tensor


@dataclass(slots=True)
class _Lowering:
    """Lowers graphs under one policy and remembers the gradients they leave."""

    policy: WeightGradients
    shares: int
    gradients: list[Gradient] = field(default_factory=list)

    def lowered(self, graph: Graph, count: int, gradient: Tensor, weight: Tensor | None = None) -> Lowered:
        found = lower(graph, weight_gradients=self.policy, gradient=gradient)
        if self.policy is WeightGradients.KEPT:
            self.gradients += [Gradient(tensor, count) for tensor in weight_gradients(graph)]
        share = _share(graph, self.shares)
        if share is not None:
            self.gradients.append(Gradient(share, count))
            found = found._replace(backward=(*found.backward, Alloc(share)))
        if weight is None:
            return found
        # gathered into a flat buffer, then copied out of it
        born, died = (Alloc(weight), Alloc(weight), Free(weight)), Free(weight)
        return found._replace(forward=(*born, *found.forward, died), backward=(*born, *found.backward, died))

    def stack(self, layers: Layers, weights: tuple[Tensor | None, ...] = ()) -> tuple[Piece, ...]:
        """The layers of a stack."""
        around = weights or (None,) * len(layers.graphs)
        return tuple(
            Piece(count=count, graph=graph, lowered=self.lowered(graph, count, layers.gradient, weight), run=run)
            for (count, graph), run, weight in zip(layers.graphs, layers.runs, around, strict=True)
        )


def passes(
    recipe: Recipe, *, policy: WeightGradients = WeightGradients.KEPT, gathered: Gathered | None = None,
    shares: int = 0, built: Blocks | None = None, around: Around | None = None,
) -> Passes:
    """Forward and backward of one micro-batch.

    Args:
        recipe: the model and its implementations
        policy: what becomes of weight gradients
        gathered: weights that are gathered around each block of the main stack
        shares: each block's gradients are reduced as soon as it is done, and 1 / shares of them kept; 0: nothing kept
        built: the recipe's graphs, where they are built already
        around: what happens around the parts; None: nothing
    """
    built, around = built or blocks(recipe), around or Around()
    lowering = _Lowering(policy, shares)
    towers = [(tower, lowering.stack(tower)) for tower in built.towers]
    gradient = built.main.gradient
    first = lowering.lowered(built.embedding, 1, gradient, gathered.embedding if gathered else None)
    layers = lowering.stack(built.main, gathered.layers if gathered else ())
    last = lowering.lowered(built.head, 1, gradient, gathered.head if gathered else None)
    tied = _tied(recipe, built)
    if tied is not None:
        first, last = (found._replace(backward=tied.held(found.backward)) for found in (first, last))
    added = () if tied is None else (tied.table,)
    inputs, kept = input_tensors(recipe), _kept_logits(recipe)
    dying = () if recipe.recompute else tuple(tensor for tensor in inputs if tensor.name == ADDED_MASK)
    # in the order of the program, which what is around the parts goes by
    before = (node for tower, parts in towers for node in _tower_forward(tower, parts, around))
    after = (node for tower, parts in reversed(towers) for node in _tower_backward(tower, parts, around))
    ends = tuple(tensor for graph in (built.embedding, built.head) for tensor in weight_gradients(graph))
    name = recipe.model.main.name
    return Passes(
        (
            *map(Alloc, inputs), *around.begin(), *before, *first.forward, *around.forward(name, layers),
            *map(Free, dying), *last.forward, *_cache_dropped(built.main), *map(Alloc, kept), *around.leave(layers),
        ),
        (
            *_loss_gradient(last), *(Alloc(tower.gradient) for tower, _ in towers), *around.turn(), *last.backward,
            *around.between(tuple(weight_gradients(built.head))), *around.backward(name, layers), *first.backward,
            *(tied.summed(policy) if tied is not None else ()), *after,
            *around.end(tuple(tensor for tensor in ends if tensor not in added)), Free(built.head.outputs[0].tensor),
            *map(Free, (*kept, *(tensor for tensor in inputs if tensor not in dying))),
        ),
        tuple(gradient for gradient in lowering.gradients if gradient.tensor not in added),
    )


class Tied(NamedTuple):
    """The two gradients of a table that is the head, too. Autograd waits for both before it accumulates either."""

    head: Tensor
    table: Tensor
    view: bool  # the head's is a view of another tensor

    def held(self, program: Program) -> Program:
        """The program without the end of either, where a later micro-batch frees what it has added."""
        both = (self.head, self.table)
        return tuple(node for node in program if not (isinstance(node, Free) and node.tensor in both))

    def summed(self, policy: WeightGradients) -> Iterator[Node]:
        """Into the head's in place, or into a third tensor where that is a view.

        Source: [autograd] torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace wants the storage's only
        reference; the view of a transposed weight's gradient holds its base, a fused loss returns the tensor itself
        """
        if self.view:
            name = "sum of the tied gradients"
            total = Tensor(
                name=name, num_bytes=self.table.num_bytes, category=Category.GRADIENTS, owner=self.table.owner
            )
            yield from (Alloc(total), Free(total))
        yield Free(self.table)
        if policy is WeightGradients.TRANSIENT:
            yield Free(self.head)


def _tied(recipe: Recipe, built: Blocks) -> Tied | None:
    """None where embedding and head learn apart, or not at all."""
    if not recipe.model.tied or recipe.sizes.frozen:
        return None
    tables = [tensor for tensor in weight_gradients(built.embedding) if tensor.name == "tokens.weight_gradient"]
    for operator in built.head.operators:
        for tensor in _left(operator):
            if tables and tensor.num_bytes == tables[0].num_bytes:
                return Tied(tensor, tables[0], operator.name != "linear_cross_entropy")
    return None


def _tower_forward(tower: Layers, pieces: tuple[Piece, ...], around: Around) -> Program:
    return (Alloc(tower.hidden), *around.forward(tower.hidden.owner, pieces), *around.leave(pieces))


def _tower_backward(tower: Layers, pieces: tuple[Piece, ...], around: Around) -> Program:
    """The tower's output lives until its readers' backward is done; its gradient was summed meanwhile."""
    return (Free(tower.hidden), *around.backward(tower.hidden.owner, pieces), Free(tower.gradient))


def _loss_gradient(last: Lowered) -> Iterator[Node]:
    """The gradient of the loss, which the head's backward frees but nobody in it makes."""
    ends = live_at_end(last.forward + last.backward)
    return (Alloc(tensor) for tensor, net in ends.items() if net < 0 and tensor.name == "grad.loss")


def _weight_casts(layer: Graph, count: int) -> tuple[Program, Program]:
    """Autocast's cached 16-bit weights of recomputed layers: they live until the context of forward is left.

    Layers that are not recomputed hold their copies in what they save.
    """
    values = (value for operator in layer.operators for value in operator.extra)
    copies = [value.tensor for value in values if value.name.endswith("weight_cast")]
    if not layer.checkpoints or not copies:
        return (), ()
    return tuple(map(Alloc, copies)), (Loop(count, tuple(map(Free, copies)), label="autocast cache"),)


def _cache_dropped(layers: Layers, *, differentiates: bool = True) -> Iterator[Node]:
    """What outputs hold of every layer until the loss has been taken from them, if backward does not read it, too."""
    for count, graph in layers.graphs:
        saved = saver_counts(graph) if differentiates and len(graph.outputs) > 1 else {}
        held = tuple(value.storage.tensor for value in graph.outputs[1:] if value.storage not in saved)
        if held:
            yield Loop(count, tuple(map(Free, held)), label="outputs")


def _share(graph: Graph, shares: int) -> Tensor | None:
    """What one rank keeps of a block's reduced gradients."""
    total = sum(tensor.num_bytes for operator in graph.operators for tensor in operator.weight_gradients)
    if not shares or not total:
        return None
    return graph.tensor("gradient share", ceil_div(total, shares), Category.GRADIENTS, f"{total:,} B / {shares}")


def _kept_logits(recipe: Recipe) -> tuple[Tensor, ...]:
    if not recipe.kept_logits:
        return ()
    size = recipe.sizes.tokens * recipe.model.vocab * recipe.kept_logits
    return (Tensor(name="logits held by the loop", num_bytes=size, category=Category.ACTIVATIONS, owner="head"),)


def weight_gradients(graph: Graph) -> Iterator[Tensor]:
    """Those that a graph's backward leaves behind."""
    for operator in graph.operators:
        yield from _left(operator)


def _left(operator: Operator) -> Iterator[Tensor]:
    yield from operator.weight_gradients
    yield from (value.tensor for value in operator.saved_weight_gradients)


def inference(recipe: Recipe, built: Blocks | None = None, around: Around | None = None) -> Program:
    """Forward without autograd.

    Args:
        recipe: the model and its implementations
        built: the recipe's graphs, where they are built already
        around: what happens around the parts; None: nothing
    """
    built, inputs, around = built or blocks(recipe), input_tensors(recipe), around or Around()
    towers = (node for tower in built.towers for node in (Alloc(tower.hidden), *_inferred(tower, around)))
    return (
        *map(Alloc, inputs), *around.begin(), *towers, *lower_inference(built.embedding),
        *_inferred(built.main, around), *lower_inference(built.head), *_cache_dropped(built.main, differentiates=False),
        Free(built.head.outputs[0].tensor),
        *map(Free, inputs), *(Free(tower.hidden) for tower in built.towers), *around.close(),
    )


def _inferred(layers: Layers, around: Around) -> Program:
    pieces = (
        Piece(count=count, graph=graph, lowered=Lowered(lower_inference(graph), (), ()), run=run)
        for (count, graph), run in zip(layers.graphs, layers.runs, strict=True)
    )
    return around.forward(layers.hidden.owner, tuple(pieces), differentiates=False)


def free_gradients(gradients: tuple[Gradient, ...]) -> Program:
    """zero_grad(set_to_none=True)."""
    return tuple(Loop(item.repeats, (Free(item.tensor),)) for item in gradients)
