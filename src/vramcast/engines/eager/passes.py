"""Forward and backward of one micro-batch as programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, live_at_end
from vramcast.engines.eager.graphs import Blocks, Layers, blocks, input_tensors
from vramcast.engines.eager.recipe import Recipe
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import Lowered, WeightGradients, lower, lower_inference
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
            self.gradients += [Gradient(tensor, count) for tensor in _weight_gradients(graph)]
        share = _share(graph, self.shares)
        if share is not None:
            self.gradients.append(Gradient(share, count))
            found = found._replace(backward=(*found.backward, Alloc(share)))
        if weight is None:
            return found
        # gathered into a flat buffer, then copied out of it
        born, died = (Alloc(weight), Alloc(weight), Free(weight)), Free(weight)
        return found._replace(forward=(*born, *found.forward, died), backward=(*born, *found.backward, died))

    def stack(self, layers: Layers, weights: tuple[Tensor | None, ...] = ()) -> tuple[Program, Program, Program]:
        """Forward, backward, and what the end of forward frees."""
        forward: list[Node] = []
        backward: list[Node] = []
        leaving: list[Node] = []
        around = weights or (None,) * len(layers.graphs)
        for (count, graph), weight in zip(layers.graphs, around, strict=True):
            layer = self.lowered(graph, count, layers.gradient, weight)
            born, died = _weight_casts(graph, count)
            forward.append(Loop(count, layer.forward + born, label="layers"))
            backward.insert(0, Loop(count, layer.backward, label="layers"))
            leaving += died
        return tuple(forward), tuple(backward), tuple(leaving)


def passes(
    recipe: Recipe, *, policy: WeightGradients = WeightGradients.KEPT, gathered: Gathered | None = None,
    shares: int = 0, built: Blocks | None = None,
) -> Passes:
    """Forward and backward of one micro-batch.

    Args:
        recipe: the model and its implementations
        policy: what becomes of weight gradients
        gathered: weights that are gathered around each block of the main stack
        shares: each block's gradients are reduced as soon as it is done, and 1 / shares of them kept; 0: nothing kept
        built: the recipe's graphs, where they are built already
    """
    built = built or blocks(recipe)
    lowering = _Lowering(policy, shares)
    towers = [(tower, lowering.stack(tower)) for tower in built.towers]
    gradient = built.main.gradient
    first = lowering.lowered(built.embedding, 1, gradient, gathered.embedding if gathered else None)
    forward, backward, leaving = lowering.stack(built.main, gathered.layers if gathered else ())
    last = lowering.lowered(built.head, 1, gradient, gathered.head if gathered else None)
    added = _added_to_the_heads(recipe, built.embedding, lowering.gradients)
    inputs, kept = input_tensors(recipe), _kept_logits(recipe)
    before = tuple(node for tower, parts in towers for node in (Alloc(tower.hidden), *parts[0], *parts[2]))
    after = tuple(node for tower, parts in reversed(towers) for node in _tower_backward(tower, parts[1]))
    return Passes(
        (*map(Alloc, inputs), *before, *first.forward, *forward, *last.forward, *map(Alloc, kept), *leaving),
        (
            *_loss_gradient(last), *(Alloc(tower.gradient) for tower, _ in towers), *last.backward, *backward,
            *first.backward, *_sum_with_the_heads(added), *after, Free(built.head.outputs[0].tensor),
            *map(Free, (*kept, *inputs)),
        ),
        tuple(gradient for gradient in lowering.gradients if gradient.tensor not in added),
    )


def _added_to_the_heads(recipe: Recipe, embedding: Graph, gradients: list[Gradient]) -> tuple[Tensor, ...]:
    """The embedding's gradient of a table that is the head, too: autograd adds it to the head's and frees it."""
    if not recipe.model.tied or recipe.sizes.frozen:
        return ()
    kept = {gradient.tensor for gradient in gradients}
    of_head = {tensor.num_bytes for tensor in kept if tensor.name == "head.output.weight_gradient"}
    of_table = (tensor for tensor in _weight_gradients(embedding) if tensor.name == "tokens.weight_gradient")
    return tuple(tensor for tensor in of_table if tensor in kept and tensor.num_bytes in of_head)


def _sum_with_the_heads(added: tuple[Tensor, ...]) -> Iterator[Node]:
    """A third tensor while both are added: the head's gradient is a view, into which nothing is added in place.

    Source: [autograd] torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace wants the storage's only reference;
    the view of a transposed weight's gradient holds its base
    """
    for tensor in added:
        total = Tensor(
            name="sum of the tied gradients", num_bytes=tensor.num_bytes, category=Category.GRADIENTS,
            owner=tensor.owner,
        )
        yield from (Alloc(total), Free(total), Free(tensor))


def _tower_backward(tower: Layers, backward: Program) -> Program:
    """The tower's output lives until its readers' backward is done; its gradient was summed meanwhile."""
    return (Free(tower.hidden), *backward, Free(tower.gradient))


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


def _weight_gradients(graph: Graph) -> Iterator[Tensor]:
    for operator in graph.operators:
        yield from operator.weight_gradients
        for value in operator.saved_weight_gradients:
            yield value.tensor


def inference(recipe: Recipe, built: Blocks | None = None) -> Program:
    """Forward without autograd; `built` are the recipe's graphs, where they are built already."""
    built, inputs = built or blocks(recipe), input_tensors(recipe)
    towers = tuple(node for tower in built.towers for node in (Alloc(tower.hidden), *_inferred(tower)))
    return (
        *map(Alloc, inputs), *towers, *lower_inference(built.embedding), *_inferred(built.main),
        *lower_inference(built.head), Free(built.head.outputs[0].tensor), *map(Free, inputs),
        *(Free(tower.hidden) for tower in built.towers),
    )


def _inferred(layers: Layers) -> Program:
    return tuple(Loop(count, lower_inference(graph), label="layers") for count, graph in layers.graphs)


def free_gradients(gradients: tuple[Gradient, ...]) -> Program:
    """zero_grad(set_to_none=True)."""
    return tuple(Loop(item.repeats, (Free(item.tensor),)) for item in gradients)
