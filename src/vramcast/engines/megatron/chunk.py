"""One model chunk: the layers, embedding and head that a stage owns, and their programs.

Source: Megatron-LM megatron/core/transformer/transformer_block.py, get_num_layers_to_build.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from vramcast.blocks.megatron_attention import Shape
from vramcast.blocks.megatron_layer import HeadSizes, embedding_graph, head_graph, layer_graph, prediction_graph
from vramcast.domain.job import Recompute
from vramcast.domain.model import Head, Layer, Norm, Noun, Run, Stack
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.megatron import weights
from vramcast.engines.megatron.options import DEFAULT, Context
from vramcast.engines.megatron.weights import embedding_weights, head_weights, layer_weights, owned_weights
from vramcast.errors import InvalidSpec
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import Caller, Lowered, WeightGradients, lower
from vramcast.operators.transformer_engine import norm


class Chunk(Noun, frozen=True):
    """One model chunk: a contiguous piece of the network on one (virtual) stage."""

    runs: tuple[Run, ...]
    embedding: bool = False
    head: bool = False
    first: int = 0  # place of its first layer in the network

    @property
    def num_layers(self) -> int:
        """Layers of the chunk."""
        return sum(run.count for run in self.runs)


def stage_layers(context: Context) -> list[int]:
    """Number of layers of every virtual stage, in the order the data meets them."""
    plan, total = context.job.plan, context.model.num_layers
    if context.options.stage_layers:
        counts = placed_layers(context.options.stage_layers)
        if len(counts) != plan.pp * plan.virtual_stages or sum(counts) != total:
            raise InvalidSpec(
                "stage_layers={} does not place {} layers on pp={} x virtual_stages={} stages",
                context.options.stage_layers, total, plan.pp, plan.virtual_stages
            )
        return counts
    first, last = plan.first_stage_layers, plan.last_stage_layers
    if first is None and last is None:
        return _even(total, plan.pp * plan.virtual_stages, plan.pp)
    middle = plan.pp - (first is not None) - (last is not None)
    rest = total - (first or 0) - (last or 0)
    inner = _even(rest, middle, plan.pp) if middle else []
    counts = ([first] if first is not None else []) + inner + ([last] if last is not None else [])
    chunks = [count // plan.virtual_stages for _ in range(plan.virtual_stages) for count in counts]
    if sum(chunks) != total or min(chunks) < 0:
        raise InvalidSpec(
            "stages of {} layers in {} parts each do not place {} layers; change first-stage-layers or "
            "last-stage-layers",
            " + ".join(map(str, counts)), plan.virtual_stages, total
        )
    return chunks


def placed_layers(text: str) -> list[int]:
    """Layers of every virtual stage as the option `stage_layers` writes them.

    >>> placed_layers("3-4-4-3"), placed_layers("3,4,4,3")
    ([3, 4, 4, 3], [3, 4, 4, 3])
    """
    parts = text.replace(",", "-").split("-")
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise InvalidSpec("stage_layers={!r} must be the layers of every stage, such as 3-4-4-3", text[:60])
    return [int(part) for part in parts]


def _even(total: int, stages: int, pp: int) -> list[int]:
    if total % stages:
        fits = [n for n in range(1, min(total, 64) + 1) if total % n == 0]
        raise InvalidSpec(
            "{} pipeline stages (pp={}) do not divide {} layers; use {} stages, or first_stage_layers and "
            "last_stage_layers", stages, pp, total, ", ".join(map(str, fits))
        )
    return [total // stages] * stages


def chunks_of(context: Context) -> list[list[Chunk]]:
    """For every pipeline rank its model chunks, first chunk first."""
    pp = context.job.plan.pp
    layers = context.model.main.layers
    counts = stage_layers(context)
    ranks: list[list[Chunk]] = [[] for _ in range(pp)]
    start = 0
    for index, count in enumerate(counts):
        chunk = Chunk(
            runs=runs_of(layers[start : start + count]), embedding=index == 0, head=index == len(counts) - 1,
            first=start if context.in_bf16 else 0,
        )
        ranks[index % pp].append(chunk)
        start += count
    return ranks


def runs_of(layers: tuple[Layer, ...]) -> tuple[Run, ...]:
    """Equal layers in a row as one run."""
    return tuple(Run(count=len(list(group)), layer=layer) for layer, group in groupby(layers))


class ChunkPrograms(NamedTuple):
    """What one micro-batch does in one chunk."""

    forward: Program
    backward: Program


class ChunkBuilder:
    """Lowers blocks of one job; equal layers share their programs."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.shape = shape_of(context)
        self.hidden, self.gradient = stream(self.shape, context, "layers")
        self.encoder = None if context.encoder is None else Encoder(context, self.shape, self.policy)
        self.layers: dict[tuple[Layer, bool, bool], Lowered] = {}
        self.widths = context.fsdp_widths
        self.weight_gradients: dict[Layer, tuple[Tensor, ...]] = {}

    @property
    def policy(self) -> WeightGradients:
        """Where weight gradients of the layers go."""
        fused = self.context.options.gradient_accumulation_fusion
        return WeightGradients.FUSED if fused else WeightGradients.TRANSIENT

    def build(self, chunk: Chunk) -> ChunkPrograms:
        """Programs of one chunk: embedding, layers, head, as far as it owns them."""
        forward: list[Node] = []
        backward: list[Node] = []
        head = [(1, self.head())] if chunk.head else []
        pieces = [*([(1, self.embedding(), 0)] if chunk.embedding else []), *self._layers(chunk),
                  *([(1, self.predictions(), 0)] if chunk.head and self.context.predictions else [])]
        if self.encoder is not None:
            forward += self.encoder.forward
        passes = [self._passes(count, lowered, elements) for count, lowered, elements in pieces]
        forward += [node for ahead, _ in passes for node in ahead]
        forward += [node for _, lowered in head for node in lowered.forward]
        backward += [node for _, lowered in head for node in lowered.backward]
        if self.encoder is not None:
            backward.append(Alloc(self.encoder.gradient))  # every cross-attention adds to it
        backward += [node for _, behind in reversed(passes) for node in behind]
        if self.encoder is not None:
            backward += self.encoder.backward
        beside = self.context.job.workload.objective == "dpo"
        if not chunk.embedding:
            forward.insert(0, Alloc(self.hidden))  # received from the stage before
            backward.append(Free(self.gradient))  # sent to it
        if not chunk.head:
            forward.append(Free(self.hidden))  # sent; deallocate_output_tensor in schedules.py
            backward.insert(0, Alloc(self.gradient))  # received
        if beside and not chunk.embedding:
            states, gradient = self._of_reference()
            forward.insert(0, Alloc(states))
            backward += (Alloc(gradient), Free(gradient), Free(states))
        if beside and not chunk.head:
            states, gradient = self._of_reference()  # and both, joined
            forward[-1:] = (*3 * (Alloc(states),), *3 * (Free(states),), forward[-1])
            backward = [Alloc(gradient), *backward, Free(gradient)]
        if self.widths is None:
            return ChunkPrograms(tuple(forward), tuple(backward))
        return ChunkPrograms(*weights.around(tuple(forward), tuple(backward), self._end_elements(chunk), self.widths))

    def _of_reference(self) -> tuple[Tensor, Tensor]:
        """What travels between stages in one tensor with the states that learn: the reference's, and zeros as their
        gradient [swift megatron/trainers/dpo_trainer.py `forward_step`]."""
        return replace(self.hidden, name="states of the reference"), replace(
            self.gradient, name="gradient of the reference's states")

    def _passes(self, count: int, lowered: Lowered, elements: int) -> tuple[Program, Program]:
        """Forward and backward of equal blocks."""
        if self.widths is not None and elements:
            return weights.repeated(lowered, count, elements, self.widths)
        if count == 1:
            return lowered.forward, lowered.backward
        return (Loop(count, lowered.forward),), (Loop(count, lowered.backward),)

    def _elements(self, layer: Layer) -> int:
        """Elements of a layer's weights on a rank."""
        found = layer_weights(
            layer, hidden=self.context.model.hidden, layout=self.context.layout, owner="layers", count=1)
        return sum(weight.elements * weight.count for weight in found)

    def _end_elements(self, chunk: Chunk) -> tuple[int, ...]:
        """Of the embedding and of the head."""
        model, layout = self.context.model, self.context.layout
        parts = ((chunk.embedding, embedding_weights(model)), (chunk.head, head_weights(model, copied=False)))
        return tuple(sum(weight.elements for weight in owned_weights(found, layout=layout, owner="ends"))
                     for there, found in parts if there)

    def embedding(self) -> Lowered:
        """Programs of the embedding."""
        model, context = self.context.model, self.context
        graph = embedding_graph(
            self.shape,
            hidden=model.hidden,
            vocab=context.layout.local_vocab(model.vocab),
            positions=model.main.positions,
            boundary=self.hidden,
        )
        return lower(graph, weight_gradients=WeightGradients.TRANSIENT, gradient=self.gradient)

    def predictions(self) -> Lowered:
        """Programs of the modules that predict further tokens."""
        graph = prediction_graph(self.context.predictions, self.shape, self._head_sizes(), boundary=self.hidden,
                                 recomputed=self.context.job.plan.recompute is Recompute.FULL)
        return lower(graph, weight_gradients=self.policy, gradient=self.gradient)

    def head(self) -> Lowered:
        """Programs of final norm, output projection and loss."""
        graph = head_graph(self.shape, self._head_sizes(), boundary=self.hidden)
        lowered = lower(graph, weight_gradients=WeightGradients.TRANSIENT, gradient=self.gradient)
        return _with_loss_gradient(graph, lowered)

    def _head_sizes(self) -> HeadSizes:
        model, context = self.context.model, self.context
        labels = model.head is Head.CLASSIFIER
        return HeadSizes(
            hidden=model.hidden,
            vocab=model.num_labels if labels else context.layout.local_vocab(model.vocab),
            cross_entropy="unfused" if labels else context.options.cross_entropy,
            final_norm=model.main.final_norm,
            dense=model.head is Head.MLM,
            softcap=model.logits_softcap,
        )

    def _layers(self, chunk: Chunk) -> list[tuple[int, Lowered, int]]:
        plan = self.context.job.plan
        left = chunk.num_layers
        if plan.recompute is Recompute.FULL and plan.recompute_layers is not None:
            left = plan.recompute_layers
        found: list[tuple[int, Lowered, int]] = []
        for run, fp8 in self._runs(chunk):
            recomputed = min(run.count, left) if plan.recompute is Recompute.FULL else 0
            left -= recomputed
            counts, elements = ((recomputed, True), (run.count - recomputed, False)), self._elements(run.layer)
            found += [(count, self.layer(run.layer, recomputed=whole, fp8=fp8), elements)
                      for count, whole in counts if count]
        return found

    def _runs(self, chunk: Chunk) -> Iterator[tuple[Run, bool]]:
        """Equal layers in a row, and whether their products are in fp8: the network's ends may stay in bf16.

        Source: Megatron-LM core/fp8_utils.py `is_first_last_bf16_layer`
        """
        if not self.context.in_bf16:
            yield from ((run, self.context.fp8) for run in chunk.runs)
            return
        layers = [run.layer for run in chunk.runs for _ in range(run.count)]
        keyed = [(layer, chunk.first + place not in self.context.in_bf16) for place, layer in enumerate(layers)]
        for (layer, fp8), group in groupby(keyed):
            yield Run(count=len(list(group)), layer=layer), fp8

    def dummy_gradients(self, chunk: Chunk) -> dict[str, Tensor]:
        """What TransformerEngine hands to autograd where products add into the gradient buffer: one uninitialised
        tensor per shape of a weight, kept for good [TransformerEngine module/base.py, get_dummy_wgrad]."""
        if not (self.context.te and self.context.options.gradient_accumulation_fusion):
            return {}
        return {
            tensor.formula: replace(tensor, name=f"dummy gradient, {tensor.formula}", owner="process")
            for run in chunk.runs
            for tensor in self.weight_gradients[run.layer]
        }

    def layer(self, layer: Layer, *, recomputed: bool, fp8: bool | None = None) -> Lowered:
        """Programs of one layer; `recomputed` as a whole; `fp8`: its products, None: as the job's."""
        fp8 = self.shape.fp8 if fp8 is None else fp8
        key = layer, recomputed, fp8
        if key not in self.layers:
            model, shape = self.context.model, replace(self.shape, fp8=fp8)
            graph = layer_graph(layer, shape, hidden=model.hidden, owner="layers", boundary=self.hidden)
            memory = tuple(value for value in graph.inputs if value.name == "encoder output")
            if recomputed:
                graph.checkpoints = []
                graph.checkpoint(0, outputs_alive=True)
            self.weight_gradients[layer] = graph.weight_gradients
            self.layers[key] = lower(
                graph, weight_gradients=self.policy, gradient=self.gradient, caller=Caller(leaves=memory)
            )
        return self.layers[key]


def stream(shape: Shape, context: Context, owner: str) -> tuple[Tensor, Tensor]:
    """The hidden states between layers and their gradient."""
    rows, hidden, element = shape.tokens_between, context.model.hidden, context.element
    states = Tensor(
        name="hidden states between layers", num_bytes=rows * hidden * element, category=Category.ACTIVATIONS,
        owner=owner, formula=f"{rows:,} x {hidden:,} x {element} B",
        source="Megatron-LM core/transformer/transformer_block.py",
    )
    return states, replace(states, name="gradient of hidden states", category=Category.TEMPORARIES)


class Encoder:
    """The encoder of an encoder-decoder: its output lives until every cross-attention has run backward.

    Source: Megatron-LM megatron/core/models/T5/t5_model.py
    """

    def __init__(self, context: Context, decoder: Shape, policy: WeightGradients) -> None:
        stack = context.encoder
        assert stack is not None
        shape = replace(decoder, seq=context.encoder_seq, kv_seq=0)
        hidden, self.gradient = stream(shape, context, stack.name)
        output = replace(hidden, name="encoder output")
        embedding = embedding_graph(
            shape,
            hidden=stack.hidden,
            vocab=context.layout.local_vocab(context.model.vocab),
            positions=stack.positions,
            boundary=hidden,
        )
        pieces = [(1, lower(embedding, weight_gradients=WeightGradients.TRANSIENT, gradient=self.gradient))]
        for run in runs_of(stack.layers):
            graph = layer_graph(run.layer, shape, hidden=stack.hidden, owner=stack.name, boundary=hidden)
            pieces.append((run.count, lower(graph, weight_gradients=policy, gradient=self.gradient)))
        pieces.append((1, lower(_final_norm(shape, stack, hidden, output), gradient=self.gradient)))
        self.forward: Program = tuple(Loop(count, lowered.forward) for count, lowered in pieces)
        self.backward: Program = (Free(output), *(Loop(count, lowered.backward) for count, lowered in reversed(pieces)))


def _final_norm(shape: Shape, stack: Stack, hidden: Tensor, output: Tensor) -> Graph:
    graph = Graph(owner=stack.name, source="Megatron-LM core/transformer/transformer_block.py")
    x = graph.input("hidden", hidden.num_bytes, tensor=hidden)
    normed = norm(
        graph,
        "final_norm",
        x,
        rows=shape.tokens_between,
        width=stack.hidden,
        element=shape.element,
        statistics=2 if stack.final_norm is Norm.LAYER else 1,
    )
    normed.tensor = output
    graph.returns(normed)
    return graph


def _with_loss_gradient(graph: Graph, lowered: Lowered) -> Lowered:
    """The loss: forward leaves it to the schedule, backward starts from its gradient."""
    loss = graph.outputs[0].tensor
    gradient = next(
        node.tensor
        for node in lowered.backward
        if isinstance(node, Free) and node.tensor.name == f"grad.{graph.outputs[0].name}"
    )
    return Lowered(lowered.forward, (Alloc(gradient), *lowered.backward, Free(loss)), lowered.saved)


def shape_of(context: Context) -> Shape:
    """The block builders' view of a job."""
    plan, options = context.job.plan, context.options
    modules = plan.recompute_modules or DEFAULT
    shape = Shape(
        seq=context.seq,
        batch=context.batch,
        tp=plan.tp,
        cp=plan.cp,
        ep=plan.ep,
        etp=context.layout.etp,
        sp=context.sp,
        element=context.element,
        te=context.te,
        kernel=context.attention_kernel,
        hidden_dropout=context.dropout,
        attention_dropout=context.attention_dropout,
        rope_fusion=options.rope_fusion,
        gelu_fusion=options.bias_gelu_fusion,
        swiglu_fusion=options.bias_swiglu_fusion,
        fp8=context.fp8,
        cp_a2a=options.cp_a2a,
        dispatcher=options.dispatcher,
        capacity_factor=options.capacity_factor,
        router_fp32=options.router_fp32,
        kv_seq=0 if context.encoder is None else context.encoder_seq,
        lora=context.lora,
    )
    if plan.recompute is Recompute.SELECTIVE:
        shape = replace(shape, recompute_modules=modules)
    return shape
