"""Forward and backward programs of one model chunk, every distinct layer lowered once."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from vramcast.blocks.megatron_head import HeadSizes, embedding_graph, head_graph
from vramcast.blocks.megatron_layer import layer_graph
from vramcast.blocks.megatron_shape import Shape
from vramcast.domain.job import Recompute
from vramcast.domain.model import Head, Layer, Run
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.megatron.context import Context
from vramcast.engines.megatron.stages import Chunk
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import Lowered, WeightGradients, lower


class ChunkPrograms(NamedTuple):
    """What one micro-batch does in one chunk."""

    forward: Program
    backward: Program


class ChunkBuilder:
    """Lowers blocks of one job; equal layers share their programs."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.shape = shape_of(context)
        width = context.model.hidden * context.element
        size = self.shape.tokens_between * width
        formula = f"{self.shape.tokens_between:,} x {context.model.hidden:,} x {context.element} B"
        source = "Megatron-LM core/transformer/transformer_block.py"
        self.hidden = Tensor(name="hidden states between layers", num_bytes=size, category=Category.ACTIVATIONS,
                             owner="layers", formula=formula, source=source)
        self.gradient = Tensor(name="gradient of hidden states", num_bytes=size, category=Category.TEMPORARIES,
                               owner="layers", formula=formula, source=source)
        self.layers: dict[tuple[Layer, bool], Lowered] = {}

    @property
    def policy(self) -> WeightGradients:
        """Where weight gradients of the layers go."""
        fused = self.context.options.gradient_accumulation_fusion
        return WeightGradients.FUSED if fused else WeightGradients.TRANSIENT

    def build(self, chunk: Chunk) -> ChunkPrograms:
        """Programs of one chunk: embedding, layers, head, as far as it owns them."""
        forward: list[Node] = []
        backward: list[Node] = []
        pieces = [*self._embedding(chunk), *self._layers(chunk), *self._head(chunk)]
        for count, lowered in pieces:
            forward += [Loop(count, lowered.forward)] if count > 1 else lowered.forward
        for count, lowered in reversed(pieces):
            backward += [Loop(count, lowered.backward)] if count > 1 else lowered.backward
        if not chunk.embedding:
            forward.insert(0, Alloc(self.hidden))  # received from the stage before
            backward.append(Free(self.gradient))  # sent to it
        if not chunk.head:
            forward.append(Free(self.hidden))  # sent; deallocate_output_tensor in schedules.py
            backward.insert(0, Alloc(self.gradient))  # received
        return ChunkPrograms(tuple(forward), tuple(backward))

    def _embedding(self, chunk: Chunk) -> list[tuple[int, Lowered]]:
        if not chunk.embedding:
            return []
        model, context = self.context.model, self.context
        graph = embedding_graph(
            self.shape, hidden=model.hidden, vocab=context.layout.local_vocab(model.vocab),
            positions=model.main.positions, boundary=self.hidden,
        )
        return [(1, lower(graph, weight_gradients=WeightGradients.TRANSIENT, gradient=self.gradient))]

    def _head(self, chunk: Chunk) -> list[tuple[int, Lowered]]:
        if not chunk.head:
            return []
        model, context = self.context.model, self.context
        sizes = HeadSizes(
            hidden=model.hidden, vocab=context.layout.local_vocab(model.vocab),
            cross_entropy=context.options.cross_entropy, final_norm=model.main.final_norm,
            dense=model.head is Head.MLM,
        )
        graph = head_graph(self.shape, sizes, boundary=self.hidden)
        lowered = lower(graph, weight_gradients=WeightGradients.TRANSIENT, gradient=self.gradient)
        return [(1, _with_loss_gradient(graph, lowered))]

    def _layers(self, chunk: Chunk) -> list[tuple[int, Lowered]]:
        plan = self.context.job.plan
        left = chunk.num_layers
        if plan.recompute is Recompute.FULL and plan.recompute_layers is not None:
            left = plan.recompute_layers
        found: list[tuple[int, Lowered]] = []
        for run in chunk.runs:
            recomputed = min(run.count, left) if plan.recompute is Recompute.FULL else 0
            left -= recomputed
            found += self._run(run, recomputed)
        return found

    def _run(self, run: Run, recomputed: int) -> list[tuple[int, Lowered]]:
        counts = ((recomputed, True), (run.count - recomputed, False))
        return [(count, self._layer(run.layer, whole)) for count, whole in counts if count]

    def _layer(self, layer: Layer, recomputed: bool) -> Lowered:
        if (layer, recomputed) not in self.layers:
            model = self.context.model
            graph = layer_graph(layer, self.shape, hidden=model.hidden, owner="layers", causal=model.main.causal,
                                boundary=self.hidden)
            if recomputed:
                graph.checkpoints = []
                graph.checkpoint(0, outputs_alive=True)
            self.layers[layer, recomputed] = lower(graph, weight_gradients=self.policy, gradient=self.gradient)
        return self.layers[layer, recomputed]


def _with_loss_gradient(graph: Graph, lowered: Lowered) -> Lowered:
    """The loss: forward leaves it to the schedule, backward starts from its gradient."""
    loss = graph.outputs[0].tensor
    gradient = next(node.tensor for node in lowered.backward if isinstance(node, Free)
                    and node.tensor.name == f"grad.{graph.outputs[0].name}")
    return Lowered(lowered.forward, (Alloc(gradient), *lowered.backward, Free(loss)), lowered.saved)


def shape_of(context: Context) -> Shape:
    """The block builders' view of a job."""
    plan, options = context.job.plan, context.options
    modules = plan.recompute_modules or ("core_attn",)
    shape = Shape(
        seq=context.seq, batch=context.batch, tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=context.layout.etp,
        sp=context.sp, element=context.element, te=context.te, kernel=context.attention_kernel,
        hidden_dropout=context.dropout, attention_dropout=context.attention_dropout,
        rope_fusion=options.rope_fusion, gelu_fusion=options.bias_gelu_fusion, fp8=context.fp8,
        cp_a2a=options.cp_a2a, dispatcher=options.dispatcher, permute_fusion=options.permute_fusion,
        grouped_gemm=options.grouped_gemm, capacity_factor=options.capacity_factor, router_fp32=options.router_fp32,
    )
    if plan.recompute is Recompute.SELECTIVE:
        shape = replace(shape, recompute_modules=modules)
    return shape
