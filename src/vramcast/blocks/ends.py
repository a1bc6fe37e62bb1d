"""Both ends of a language model: embeddings, and final norm, head and loss.

Symbols:  T tokens   H hidden   V vocabulary
[HF] transformers models/llama/modeling_llama.py `LlamaForCausalLM.forward`, loss/loss_utils.py `ForCausalLMLoss`
[BERT] transformers models/bert/modeling_bert.py `BertEmbeddings.forward`, `BertLMPredictionHead`
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks import parts
from vramcast.blocks.parts import Sizes, project
from vramcast.domain.model import MLP, Head, Model, Norm
from vramcast.domain.program import Category, Tensor
from vramcast.errors import Note
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast
from vramcast.operators.linear_loss import LinearLoss, linear_cross_entropy
from vramcast.operators.loss import Vocabulary, cross_entropy
from vramcast.units import FP32, ceil_div

EMBEDDING_SOURCE: Final = "transformers models/*/modeling_*.py; pytorch aten/src/ATen/native/cuda/Embedding.cu"
HEAD_SOURCE: Final = "transformers loss/loss_utils.py ForCausalLMLoss; pytorch torch/nn/functional.py cross_entropy"

LINEAR: Final = "linear:"
"""Prefix of losses that take hidden states instead of logits: "linear:liger" is a LINEAR_CROSS_ENTROPY_VARIANTS key."""

RATED: Final = "log_probabilities"
"""How the names of losses begin that a trainer makes of returned logits."""

VALUE: Final = "value"
"""A score of every position beside logits that no loss reads [trl models/modeling_value_head.py `ValueHead.forward`,
`AutoModelForCausalLMWithValueHead.forward`, which makes the logits fp32]."""

KEEPS_INPUT: Final = (LINEAR + "trl", LINEAR + "trl_autocast")
"""Those of them that cast their input themselves, chunk by chunk."""


def embedding(model: Model, sizes: Sizes, *, learns: bool) -> Graph:
    """Token, position and type embeddings, their sum, norm and dropout.

    Args:
        sizes: local sizes
        learns: whether the table has a gradient (dense: V H elements)
    """
    graph = Graph(owner="embedding", source=EMBEDDING_SOURCE, rows=sizes.tokens)
    vocab = ceil_div(model.vocab, sizes.tp)
    elements, stack, width = sizes.residual_tokens * sizes.hidden, model.main, sizes.numerics.gradient
    widened = stack.embedding_norm not in (None, Norm.RMS) and sizes.wide_layer_norms
    size = elements * sizes.numerics.weight if widened else sizes.residual_bytes
    out = graph.value("tokens", size)
    table = graph.tensor("tokens.weight_gradient", vocab * sizes.hidden * width, Category.GRADIENTS)
    graph.call("embedding", [], [out], weight_gradients=[table] if learns else [])
    if sizes.tp > 1:  # each rank has the rows of some words, and zeros for the others
        out = graph.call("all_reduce", [out], [graph.value("tokens.reduced", size)])
    for name, rows in (("positions", stack.positions), ("token_types", stack.token_types)):
        if not rows:
            continue
        other = graph.value(name, size // max(1, sizes.batch) if name == "positions" else size)
        gradient = graph.tensor(f"{name}.weight_gradient", rows * sizes.hidden * width, Category.GRADIENTS)
        graph.call("embedding", [], [other], weight_gradients=[gradient] if learns else [])
        out = aten.add(graph, out, other, num_bytes=size, name=f"{name}_sum")
    if stack.embedding_norm is not None:
        kind = stack.embedding_norm
        out = parts.norm(graph, "embedding_norm", out, kind=kind, elements=elements, width=sizes.hidden, sizes=sizes)
    out = parts.dropout(graph, "embedding", out, elements=elements, probability=sizes.hidden_dropout)
    graph.returns(out)
    return graph


def head(
    model: Model, sizes: Sizes, *, learns: bool, loss: str = "eager", returns_fp32: bool = False,
    outputs_fp32: bool = False, classifies: bool = True,
) -> Graph:
    """Final norm, output projection and loss; ends in the scalar loss.

    Args:
        sizes: local sizes
        learns: whether the output projection has a gradient
        loss: key of CROSS_ENTROPY_VARIANTS, or of LINEAR_CROSS_ENTROPY_VARIANTS behind "linear:"
        returns_fp32: the model's code returns fp32 logits and forgets the others
        outputs_fp32: Accelerate's mixed precision converts the returned logits to fp32
        classifies: whether a classifier has a gradient
    """
    graph = Graph(owner="head", source=HEAD_SOURCE, rows=sizes.tokens)
    x = graph.input("hidden", sizes.residual_bytes)
    elements = sizes.residual_tokens * sizes.hidden
    final = model.main.final_norm
    if final is not None:
        x = parts.norm(graph, "final_norm", x, kind=final, elements=elements, width=sizes.hidden, sizes=sizes)
    if model.head is Head.MLM:
        x = _mlm(graph, x, model, sizes)
    if model.head in (Head.LM, Head.MLM):
        returned = (returns_fp32, outputs_fp32)
        graph.returns(_language_loss(graph, x, model, sizes, learns=learns, loss=loss, fp32=returned))
    else:
        graph.returns(_pooled_loss(graph, x, model, sizes, learns=classifies))
    return graph


def logits(model: Model, sizes: Sizes, *, positions: int, upcasts: bool, clones: bool = False) -> Graph:
    """Final norm over all positions and the output projection of the last ones, without a loss.

    Args:
        sizes: local sizes
        positions: of each sample, counted from its end [tokens]
        upcasts: the model's code returns fp32 logits
        clones: the caller copies all of them before it takes the last ones
    """
    graph = Graph(owner="head", source=HEAD_SOURCE, rows=sizes.batch * positions)
    x = graph.input("hidden", sizes.residual_bytes)
    elements = sizes.tokens * sizes.hidden
    final = model.main.final_norm
    if final is not None:
        x = parts.norm(graph, "final_norm", x, kind=final, elements=elements, width=sizes.hidden, sizes=sizes)
    normed, rows = x, sizes.batch * positions
    whole, shape = replace(sizes, stored="full"), (model.vocab, sizes.hidden)
    if model.head is Head.MLM:
        x = _mlm(graph, x, model, sizes)
    out = project(graph, "head.output", x, tokens=rows, shape=shape, sizes=whole, bias=model.head_bias)
    if model.logits_softcap:
        out = aten.unary(graph, out, num_bytes=out.num_bytes, name="logits.capped", saves="output")
    if upcasts:
        out = cast(graph, out, elements=rows * model.vocab, to_bytes=FP32, name="logits.fp32")
    if clones:
        graph.call("clone", [out], [graph.value("logits.clone", out.num_bytes)])
    graph.hold(normed)
    graph.returns(out)
    return graph


def _mlm(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """BERT's transform: dense, activation (always gelu in RoBERTa's and ELECTRA's code), layer norm."""
    tokens, h, channel = sizes.tokens, sizes.hidden, model.main.layers[0].channel
    kind = "gelu"
    if isinstance(channel, MLP) and model.family in ("bert", "distilbert", "deberta", "deberta-v2"):
        kind = channel.activation
    x = project(graph, "head.dense", x, tokens=tokens, shape=(h, h), sizes=sizes, bias=True)
    x = parts.activation(graph, "head", x, kind=kind, elements=tokens * h, sizes=sizes)
    return parts.norm(graph, "head.norm", x, kind=Norm.LAYER, elements=tokens * h, width=h, sizes=sizes)


def _pooled_loss(graph: Graph, x: Value, model: Model, sizes: Sizes, *, learns: bool) -> Value:
    """A head on one position per sample: nothing of it is larger than the batch.

    Decoders score every position first [transformers modeling_layers.py `GenericForSequenceClassification.forward`].
    """
    rows, labels = (sizes.tokens if model.main.causal else sizes.batch), model.num_labels
    if not model.main.causal:
        pooled = graph.value("pooled", sizes.batch * sizes.hidden * sizes.numerics.compute)
        x = graph.call("select", [x], [pooled])
    if model.head is Head.CLASSIFIER and labels:
        whole = replace(sizes, stored="full", adapter=None, trained=("head.classifier",) if learns else ())
        x = project(graph, "head.classifier", x, tokens=rows, shape=(labels, sizes.hidden), sizes=whole, bias=True)
    return graph.call("loss", [x], [graph.value("loss", 4)], saved=[x])


def _language_loss(
    graph: Graph, x: Value, model: Model, sizes: Sizes, *, learns: bool, loss: str, fp32: tuple[bool, bool]
) -> Value:
    """The loss; `fp32`: whether forward returns fp32 logits, and whether the caller converts what it returns."""
    returned, converted_later = fp32
    tokens, vocab, numerics = sizes.tokens, model.vocab // sizes.tp, sizes.numerics
    if sizes.last_logits is not None:
        tokens = sizes.batch * min(sizes.last_logits, sizes.seq_len)
        x = aten.unary(graph, x, num_bytes=x.num_bytes // sizes.tokens * tokens, name="hidden.last")
    if loss.startswith(LINEAR):
        if loss not in KEEPS_INPUT:
            x = cast(graph, x, elements=tokens * sizes.hidden, to_bytes=numerics.compute, name="head.input")
        spec = LinearLoss(
            tokens, sizes.hidden, vocab, numerics.compute, numerics.gradient, trainable=learns,
            chunks=sizes.loss_chunks, fake=sizes.fake if learns and not model.tied else None,
        )
        return linear_cross_entropy(graph, x, spec, loss.removeprefix(LINEAR))
    if loss == VALUE:
        return _scores(graph, x, model, sizes)
    whole = replace(sizes, stored="full", trained=(*sizes.trained, "head.output") if learns else sizes.trained)
    shape = (vocab, sizes.hidden)
    logits = project(graph, "head.output", x, tokens=tokens, shape=shape, sizes=whole, bias=model.head_bias)
    if model.logits_softcap:
        logits = aten.unary(graph, logits, num_bytes=logits.num_bytes, name="logits.capped", saves="output")
    if sizes.tp > 1 and loss in WHOLE:
        every = Vocabulary(tokens, model.vocab, FP32 if WHOLE[loss] else numerics.compute)
        return _whole_loss(graph, logits, every, vocab)
    if returned:
        logits = cast(graph, logits, elements=tokens * vocab, to_bytes=FP32, name="logits.fp32")
    if loss.startswith(RATED):  # of what the trainer has been given: converted before it looks
        if converted_later:
            logits = cast(graph, logits, elements=tokens * vocab, to_bytes=FP32, name="logits.returned_fp32")
        found = Vocabulary(tokens, vocab, logits.num_bytes // (tokens * vocab), sizes.batch)
        return cross_entropy(graph, logits, found, loss)
    itemsize = logits.num_bytes // (tokens * vocab)
    if loss == "eager" and not numerics.autocast and _keeps_logits_type(model):
        loss = "torch"
    result = cross_entropy(graph, logits, Vocabulary(tokens, vocab, itemsize), loss)
    if converted_later and itemsize != FP32:
        converted = graph.value("logits.returned_fp32", tokens * vocab * 4, gradient_bytes=0)
        graph.call("to_fp32", [logits], [converted], differentiable=False)
    graph.hold(logits)
    return result


WHOLE: Final = {
    "eager": True, "huggingface_shifted": True, "shifted_autocast": True, "torch": False, "shifted": False,
}
"""Losses of logits that tensor-parallel ranks gather -> whether each makes its columns fp32 before."""


def _whole_loss(graph: Graph, logits: Value, spec: Vocabulary, columns: int) -> Value:
    """The loss of all columns on every rank: gathered rank after rank, and joined in a copy.

    Source: NVIDIA-NeMo/Automodel at 36044ad3 nemo_automodel/components/loss/masked_ce.py `MaskedCrossEntropy.forward`;
    pytorch torch/distributed/tensor/_collective_utils.py, placement_types.py `Shard._to_replicate_tensor`
    """
    own = cast(graph, logits, elements=spec.tokens * columns, to_bytes=spec.itemsize, name="logits.fp32")
    whole, ranks = graph.value("logits.gathered", spec.num_bytes), graph.tensor("logits of every rank", spec.num_bytes)
    result = cross_entropy(graph, graph.call("all_gather", [own], [whole], temporaries=[ranks]), spec, "torch")
    graph.hold(logits)
    return result


def _scores(graph: Graph, x: Value, model: Model, sizes: Sizes) -> Value:
    """Logits that die in fp32 before anybody reads them, and what a dropout and a layer in fp32 make of the states."""
    elements, logits = sizes.tokens * sizes.hidden, sizes.tokens * model.vocab
    temporaries = [graph.tensor("logits", logits * sizes.numerics.compute), graph.tensor("logits.fp32", logits * FP32)]
    graph.call("linear", [x], [], temporaries=temporaries, differentiable=False, flops=2 * logits * sizes.hidden)
    dropped = parts.dropout(graph, "value", x, elements=elements, probability=VALUE_DROPOUT)
    wide = cast(graph, dropped, elements=elements, to_bytes=FP32, name="value.fp32")
    read = cast(graph, wide, elements=elements, to_bytes=sizes.numerics.compute, name="value.input")
    return graph.call("loss", [read], [graph.value("loss", FP32)], saved=[read])


VALUE_DROPOUT: Final = 0.1
"""`summary_dropout_prob` where nobody says it."""


def _keeps_logits_type(model: Model) -> bool:
    """Masked and encoder-decoder models give their logits to the loss as they are [BERT `BertForMaskedLM.forward`].

    Autocast upcasts them there.
    """
    return model.head is Head.MLM or any(layer.cross_attention is not None for layer in model.main.layers)


def boundary(sizes: Sizes, owner: str) -> Tensor:
    """The residual stream between blocks: every layer's input and output are instances of it."""
    return Tensor(
        name="hidden states", num_bytes=sizes.residual_bytes, category=Category.ACTIVATIONS, owner=owner,
        source=EMBEDDING_SOURCE,
        formula=Note("{} tokens x {} x {} B", sizes.residual_tokens, sizes.hidden, sizes.numerics.residual),
    )


def chained(graph: Graph, hidden: Tensor) -> Graph:
    """The same graph with its residual ends tied to the stream's tensor."""
    for value in (*graph.inputs[:1], *graph.outputs[:1]):
        if value.num_bytes == hidden.num_bytes and value.tensor.num_bytes:  # an input without a size is the batch's
            value.tensor = hidden
    return graph
