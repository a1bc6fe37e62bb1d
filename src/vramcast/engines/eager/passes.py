"""Forward and backward of one micro-batch as programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vramcast.blocks.ends import boundary, chained, embedding, head
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.model import Layer
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, live_at_end
from vramcast.engines.eager.recipe import Recipe
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import Lowered, WeightGradients, lower, lower_inference
from vramcast.units import ceil_div

INT64 = 8


class Gradient(NamedTuple):
    """Weight gradients that a first backward leaves behind."""

    tensor: Tensor
    count: int


class Passes(NamedTuple):
    """One micro-batch."""

    forward: Program
    backward: Program
    gradients: tuple[Gradient, ...]  # what backward leaves under the KEPT policy

    @property
    def micro_batch(self) -> Program:
        """Forward, then backward."""
        return self.forward + self.backward


class Gathered(NamedTuple):
    """Full weights that exist only while their block runs (ZeRO-3, FSDP): one tensor per block."""

    embedding: Tensor
    layers: tuple[Tensor, ...]  # one per run of equal layers
    head: Tensor


class Blocks(NamedTuple):
    """The graphs of a model, its equal layers once."""

    embedding: Graph
    layers: tuple[tuple[int, Graph], ...]
    head: Graph
    hidden: Tensor
    gradient: Tensor


def blocks(recipe: Recipe) -> Blocks:
    """Graphs of embedding, layers and head, tied by the residual stream."""
    sizes, model = recipe.sizes, recipe.model
    stack = model.main
    hidden = boundary(sizes, stack.name)
    gradient = Tensor(
        name="gradient of hidden states", num_bytes=hidden.num_bytes, category=Category.TEMPORARIES, owner=stack.name
    )
    layers: list[tuple[int, Graph]] = []
    left = recipe.recompute_layers
    for run in stack.runs:
        recomputed = run.count if left is None else min(left, run.count)
        left = None if left is None else left - recomputed
        for count, again in ((recomputed, recipe.recompute), (run.count - recomputed, False)):
            if count:
                layers.append((count, _layer(run.layer, recipe, hidden, again)))
    first = chained(embedding(model, sizes, learns=recipe.learns("embedding.tokens")), hidden)
    last = head(
        model, sizes, learns=recipe.learns("embedding.tokens" if model.tied else "head.output"), loss=recipe.loss,
        outputs_fp32=recipe.outputs_fp32,
    )
    return Blocks(first, tuple(layers), chained(last, hidden), hidden, gradient)


def _layer(layer: Layer, recipe: Recipe, hidden: Tensor, again: bool) -> Graph:
    graph = chained(decoder_layer(layer, recipe.sizes, owner=hidden.owner + ".layers"), hidden)
    if again:
        graph.checkpoint(0, outputs_alive=recipe.reentrant)
    return graph


def passes(
    recipe: Recipe, *, policy: WeightGradients = WeightGradients.KEPT, gathered: Gathered | None = None, shares: int = 0
) -> Passes:
    """Forward and backward of one micro-batch.

    Args:
        recipe: the model and its implementations
        policy: what becomes of weight gradients
        gathered: weights that are gathered around each block
        shares: each block's gradients are reduced as soon as it is done, and 1 / shares of them kept; 0: nothing kept
    """
    built = blocks(recipe)
    inputs = input_tensors(recipe)

    kept_shares: dict[int, Tensor] = {}

    def lowered(graph: Graph, weight: Tensor | None) -> Lowered:
        found = lower(graph, weight_gradients=policy, gradient=built.gradient)
        share = _share(graph, shares)
        if share is not None:
            kept_shares[id(graph)] = share
            found = found._replace(backward=(*found.backward, Alloc(share)))
        if weight is None:
            return found
        born, died = Alloc(weight), Free(weight)
        return found._replace(forward=(born, *found.forward, died), backward=(born, *found.backward, died))

    first = lowered(built.embedding, gathered.embedding if gathered else None)
    last = lowered(built.head, gathered.head if gathered else None)
    around: tuple[Tensor | None, ...] = gathered.layers if gathered else (None,) * len(built.layers)
    middle = [(count, lowered(graph, weight)) for (count, graph), weight in zip(built.layers, around, strict=True)]
    forward: list[Node] = [*map(Alloc, inputs), *first.forward]
    leaving: list[Node] = []
    for (count, layer), (_, graph) in zip(middle, built.layers, strict=True):
        born, died = _weight_casts(graph, count)
        forward.append(Loop(count, layer.forward + born, label="layers"))
        leaving += died
    kept = _kept_logits(recipe)
    forward += [*last.forward, *map(Alloc, kept), *leaving]
    backward: list[Node] = [*_loss_gradient(last, built.gradient), *last.backward]
    backward += [Loop(count, layer.backward, label="layers") for count, layer in reversed(middle)]
    backward += [*first.backward, Free(built.head.outputs[0].tensor), *map(Free, kept), *map(Free, inputs)]
    gradients = tuple(_gradients(built)) if policy is WeightGradients.KEPT else ()
    everything = ((1, built.embedding), *built.layers, (1, built.head))
    gradients += tuple(Gradient(kept_shares[id(graph)], count) for count, graph in everything if id(graph) in kept_shares)
    return Passes(tuple(forward), tuple(backward), gradients)


def _loss_gradient(last: Lowered, gradient: Tensor) -> list[Node]:
    """The gradient of the loss, which the head's backward frees but nobody in it makes."""
    ends = live_at_end(last.forward + last.backward)
    return [Alloc(tensor) for tensor, net in ends.items() if net < 0 and tensor.name == "grad.loss" and tensor is not gradient]


def _weight_casts(layer: Graph, count: int) -> tuple[Program, Program]:
    """Autocast's cached 16-bit weights of recomputed layers: they live until the context of forward is left.

    Layers that are not recomputed hold their copies in what they save.
    """
    copies = [value.tensor for operator in layer.operators for value in operator.extra if value.name.endswith("weight_cast")]
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


def inference(recipe: Recipe) -> Program:
    """Forward without autograd."""
    built, inputs = blocks(recipe), input_tensors(recipe)
    loss = built.head.outputs[0].tensor
    layers = tuple(Loop(count, lower_inference(graph), label="layers") for count, graph in built.layers)
    return (
        *map(Alloc, inputs), *lower_inference(built.embedding), *layers, *lower_inference(built.head),
        Free(loss), *map(Free, inputs),
    )


def _gradients(built: Blocks) -> Iterator[Gradient]:
    for count, graph in ((1, built.embedding), *built.layers, (1, built.head)):
        for operator in graph.operators:
            for tensor in operator.weight_gradients:
                yield Gradient(tensor, count)
            for value in operator.saved_weight_gradients:
                yield Gradient(value.tensor, count)


def input_tensors(recipe: Recipe) -> tuple[Tensor, ...]:
    """Token ids, labels, attention mask and positions (int64), cosines and sines of the rotary embedding."""
    sizes = recipe.sizes
    ids = sizes.tokens * INT64
    names = ("input_ids", "labels", "attention_mask", "position_ids")
    found = [Tensor(name=name, num_bytes=ids, category=Category.INPUTS, owner="batch") for name in names]
    width = max(sizes.numerics.residual, sizes.numerics.compute)
    dims = [getattr(layer.mixer, "head_dim", 0) for layer in recipe.model.main.layers[:1]]
    if dims and dims[0] and not recipe.model.main.positions:
        rotary = sizes.seq_len * dims[0] * width
        found += [Tensor(name=name, num_bytes=rotary, category=Category.INPUTS, owner="rotary") for name in ("cos", "sin")]
    if sizes.masked:
        mask = sizes.batch * sizes.seq_len * sizes.seq_len
        found.append(Tensor(name="causal mask", num_bytes=mask, category=Category.INPUTS, owner="batch"))
    return tuple(found)


def free_gradients(gradients: tuple[Gradient, ...]) -> Program:
    """zero_grad(set_to_none=True)."""
    return tuple(Loop(item.count, (Free(item.tensor),)) for item in gradients)
