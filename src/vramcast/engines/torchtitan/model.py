"""A torchtitan model's pieces as graphs: embedding, layers under activation checkpointing, head with loss.

[titan] torchtitan models/llama3/model, distributed/activation_checkpoint.py, components/loss.py, tensor_parallel.py
[dtensor] pytorch torch/distributed/tensor/parallel/loss.py `_log_softmax`, `_nll_loss_and_log_softmax_backward`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast import operators
from vramcast.blocks import parts
from vramcast.blocks.mlp import is_router
from vramcast.blocks.parts import Sizes, project
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.job import Recompute
from vramcast.domain.model import Layer, Model, Norm
from vramcast.domain.program import Category, Tensor
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Operator, Value
from vramcast.operators.linear import cast
from vramcast.operators.linear_loss import LinearLoss, linear_cross_entropy
from vramcast.operators.loss import Vocabulary, cross_entropy

PRODUCTS: Final = ("linear", "quantised_linear")
KEPT_KERNELS: Final = ("flash_attention", "efficient_attention", "cudnn_attention", "reduce_scatter")
"""Operators whose outputs selective recomputation keeps, besides every second product [titan `_save_list`]."""
LOSS_CHUNKS: Final = 8
"""ChunkedCELoss.Config.num_chunks."""
HELD: Final = {"model_fp32": "logits.fp32", "model_fp32_shifted": "logits.shifted"}
"""Which logits the trainer's variable holds, where they are not the head's output."""


class Choices(Struct, frozen=True):
    """How the pieces are run."""

    recompute: Recompute = Recompute.SELECTIVE
    loss: str = "eager"  # key of LOSSES
    frees_prediction: bool = True
    abs_kept: bool = False  # eager float8 before 2025-02-06
    needed_only: bool = False  # a compiler keeps only what backward reads
    every_product: bool = False  # the graph trainer's default policy
    context_ranks: int = 1
    fused_qkv: bool = False
    keeps_exchanges: bool = False  # selective recomputation keeps what all-to-alls bring
    graph: bool = False  # the graph trainer, whose policy keeps batches of products
    keeps_router: bool = False  # what a router chose is kept where the rest of its layer runs again


def layer(spec: Layer, sizes: Sizes, choices: Choices, hidden: Tensor) -> Graph:
    """One transformer block with its checkpoint."""
    graph = decoder_layer(spec, sizes, owner=f"{hidden.owner}.layers")
    for value in (*graph.inputs[:1], *graph.outputs[:1]):
        value.tensor = hidden
    if choices.context_ranks > 1:
        operators.attention.ring_attention(graph, choices.context_ranks)
    if choices.abs_kept:
        _keep_absolutes(graph)
    if choices.recompute is Recompute.FULL and choices.keeps_router:
        graph.checkpoint(0, keep=is_router)
    elif choices.recompute is Recompute.FULL:
        graph.checkpoint(0)
    elif choices.recompute is Recompute.SELECTIVE:
        graph.checkpoint(0, keep=_policy(graph, choices))
    return graph


def _policy(graph: Graph, choices: Choices) -> Callable[[Operator], bool]:
    """Which outputs are kept: attention, collectives, and the first, third, fifth ... product (or every one).

    Eager checkpointing keeps the output of the last product although nothing of backward reads it; the compiler's
    partitioner does not.
    """
    products = [operator for operator in graph.operators if operator.name in PRODUCTS and not _is_grouped(operator)]
    kept = {
        id(operator)
        for index, operator in zip(_places(products, fused=choices.fused_qkv), products, strict=True)
        if choices.every_product or index % 2 == 0
    }
    kernels = (*KEPT_KERNELS, "abs", *(("all_to_all",) if choices.keeps_exchanges else ()))
    kept |= {id(operator) for operator in graph.operators if operator.name in kernels}
    if choices.graph:
        kept |= {id(operator) for operator in graph.operators if operator.name == "bmm"}
    if choices.needed_only:
        last = max((i for i, operator in enumerate(graph.operators) if operator.name in PRODUCTS), default=0)
        kept -= {id(operator) for operator in graph.operators[last:]}
    return lambda operator: id(operator) in kept


def _is_grouped(operator: Operator) -> bool:
    """Whether it is a grouped product of experts, which is not on the policy's list [titan `_save_list`]."""
    return any("moe.experts" in value.name for value in operator.outputs)


def _places(products: list[Operator], *, fused: bool) -> list[int]:
    """The number of each product in the policy's count; one weight for queries, keys and values is one product."""
    places, place = [], -1
    for operator in products:
        joined = fused and operator.outputs[0].name in ("attention.k", "attention.v")
        place += not joined
        places.append(place)
    return places


def _keep_absolutes(graph: Graph) -> None:
    """abs(x) of each product's input and weight: what eager float8 casts computed and the policy kept."""
    for index in range(len(graph.operators) - 1, -1, -1):
        operator = graph.operators[index]
        if operator.name == "linear" and operator.saved:
            weight = operator.weight_gradients[0]
            absolute = [
                graph.value(f"{weight.name}.abs_input", operator.inputs[0].num_bytes, gradient_bytes=0),
                graph.value(f"{weight.name}.abs_weight", weight.num_bytes, gradient_bytes=0),
            ]
            graph.operators.insert(
                index, Operator(name="abs", inputs=operator.inputs[:1], outputs=tuple(absolute), differentiable=False)
            )


def embedding(model: Model, sizes: Sizes, hidden: Tensor) -> Graph:
    """Token embedding; with tensor parallelism each rank looks up its rows and the sums are scattered."""
    graph = Graph(owner="embedding")
    rows = model.vocab // sizes.tp
    table = graph.tensor("tokens.weight_gradient", rows * sizes.hidden * 2, Category.GRADIENTS)
    whole = sizes.tokens * sizes.hidden * sizes.numerics.residual
    out = graph.value("tokens", whole)
    graph.call("embedding", [], [out], weight_gradients=[table])
    if sizes.residual_bytes != whole:
        out = graph.call("reduce_scatter", [out], [graph.value("tokens.scattered", sizes.residual_bytes)])
    out.tensor = hidden
    graph.returns(out)
    return graph


def head(model: Model, sizes: Sizes, choices: Choices, hidden: Tensor) -> Graph:
    """Final norm, output projection, loss."""
    graph = Graph(owner="head")
    x = graph.input("hidden", sizes.residual_bytes, tensor=hidden)
    elements = sizes.residual_tokens * sizes.hidden
    variable = graph.call("variable", [x], [graph.view(x, "hidden.read")], passes_gradient=True)
    holder = graph.operators[-1]
    kind = model.main.final_norm or Norm.RMS
    x = parts.norm(graph, "final_norm", variable, kind=kind, elements=elements, width=sizes.hidden, sizes=sizes)
    if sizes.residual_tokens != sizes.tokens:
        gathered = graph.value("head.gathered", sizes.tokens * sizes.hidden * sizes.numerics.residual)
        x = graph.call("all_gather", [x], [gathered])
    graph.returns(LOSSES[choices.loss](graph, x, model, sizes))
    if not choices.frees_prediction:
        made = {value.name: value for operator in graph.operators for value in operator.outputs}
        logits = made.get(HELD.get(choices.loss, "head.output"))
        holder.saved = () if logits is None else (logits,)  # a chunked loss never makes them whole
    return graph


def _logits(graph: Graph, x: Value, model: Model, sizes: Sizes, tokens: int) -> tuple[Value, Vocabulary]:
    vocab = model.vocab // sizes.tp
    logits = project(graph, "head.output", x, tokens=tokens, shape=(vocab, sizes.hidden), sizes=sizes)
    return logits, Vocabulary(tokens, vocab, sizes.numerics.compute)


def _whole(graph: Graph, x: Value, model: Model, sizes: Sizes, *, variant: str) -> Value:
    """cross_entropy(pred.flatten(0, 1).float(), labels): eager with fp32 logits, log-probabilities, two gradients."""
    logits, spec = _logits(graph, x, model, sizes, sizes.tokens)
    loss = _parallel(graph, logits, spec) if sizes.tp > 1 else cross_entropy(graph, logits, spec, variant)
    graph.hold(logits)
    return loss


def _model_fp32(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """The model's last line converts: only the fp32 logits are the user's."""
    logits, spec = _logits(graph, x, model, sizes, sizes.tokens)
    wide = cast(graph, logits, elements=spec.elements, to_bytes=4, name="logits.fp32")
    spec = replace(spec, itemsize=4)
    loss = _parallel(graph, wide, spec) if sizes.tp > 1 else cross_entropy(graph, wide, spec, "torch")
    graph.hold(wide)
    return loss


def _parallel(graph: Graph, logits: Value, spec: Vocabulary) -> Value:
    """Logits divided over the vocabulary [dtensor]: fp32, shifted and exponentiated copies, then log-probabilities.

    One backward function makes the gradient of the fp32 logits: targets, exponentials and their sum on the way.
    """
    size = spec.fp32_bytes
    wide = cast(graph, logits, elements=spec.elements, to_bytes=4, name="logits.fp32")
    shifted = graph.value("logits.shifted", size, gradient_bytes=0)
    graph.call("subtract", [wide], [shifted], differentiable=False)
    exponential = graph.tensor("logits.exponential", size)
    graph.call("exponential", [shifted], [], temporaries=[exponential], differentiable=False)
    log_probs = graph.value("log_probabilities", size)
    graph.call("log_softmax", [wide], [log_probs], passes_gradient=True)
    graph.hold(shifted)
    loss = graph.call(
        "nll_loss", [log_probs], [graph.value("loss", 4)], saved=[log_probs],
        backward_temporaries=[graph.tensor(f"loss.gradient_{name}", size) for name in ("targets", "sum")],
    )
    graph.hold(wide)
    return loss


def _chunked(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """Head and loss chunk by chunk over the sequence, each chunk's backward before the next [titan `ChunkedCELoss`].

    The head's weight gradient and the fp32 gradient of the hidden states are made while forward still runs.
    """
    tokens, vocab = -(-sizes.tokens // LOSS_CHUNKS), model.vocab // sizes.tp
    spec = Vocabulary(tokens, vocab, sizes.numerics.compute)
    width = sizes.numerics.gradient
    gradient = graph.value("loss.hidden_gradient", x.num_bytes // sizes.numerics.compute * 4, gradient_bytes=0)
    weight = graph.value("head.output.weight_gradient", vocab * sizes.hidden * width, gradient_bytes=0,
                         category=Category.GRADIENTS)
    graph.call("zeros", [], [gradient, weight], differentiable=False)
    logits = graph.tensor("logits_chunk", spec.num_bytes)
    copies = [graph.tensor(f"logits_chunk.fp32_{index}", spec.fp32_bytes) for index in range(3)]
    graph.call("loss", [x], [], temporaries=[logits, *copies], differentiable=False)
    narrow = cast(graph, gradient, elements=x.num_bytes // sizes.numerics.compute, to_bytes=sizes.numerics.compute,
                  name="loss.hidden_gradient.cast")
    return graph.call(
        "chunked_loss", [x], [graph.value("loss", 4)], saved=[narrow, weight], gradient_storages=[(x, narrow)],
        saved_weight_gradients=[weight],
    )


def _chunked_output(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """torchtune's cross entropy of all logits, chunk by chunk."""
    logits, spec = _logits(graph, x, model, sizes, sizes.tokens)
    loss = cross_entropy(graph, logits, spec, "chunked_output")
    graph.hold(logits)
    return loss


def _linear_chunked(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """torchtune's head and cross entropy, chunk by chunk."""
    widths = sizes.numerics
    spec = LinearLoss(sizes.tokens, sizes.hidden, model.vocab // sizes.tp, widths.compute, widths.gradient,
                      fake=None if model.tied else sizes.fake)
    return linear_cross_entropy(graph, x, spec, "torchtune")


def _model_fp32_shifted(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """The model's fp32 logits, shifted by a copy that the recipe holds [torchtune recipes of 0.2]."""
    logits, spec = _logits(graph, x, model, sizes, sizes.tokens)
    wide = cast(graph, logits, elements=spec.elements, to_bytes=4, name="logits.fp32")
    shifted = aten.unary(graph, wide, num_bytes=spec.fp32_bytes, name="logits.shifted")
    loss = cross_entropy(graph, shifted, replace(spec, itemsize=4), "torch")
    graph.hold(shifted)
    return loss


LOSSES: Final[dict[str, Callable[[Graph, Value, Model, Sizes], Value]]] = {
    "eager": partial(_whole, variant="eager"),
    "model_fp32": _model_fp32,
    "compiled": partial(_whole, variant="compiled"),
    "chunked": _chunked,
    "chunked_output": _chunked_output,
    "linear_chunked": _linear_chunked,
    "model_fp32_shifted": _model_fp32_shifted,
}
"""Forms of head and loss."""
