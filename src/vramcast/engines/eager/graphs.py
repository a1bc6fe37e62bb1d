"""Graphs of a model's parts as eager PyTorch runs them, and the tensors of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast import operators
from vramcast.blocks.ends import boundary, chained, embedding, head
from vramcast.blocks.mlp import is_router
from vramcast.blocks.parts import Sizes
from vramcast.blocks.towers import entrance, exit_of, given_bytes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Attention, Run, Stack
from vramcast.domain.program import Category, Tensor
from vramcast.engines.eager.recipe import Recipe
from vramcast.errors import Note
from vramcast.operators.graph import Graph, without_gradients
from vramcast.units import INT64

ADDED_MASK: Final = "attention mask"
"""What eager code adds to scores: no operator saves it, so it dies with the forward of the layers unless a checkpoint
holds it for theirs [transformers masking_utils.py `eager_mask`]."""
BATCH_TENSORS: Final = ("input_ids", "labels", "attention_mask", "position_ids")


class Layers(Struct, frozen=True):
    """A stack's residual layers, equal ones once, and the stream that ties them."""

    graphs: tuple[tuple[int, Graph], ...]
    hidden: Tensor
    gradient: Tensor
    runs: tuple[int, ...] = ()  # which run of equal layers each graph is of
    entrance: Graph | None = None  # of a tower: what makes its stream
    exit: Graph | None = None  # of a tower: what makes of its stream what others read
    flows: bool = True  # gradients flow through the layers
    is_merged: bool = False  # its output takes the places of tokens, and is gone then


class Blocks(Struct, frozen=True):
    """All graphs of a model."""

    towers: tuple[Layers, ...]
    embedding: Graph
    main: Layers
    head: Graph

    def counted(self) -> Iterator[tuple[int, Graph]]:
        """Every graph with its number of repeats."""
        for tower in self.towers:
            yield from ((1, graph) for graph in (tower.entrance, tower.exit) if graph is not None)
            yield from tower.graphs
        yield 1, self.embedding
        yield from self.main.graphs
        yield 1, self.head


def blocks(recipe: Recipe) -> Blocks:
    """Graphs of towers, embedding, layers and head."""
    sizes, model = recipe.sizes, recipe.model
    towers = tuple(_tower(tower.stack, recipe.of(tower.stack, tower.sizes), recipe) for tower in recipe.towers)
    main = _layers(model.main, recipe.of(model.main, sizes), recipe)
    starts = recipe.learns("embedding.tokens", "embedding")
    first = embedding(model, recipe.of_ends, learns=starts) if model.main.vision is None else (
        entrance(model.main, recipe.of(model.main, sizes)))
    # PEFT trains a copy of the head, which is tied to nothing
    tied = model.tied and not recipe.copies_learning
    learns = recipe.learns("embedding.tokens", "embedding") if tied else recipe.learns("head.output", "head")
    last = head(
        model, recipe.of(model.main, recipe.of_ends), learns=learns, loss=recipe.loss, returns_fp32=recipe.returns_fp32,
        outputs_fp32=recipe.outputs_fp32, classifies=recipe.learns("head.classifier", "head"),
    )
    crosses = any(layer.cross_attention for layer in model.main.layers)
    feeds = any(
        tower.flows or (tower.exit is not None and _learning(tower.exit)) for tower in towers
        if tower.is_merged or crosses
    )
    if model.main.name in recipe.frozen and not (feeds or _learning(first)):
        for graph in (first, *(graph for _, graph in main.graphs), last):
            without_gradients(graph)
        main = replace(main, flows=False)
    return Blocks(towers, chained(first, main.hidden), main, chained(last, main.hidden))


def _learning(graph: Graph) -> bool:
    return bool(graph.weight_gradients)


def _tower(stack: Stack, sizes: Sizes, recipe: Recipe) -> Layers:
    """A tower's layers with both of its ends, and what of it autograd follows."""
    found = _layers(stack, sizes, recipe)
    if stack.vision is None:
        first = last = None
    else:
        first = chained(entrance(stack, sizes), found.hidden)
        last = exit_of(stack, sizes, learns=recipe.learns("projector", "projector"))
        last = chained(last, found.hidden) if last.operators else None
    graphs = [graph for graph in (first, *(graph for _, graph in found.graphs)) if graph is not None]
    flows = recipe.follows_inputs or any(map(_learning, graphs))
    if not flows:
        for graph in (*graphs, *(() if last is None else (last,))):
            without_gradients(graph)
    elif first is not None and not _learning(first) and not recipe.follows_inputs:
        without_gradients(first)
    crosses = any(layer.cross_attention for layer in recipe.model.main.layers)
    merged = bool(stack.projector) and not crosses
    return replace(found, entrance=first, exit=last, flows=flows, is_merged=merged)


def _layers(stack: Stack, sizes: Sizes, recipe: Recipe) -> Layers:
    hidden = boundary(sizes, stack.name)
    gradient = Tensor(
        name="gradient of hidden states", num_bytes=hidden.num_bytes, category=Category.TEMPORARIES, owner=stack.name,
        formula=hidden.formula, source=hidden.source,
    )
    found, first, divided = [], 0, tuple(run_parts(stack, recipe))
    for index, count, again in divided:
        here = recipe.at(stack, sizes, first, first + count - 1)
        found.append((count, _layer(stack.runs[index], here, hidden, recipe, again)))
        first += count
    return Layers(tuple(found), hidden, gradient, tuple(index for index, _, _ in divided))


def run_parts(stack: Stack, recipe: Recipe) -> Iterator[tuple[int, int, bool]]:
    """Index of the run, layers, and whether they are recomputed; the first layers of a stack are, if not all."""
    left = recipe.recompute_layers if recipe.recompute else 0
    for index, run in enumerate(stack.runs):
        recomputed = run.count if left is None else min(left, run.count)
        left = None if left is None else left - recomputed
        for count, again in ((recomputed, True), (run.count - recomputed, False)):
            if count:
                yield index, count, again


def _layer(run: Run, sizes: Sizes, hidden: Tensor, recipe: Recipe, again: bool) -> Graph:
    graph = chained(decoder_layer(run.layer, sizes, owner=hidden.owner + ".layers"), hidden)
    if recipe.context_ranks > 1:
        operators.attention.ring_attention(graph, recipe.context_ranks)
    if recipe.heads_ranks > 1:
        operators.attention.ulysses_attention(graph)
    if again:
        graph.checkpoint(0, outputs_alive=recipe.reentrant, keep=is_router if recipe.keeps_router else None)
    return graph


def input_tensors(recipe: Recipe) -> tuple[Tensor, ...]:
    """Token ids, labels, attention mask and positions (int64), cosines and sines, the mask of padded batches."""
    sizes, stack = recipe.sizes, recipe.model.main
    given = [
        _input("pixel_values", size, "batch", f"{size:,} B in fp32")
        for one, its in (*recipe.towers, (stack, sizes)) if (size := given_bytes(one, its))
    ]
    if stack.vision is not None:
        return tuple(given)
    ids = sizes.tokens * INT64
    found = [_input(name, ids, "batch", Note("{} tokens x {} B", sizes.tokens, INT64)) for name in BATCH_TENSORS]
    width = max(sizes.numerics.residual, sizes.numerics.compute)
    dim = next((getattr(layer.mixer, "head_dim", 0) for layer in stack.layers), 0)
    if dim and not stack.positions:
        rotary = sizes.seq_len * dim * width
        found += [_input(name, rotary, "rotary", f"{sizes.seq_len} x {dim} x {width} B") for name in ("cos", "sin")]
    if sizes.attention is AttentionKernel.EAGER and stack.causal:
        kinds = len({layer.mixer.window for layer in stack.layers if isinstance(layer.mixer, Attention)})
        mask = sizes.batch * sizes.seq_len * sizes.seq_len * sizes.numerics.compute
        formula = f"{sizes.batch} x {sizes.seq_len} x {sizes.seq_len} x {sizes.numerics.compute} B"
        found += [_input(ADDED_MASK, mask, "batch", formula)] * kinds
    if sizes.masked:
        mask = sizes.batch * sizes.seq_len * sizes.seq_len
        found.append(_input("causal mask", mask, "batch", f"{sizes.batch} x {sizes.seq_len} x {sizes.seq_len} x 1 B"))
    return (*given, *found)


def _input(name: str, num_bytes: int, owner: str, formula: str) -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=Category.INPUTS, owner=owner, formula=formula,
        source="transformers models/llama/modeling_llama.py LlamaModel.forward",
    )
