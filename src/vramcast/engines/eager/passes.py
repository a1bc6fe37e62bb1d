"""Forward and backward of one micro-batch over the graphs of a model's parts, tied by residual streams."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, live_at_end, transient
from vramcast.engines.eager.graphs import ADDED_MASK, Blocks, Layers, blocks, input_tensors
from vramcast.engines.eager.recipe import Recipe
from vramcast.operators.graph import Graph, saver_counts
from vramcast.operators.loss import WAITS
from vramcast.operators.lowering import Lowered, WeightGradients, lower, lower_inference
from vramcast.units import FP32, ceil_div


class Gradient(Struct, frozen=True):
    """Weight gradients that a backward leaves behind."""

    tensor: Tensor
    repeats: int


class Passes(Struct, frozen=True):
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
        return self.graph.weight_gradients


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


class Gathered(Struct, frozen=True):
    """Full weights that exist only while their block runs (ZeRO-3): one tensor per block of the main stack."""

    embedding: Tensor
    layers: tuple[Tensor, ...]
    head: Tensor


class _Lowering(Struct):
    """Lowers graphs under one policy and remembers the gradients they leave."""

    policy: WeightGradients
    shares: int
    offloads: bool = False
    gradients: list[Gradient] = []

    def lowered(self, graph: Graph, count: int, gradient: Tensor, weight: Tensor | None = None) -> Lowered:
        found = lower(graph, weight_gradients=self.policy, gradient=gradient)
        if self.policy is WeightGradients.KEPT:
            self.gradients += [Gradient(tensor, count) for tensor in graph.weight_gradients]
        share = _share(graph, self.shares)
        if share is not None:
            self.gradients.append(Gradient(share, count))
            found = replace(found, backward=(*found.backward, Alloc(share)))
        if weight is None:
            return found
        # gathered into a flat buffer, then copied out of it
        born, died = (Alloc(weight), Alloc(weight), Free(weight)), Free(weight)
        return replace(found, forward=(*born, *found.forward, died), backward=(*born, *found.backward, died))

    def stack(self, layers: Layers, weights: tuple[Tensor | None, ...] = ()) -> tuple[Piece, ...]:
        """The layers of a stack."""
        around = weights or (None,) * len(layers.graphs)
        found = (self.lowered(graph, count, layers.gradient, weight) for (count, graph), weight in zip(
            layers.graphs, around, strict=True))
        return tuple(
            Piece(count=count, graph=graph, lowered=_offloaded(lowered) if self.offloads else lowered, run=run)
            for (count, graph), run, lowered in zip(layers.graphs, layers.runs, found, strict=True)
        )


def _saved(forward: Program) -> tuple[Tensor, ...]:
    """What autograd keeps of a layer, casts that autocast keeps itself left out."""
    return tuple(
        tensor for tensor, count in live_at_end(forward).items() for _ in range(count)
        if tensor.category is Category.ACTIVATIONS and not tensor.name.endswith("weight_cast")
    )


def _offloaded(lowered: Lowered) -> Lowered:
    """The layer with what it saves on the host from its forward to its backward, which takes all of it back at once.

    Hooks take each tensor back alone, so that less of a layer is there at once: of a Llama of 12 layers and 1,024 wide
    under `save_on_cpu` a trace has 1.18 GiB and this 1.43 (1.43 and 1.45 where layers are recomputed).
    """
    saved = _saved(lowered.forward)
    return replace(
        lowered, forward=(*lowered.forward, *map(Free, saved)), backward=(*map(Alloc, saved), *lowered.backward),
        saved=tuple(map(Alloc, saved)),
    )


def _on_their_way(recipe: Recipe, main: Layers, pieces: tuple[Piece, ...]) -> tuple[Tensor, ...]:
    """Beside offloaded layers: the stream that the next one reads, and what a copy holds that has not ended yet."""
    if not recipe.offloads:
        return ()
    sizes = (tensor.num_bytes for piece in pieces for tensor in _saved(piece.lowered.saved))
    most = recipe.offloads_in_flight * max(sizes, default=0)
    stream = Tensor(name="hidden states of the next layer", num_bytes=main.hidden.num_bytes,
                    category=Category.ACTIVATIONS, owner=main.hidden.owner)
    copied = Tensor(name="on their way to the host", num_bytes=most, category=Category.ACTIVATIONS,
                    owner=main.hidden.owner, source="trl models/activation_offloading.py `max_fwd_stash_size`")
    return (stream, copied) if most else (stream,)


def offloaded_bytes(recipe: Recipe) -> int:
    """What the layers of one rank keep on the host between forward and backward of a micro-batch [bytes]."""
    main = blocks(recipe).main
    found = ((count, lower(graph, weight_gradients=WeightGradients.TRANSIENT, gradient=main.gradient))
             for count, graph in main.graphs)
    return sum(count * sum(tensor.num_bytes for tensor in _saved(lowered.forward)) for count, lowered in found)


def passes(
    recipe: Recipe, *, policy: WeightGradients = WeightGradients.KEPT, gathered: Gathered | None = None,
    shares: int = 0, built: Blocks | None = None, around: Around | None = None, between: Program = (),
) -> Passes:
    """Forward and backward of one micro-batch.

    Args:
        policy: what becomes of weight gradients
        gathered: weights that are gathered around each block of the main stack
        shares: each block's gradients are reduced as soon as it is done, and 1 / shares of them kept; 0: nothing kept
        built: the recipe's graphs, where they are built already
        around: what happens around the parts; None: nothing
        between: what runs between forward and backward
    """
    built, around = built or blocks(recipe), around or Around()
    lowering = _Lowering(policy, shares)
    towers = [_Lowered.of(tower, lowering) for tower in built.towers]
    lowering.offloads = recipe.offloads and built.main.flows
    gradient = built.main.gradient
    first = _arriving(built.main) if not recipe.starts else (
        lowering.lowered(built.embedding, 1, gradient, gathered.embedding if gathered else None))
    layers = lowering.stack(built.main, gathered.layers if gathered else ())
    moving = _on_their_way(recipe, built.main, layers)
    last = _leaving(built.main) if not recipe.ends else (
        lowering.lowered(built.head, 1, gradient, gathered.head if gathered else None))
    tied = _tied(recipe, built)
    if tied is not None:
        first, last = (replace(found, backward=tied.held(found.backward)) for found in (first, last))
    added = () if tied is None else (tied.table,)
    heads, between = _asked(last.forward, between)
    inputs, kept = input_tensors(recipe), _kept_logits(recipe, recipe.kept_logits)
    later = _kept_logits(recipe, recipe.kept_behind)
    dying = () if recipe.recompute else tuple(tensor for tensor in inputs if tensor.name == ADDED_MASK)
    # in the order of the program, which what is around the parts goes by
    before, inside = ([tower for tower in towers if tower.layers.is_merged is merged] for merged in (False, True))
    outside = (graph for tower in built.towers for graph in (tower.entrance, tower.exit) if graph is not None)
    ends = tuple(tensor for graph in (*outside, built.embedding, built.head) for tensor in graph.weight_gradients)
    name = recipe.model.main.name
    return Passes(
        (
            *map(Alloc, inputs), *around.begin(), *(node for tower in before for node in tower.forward(around)),
            *first.forward, *(node for tower in inside for node in tower.merged(around)), *map(Alloc, moving),
            *around.forward(name, layers),
            *map(Free, dying), *heads, *_cache_dropped(built.main), *map(Alloc, kept), *_second_loss(recipe),
            *around.leave(layers), *between, *map(Alloc, later),
        ),
        (
            *last.loss_gradient, *(node for tower in towers for node in tower.summed()), *around.turn(),
            *last.backward, *around.between(built.head.weight_gradients),
            *(around.backward(name, layers) if built.main.flows else ()),
            *(node for tower in reversed(inside) for node in tower.backward(around)), *first.backward,
            *(tied.summed(policy) if tied is not None else ()),
            *(node for tower in reversed(before) for node in tower.backward(around)),
            *around.end(tuple(tensor for tensor in ends if tensor not in added)),
            *((Free(built.head.outputs[0].tensor),) if recipe.ends else ()),
            *map(Free, (*moving, *kept, *later, *(tensor for tensor in inputs if tensor not in dying))),
        ),
        tuple(gradient for gradient in lowering.gradients if gradient.tensor not in added),
    )


def _asked(head: Program, between: Program) -> tuple[Program, Program]:
    """The head's forward with what its loss waits for in its place, and what is left to run behind it."""
    waits = (place for place, node in enumerate(head) if isinstance(node, Alloc) and node.tensor.name == WAITS)
    place = next(waits, None)
    return (head, between) if place is None else ((*head[:place], *between, *head[place:]), ())


def _arriving(main: Layers) -> Lowered:
    """In place of the embedding: the stream is copied from another card, and its gradient back to it."""
    return Lowered((Alloc(main.hidden),), (Free(main.gradient),) if main.flows else (), ())


def _leaving(main: Layers) -> Lowered:
    """In place of the head: the stream is copied to another card, and its gradient comes from there."""
    return Lowered((Free(main.hidden),), (Alloc(main.gradient),) if main.flows else (), ())


class Tied(Struct, frozen=True):
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
    learns = recipe.learns("embedding.tokens", "embedding")
    if not (recipe.model.tied and recipe.starts and learns) or recipe.copies_learning:
        return None
    tables = [tensor for tensor in built.embedding.weight_gradients if tensor.name == "tokens.weight_gradient"]
    for operator in built.head.operators:
        for tensor in operator.gradients_left:
            if tables and tensor.num_bytes == tables[0].num_bytes:
                return Tied(tensor, tables[0], operator.name != "linear_cross_entropy")
    return None


class _Lowered(Struct, frozen=True):
    """A tower's programs."""

    layers: Layers
    pieces: tuple[Piece, ...]
    entrance: Lowered | None
    exit: Lowered | None

    @classmethod
    def of(cls, tower: Layers, lowering: _Lowering) -> _Lowered:
        """Both ends and the layers."""
        first, last = (
            None if graph is None else lowering.lowered(graph, 1, tower.gradient)
            for graph in (tower.entrance, tower.exit)
        )
        return cls(tower, lowering.stack(tower), first, last)

    @property
    def answers(self) -> tuple[Tensor, ...]:
        """What others read."""
        return _answers(self.layers)

    def _gradients(self) -> Program:
        """Of what others read, where they make any."""
        graph = self.layers.exit
        if graph is None or self.exit is None:
            return (Alloc(self.layers.gradient),) if self.layers.flows else ()
        if self.layers.hidden is graph.outputs[0].storage.tensor:
            return (Alloc(self.layers.gradient),) if graph.outputs[0].gradient_bytes else ()
        ends = live_at_end(self.exit.forward + self.exit.backward)
        return tuple(Alloc(tensor) for tensor, net in ends.items() if net < 0 and tensor is not self.layers.hidden)

    def forward(self, around: Around) -> Program:
        """What others read stays."""
        first = (Alloc(self.layers.hidden),) if self.entrance is None else self.entrance.forward
        body = around.forward(self.layers.hidden.owner, self.pieces, differentiates=self.layers.flows)
        last = () if self.exit is None else self.exit.forward
        return (*first, *body, *around.leave(self.pieces), *last)

    def merged(self, around: Around) -> Program:
        """What others read takes the places of tokens behind their embedding, and is gone."""
        return (*self.forward(around), *map(Free, self.answers))

    def summed(self) -> Program:
        """The gradient that all layers of the main stack add to, where they all read the tower."""
        return () if self.layers.is_merged else self._gradients()

    def backward(self, around: Around) -> Program:
        """The output lives until its readers' backward is done, unless it was merged into their stream."""
        nodes = self._gradients() if self.layers.is_merged else tuple(map(Free, self.answers))
        if self.exit is not None:
            nodes += self.exit.backward
        if not self.layers.flows:
            return nodes
        nodes += around.backward(self.layers.hidden.owner, self.pieces)
        graph = self.layers.entrance
        if graph is None or self.entrance is None or not graph.outputs[0].gradient_bytes:
            return (*nodes, Free(self.layers.gradient))
        return (*nodes, *self.entrance.backward)


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


def _kept_logits(recipe: Recipe, width: int) -> tuple[Tensor, ...]:
    if not width:
        return ()
    size = recipe.sizes.tokens * recipe.model.vocab * width
    return (Tensor(name="logits held by the loop", num_bytes=size, category=Category.ACTIVATIONS, owner="head"),)


def _second_loss(recipe: Recipe) -> Program:
    """Where labels are handed to the model and the loop makes its loss of the logits, too: they, log-probabilities in
    fp32 that the model's own loss saves, and copies in fp32, which of several samples are shifted, live while it does.

    Source: LLaMA-Factory src/llamafactory/v1/core/base_trainer.py `compute_log_probs`
    """
    if not recipe.second_loss:
        return ()
    width = recipe.sizes.numerics.compute + (2 if recipe.sizes.batch == 1 else 3) * FP32
    size = recipe.sizes.tokens * recipe.model.vocab * width
    tensor = Tensor(name="logits and the loss that nobody uses", num_bytes=size, category=Category.TEMPORARIES,
                    owner="head", formula=f"{recipe.sizes.tokens:,} x {recipe.model.vocab:,} x {width} B")
    return transient(tensor)


def inference(recipe: Recipe, built: Blocks | None = None, around: Around | None = None) -> Program:
    """Forward without autograd.

    Args:
        built: the recipe's graphs, where they are built already
        around: what happens around the parts; None: nothing
    """
    built, inputs, around = built or blocks(recipe), input_tensors(recipe), around or Around()
    towers = (node for tower in built.towers if not tower.is_merged for node in _tower_inferred(tower, around))
    merged = (
        node for tower in built.towers if tower.is_merged
        for node in (*_tower_inferred(tower, around), *map(Free, _answers(tower)))
    )
    read = (Free(tensor) for tower in built.towers if not tower.is_merged for tensor in _answers(tower))
    first = lower_inference(built.embedding) if recipe.starts else _arriving(built.main).forward
    last, done = (lower_inference(built.head), (Free(built.head.outputs[0].tensor),)) if recipe.ends else (
        _leaving(built.main).forward, ())
    return (
        *map(Alloc, inputs), *around.begin(), *towers, *first, *merged,
        *_inferred(built.main, around), *last, *_cache_dropped(built.main, differentiates=False), *done,
        *map(Free, inputs), *read, *around.close(),
    )


def _tower_inferred(tower: Layers, around: Around) -> Program:
    first = (Alloc(tower.hidden),) if tower.entrance is None else lower_inference(tower.entrance)
    return (*first, *_inferred(tower, around), *(() if tower.exit is None else lower_inference(tower.exit)))


def _answers(tower: Layers) -> tuple[Tensor, ...]:
    """What others read of a tower."""
    return (tower.hidden,) if tower.exit is None else tuple(value.storage.tensor for value in tower.exit.outputs)


def evaluation(recipe: Recipe, built: Blocks | None = None, around: Around | None = None) -> Program:
    """Forward of an evaluation, whose samples may be others than a step's.

    Args:
        built: the graphs of a step
        around: what happens around the parts; None: nothing
    """
    other = recipe.evaluated
    return inference(other, built if other is recipe else None, around)


def _inferred(layers: Layers, around: Around) -> Program:
    pieces = (
        Piece(count=count, graph=graph, lowered=Lowered(lower_inference(graph), (), ()), run=run)
        for (count, graph), run in zip(layers.graphs, layers.runs, strict=True)
    )
    return around.forward(layers.hidden.owner, tuple(pieces), differentiates=False)


def free_gradients(gradients: tuple[Gradient, ...]) -> Program:
    """zero_grad(set_to_none=True)."""
    return tuple(Loop(item.repeats, (Free(item.tensor),)) for item in gradients)
