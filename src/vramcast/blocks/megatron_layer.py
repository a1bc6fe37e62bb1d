"""Megatron's blocks on the tape: one residual layer; embedding; final norm, output projection and cross entropy.

Source: Megatron-LM megatron/core/transformer/transformer_layer.py

Letters: N tokens   n tokens between blocks   V local vocabulary rows   H hidden

[CE] Megatron-LM megatron/core/tensor_parallel/cross_entropy.py, core/fusions/fused_cross_entropy.py
[GPT] megatron/core/models/gpt/gpt_model.py, _postprocess: `logits` lives until the loss is returned.
[TE] TransformerEngine pytorch/cross_entropy.py: the gradient overwrites the logits.
[MTP] megatron/core/transformer/multi_token_prediction.py `MultiTokenPredictionLayer`, `process_mtp_loss`
[policy] modelscope/ms-swift 3602360a5 swift/megatron/trainers/{grpo_trainer,vocab_parallel_utils}.py: the logits come
in fp32 from Float16Module, and are held until the forward step returns
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from vramcast.blocks.megatron_attention import Shape, core_attention, latent_attention, self_attention
from vramcast.blocks.megatron_mlp import gated_delta, mamba, mlp, moe
from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, MoE, MultiLatentAttention, Norm
from vramcast.domain.program import Category, Tensor
from vramcast.errors import Unsupported
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import (
    Linear,
    activation,
    column_linear,
    dropout_add,
    norm,
    row_linear,
    transient,
    weight_gradient,
)


def layer_graph(layer: Layer, shape: Shape, *, hidden: int, owner: str, boundary: Tensor) -> Graph:
    """The tape of one layer; its input and output are instances of `boundary`."""
    graph = Graph(owner=owner, source="Megatron-LM core/transformer, TransformerEngine pytorch/module")
    if layer.parallel or layer.norm_placement == "post":
        raise Unsupported(
            "megatron's layers are pre-norm and sequential; parallel or post-norm layers need engine pytorch"
        )
    if getattr(layer.mixer, "softcap", False) and shape.cp > 1:
        raise Unsupported("attention whose scores are capped has no context parallelism in Megatron; use --cp 1")
    out = graph.input("hidden", boundary.num_bytes, tensor=boundary)
    for part, read in _parts(layer).items():
        if read is not None:
            out = _residual(graph, out, layer, shape, part=part, hidden=hidden)
    out.tensor = boundary
    graph.returns(out)
    if shape.fp8:
        _save_inputs_in_fp8(graph)
    return graph


def _parts(layer: Layer) -> dict[str, object]:
    return {"mixer": layer.mixer, "cross": layer.cross_attention, "channel": layer.channel}


def _save_inputs_in_fp8(graph: Graph) -> None:
    """Products keep their quantised input for the weight gradient: one byte an element instead of the input itself.

    Source: TransformerEngine pytorch/module/linear.py and layernorm_linear.py, prepare_for_saving(inputmat)
    """
    for operator in graph.operators:
        if not operator.weight_gradients:
            continue
        kept = [value for value in operator.saved if value in operator.inputs]
        copies = [graph.value(f"{value.name} in fp8", value.num_bytes // 2, gradient_bytes=0) for value in kept]
        operator.saved = tuple(value for value in operator.saved if value not in kept)
        operator.extra = (*operator.extra, *copies)


def _residual(graph: Graph, x: Value, layer: Layer, shape: Shape, *, part: str, hidden: int) -> Value:
    """A part of a layer, added to what it read.

    Norms behind a part are those of Megatron-Bridge's row-parallel linear with a norm of its own: Megatron-LM itself
    has none. Source: Megatron-Bridge 067f987d models/gemma/modules.py, models/exaone `TERowParallelLinearLayerNorm`
    """
    rows, e = shape.tokens_between, shape.element
    statistics = 2 if layer.norm is Norm.LAYER else 1
    start = len(graph.operators)
    before = layer.norm_placement == "pre"
    normed = norm(graph, f"{part}_norm", x, rows=rows, width=hidden, element=e, statistics=statistics) if before else x
    if before and "layernorm" in shape.recompute_modules and owns_norm(layer, part, te=shape.te):
        graph.checkpoint(start, discard_output=True)
    if part == "channel":
        out = (
            moe(graph, normed, layer.channel, shape, hidden=hidden)
            if isinstance(layer.channel, MoE)
            else _dense(graph, normed, layer, shape, hidden=hidden)
        )
    elif part == "cross":
        out = _cross(graph, normed, layer, shape, hidden=hidden)
    else:
        out = _mixer(graph, normed, layer, shape, hidden=hidden)
    if layer.post_norms or not before:
        out = norm(graph, f"{part}_post_norm", out, rows=rows, width=hidden, element=e, statistics=statistics)
    dropout = shape.hidden_dropout
    return dropout_add(graph, f"{part}_add", out, x, rows=rows, width=hidden, element=e, dropout=dropout)


def owns_norm(layer: Layer, part: str, *, te: bool) -> bool:
    """Whether the norm before a part is a module; TransformerEngine makes the others within the linear behind them.

    Source: Megatron-LM core/models/gpt/gpt_layer_specs.py `get_gpt_layer_with_transformer_engine_submodules`
    """
    read = _parts(layer)[part]
    return read is not None and (not te or isinstance(read, (MultiLatentAttention, MoE)))


def _dense(graph: Graph, x: Value, layer: Layer, shape: Shape, *, hidden: int) -> Value:
    assert layer.channel is not None and not isinstance(layer.channel, MoE)
    start = len(graph.operators)
    out = mlp(graph, x, layer.channel, shape, hidden=hidden)
    if "mlp" in shape.recompute_modules:
        graph.checkpoint(start)
    return out


def _mixer(graph: Graph, x: Value, layer: Layer, shape: Shape, *, hidden: int) -> Value:
    match layer.mixer:
        case Attention():
            return self_attention(graph, x, layer.mixer, shape, hidden=hidden)
        case MultiLatentAttention():
            return latent_attention(graph, x, layer.mixer, shape, hidden=hidden)
        case Mamba() if layer.mixer.version == 2:
            return mamba(graph, x, layer.mixer, shape, hidden=hidden)
        case LinearAttention():
            return gated_delta(graph, x, layer.mixer, shape, hidden=hidden)
        case _:
            raise Unsupported("megatron models attention, MLA, Mamba-2 and gated delta nets; use engine pytorch for "
                              "others")


def _cross(graph: Graph, x: Value, layer: Layer, shape: Shape, *, hidden: int) -> Value:
    """Queries from the decoder, keys and values from the encoder's output, which every layer reads."""
    attention = layer.cross_attention
    assert attention is not None
    a, d, e = attention.num_heads // shape.tp, attention.head_dim, shape.element
    context_tokens = shape.batch * shape.kv_seq
    between = context_tokens // shape.tp if shape.sp else context_tokens
    memory = graph.input("encoder output", between * hidden * e)
    query = column_linear(graph, "cross.q", x, shape.linear(a * d, hidden))
    pair = column_linear(graph, "cross.kv", memory, Linear(2 * a * d, hidden, context_tokens, between, e))
    context = core_attention(graph, query, pair, pair, shape, heads=a, kv_heads=a, qk=d, v=d, kv_seq=shape.kv_seq)
    return row_linear(graph, "cross.out", context, shape.linear(hidden, a * d))


def embedding_graph(shape: Shape, *, hidden: int, vocab: int, positions: int, boundary: Tensor) -> Graph:
    """Token (and position) lookup, transposition to sequence first, scatter, dropout."""
    graph = Graph(owner="embedding", source="Megatron-LM core/models/common/embeddings/language_model_embedding.py")
    n, e = shape.tokens, shape.element
    looked = activation(graph, "lookup", n, hidden, e)
    gradient = transient(graph, "embedding.weight gradient", vocab, hidden, e, category=Category.GRADIENTS)
    out = graph.call("embedding.lookup", [], [looked], weight_gradients=[] if shape.lora else [gradient])
    if positions:
        summed = activation(graph, "with positions", n, hidden, e)
        out = graph.call("embedding.positions", [out], [summed], passes_gradient=True)
    if shape.batch > 1:
        out = graph.call("embedding.transpose", [out], [activation(graph, "sequence first", n, hidden, e)])
    if shape.sp:
        part = activation(graph, "local sequence", shape.tokens_between, hidden, e)
        out = graph.call("embedding.scatter", [out], [part])
    if shape.hidden_dropout:
        dropped = activation(graph, "dropped", shape.tokens_between, hidden, e)
        mask = activation(graph, "dropout mask", shape.tokens_between, hidden, 1, gradient=False)
        out = graph.call("embedding.dropout", [out], [dropped], extra=[mask])
    out.tensor = boundary
    graph.returns(out)
    return graph


class HeadSizes(NamedTuple):
    """Widths of the head and the loss implementation."""

    hidden: int
    vocab: int  # local rows
    cross_entropy: Literal["unfused", "native", "te", "policy"]
    final_norm: Norm | None
    dense: bool  # BERT: dense, GeLU and norm before the projection
    softcap: bool = False  # logits pass through tanh


def head_graph(shape: Shape, sizes: HeadSizes, *, boundary: Tensor) -> Graph:
    """From the last layer's output to the loss of every position."""
    graph = Graph(owner="head", source="Megatron-LM core/models/gpt/gpt_model.py, core/tensor_parallel")
    hidden, e = sizes.hidden, shape.element
    x = graph.input("hidden", boundary.num_bytes, tensor=boundary)
    if sizes.final_norm is not None:
        x = norm(graph, "final_norm", x, rows=shape.tokens_between, width=hidden, element=e,
                 statistics=2 if sizes.final_norm is Norm.LAYER else 1)
    if sizes.dense:
        x = _bert_dense(graph, x, shape, hidden)
    logits = _projection(graph, "output", x, shape.linear(sizes.vocab, hidden), sizes.cross_entropy == "te")
    if sizes.softcap:
        logits = _capped(graph, logits, shape, sizes)
    if sizes.cross_entropy == "policy":
        loss = _log_probabilities(graph, "output", logits, shape, sizes.vocab)
    else:
        loss = _cross_entropy(graph, "output", logits, shape, sizes)
        graph.hold(logits)
    graph.returns(loss)
    return graph


def prediction_graph(layers: tuple[Layer, ...], shape: Shape, sizes: HeadSizes, *, boundary: Tensor,
                     recomputed: bool) -> Graph:
    """Modules that predict further tokens, with their losses, behind the last layer: what they read is handed on [MTP].

    A module joins its tokens' embeddings to the states before, both normed, in a product of half the width, whose
    outputs are gathered, and has a layer, a norm and the network's own head. Its loss hangs on what is handed on.
    """
    graph = Graph(owner="mtp", source="Megatron-LM core/transformer/multi_token_prediction.py")
    n, between, hidden, e = shape.tokens, shape.tokens_between, sizes.hidden, shape.element
    x = graph.input("hidden", boundary.num_bytes, tensor=boundary)

    def normed(name: str, x: Value, kind: Norm) -> Value:
        return norm(graph, name, x, rows=between, width=hidden, element=e, statistics=2 if kind is Norm.LAYER else 1)

    def call(name: str, x: list[Value], *factors: int, slices: bool = False, passes: bool = False) -> Value:
        return graph.call(f"mtp.{name}", x, [activation(graph, f"mtp.{name}", *factors, e)], slices_gradient=slices,
                          passes_gradient=passes)

    states, found = x, list[Value]()
    for layer in layers:
        gradient = transient(graph, "embedding.weight gradient", sizes.vocab, hidden, e, category=Category.GRADIENTS)
        tokens = graph.call("mtp.lookup", [], [activation(graph, "mtp.lookup", n, hidden, e)],
                            backward_temporaries=[] if shape.lora else [gradient])
        tokens = call("local sequence", [tokens], between, hidden) if shape.sp else tokens
        start = len(graph.operators)
        pair = call("joined", [normed("mtp.embedding_norm", tokens, layer.norm),
                               normed("mtp.hidden_norm", states, layer.norm)], between, 2 * hidden, slices=True)
        states = column_linear(graph, "mtp.projection", pair, shape.linear(hidden // shape.tp, 2 * hidden))
        states = call("gathered", [states], n, hidden) if shape.tp > 1 else states
        states = call("scattered", [states], between, hidden) if shape.sp else states
        for part, read in _parts(layer).items():
            if read is not None:
                states = _residual(graph, states, layer, shape, part=part, hidden=hidden)
        states = normed("mtp.final_norm", states, layer.norm)
        if recomputed:
            graph.checkpoint(start, outputs_alive=True)
        found.append(states)
    if shape.fp8:
        _save_inputs_in_fp8(graph)
    out = call("states that are handed on", [x], between, hidden)
    for place, states in enumerate([call("states of its own", [states], between, hidden) for states in found]):
        head, fused = shape.linear(sizes.vocab, hidden), sizes.cross_entropy == "te"
        logits = _projection(graph, f"mtp.{place}", states, head, fused)
        loss = _cross_entropy(graph, f"mtp.{place}", logits, shape, sizes)
        graph.hold(logits)
        out = call("states with a loss", [out, loss], between, hidden, passes=True)
    out.tensor = boundary
    graph.returns(out)
    return graph


def _projection(graph: Graph, name: str, x: Value, linear: Linear, in_place_gradient: bool) -> Value:
    """As a column-parallel linear, but gathered inputs lie in the global buffer and outlive the call.

    A frozen one keeps its weight alone and gathers into a tensor of its own [Megatron-LM core/tensor_parallel/layers.py
    `LinearWithFrozenWeight`, `linear_with_frozen_weight`].
    """
    n, e = linear.tokens, linear.element
    num_bytes = n * linear.rows * e
    # a gradient that overwrites the logits lives in their storage until this projection's backward has run
    logits = graph.value(f"{name}.logits", num_bytes, gradient_bytes=1 if in_place_gradient else num_bytes,
                         formula=f"{n:,} x {linear.rows:,} x {e} B")
    full = [transient(graph, f"{name}.full input gradient", n, linear.columns, e, category=Category.COMMUNICATION)]
    flops, whole, frozen = 2 * n * linear.rows * linear.columns, full if linear.divided else [], linear.lora is not None
    return graph.call(
        name, [x], [logits], saved=([] if frozen else [x]) + ([logits] if in_place_gradient else []),
        temporaries=whole if frozen else [], backward_temporaries=whole,
        weight_gradients=[] if frozen else [weight_gradient(graph, name, linear)], flops=flops,
    )


def _capped(graph: Graph, logits: Value, shape: Shape, sizes: HeadSizes) -> Value:
    """scale x tanh(logits / scale), one operator after the other; tanh keeps what it makes.

    Source: Megatron-Bridge 067f987d models/gemma/gemma2_provider.py `logit_softcapping`
    """
    if sizes.cross_entropy == "te":
        raise Unsupported("TransformerEngine's cross entropy over capped logits is not modelled; use --loss eager")
    width = shape.tokens, sizes.vocab, shape.element
    small = graph.call("output.scale", [logits], [activation(graph, "output.scaled logits", *width)])
    bent = activation(graph, "output.tanh", *width)
    graph.call("output.tanh", [small], [bent], saved=[bent])
    return graph.call("output.cap", [bent], [activation(graph, "output.capped logits", *width)])


def _bert_dense(graph: Graph, x: Value, shape: Shape, hidden: int) -> Value:
    n, e = shape.tokens_between, shape.element
    dense = column_linear(graph, "head.dense", x, Linear(hidden, hidden, n, n, e))
    bent = activation(graph, "head.gelu", n, hidden, e)
    graph.call("head.gelu", [dense], [bent], saved=[dense])
    return norm(graph, "head.norm", bent, rows=n, width=hidden, element=e, statistics=2)


def _log_probabilities(graph: Graph, name: str, logits: Value, shape: Shape, vocab: int) -> Value:
    """Of the tokens, from logits in fp32 [policy]; ranks that divide the vocabulary take their softmax apart."""
    n = shape.tokens
    wide, made = (activation(graph, f"{name}.{what}", n, vocab, 4) for what in ("fp32 logits", "log softmax"))
    graph.call(f"{name}.cast", [logits], [wide])
    if shape.tp == 1:
        graph.call(f"{name}.log softmax", [wide], [made], saved=[made])
    else:
        shifted = transient(graph, f"{name}.shifted logits", n, vocab, 4)
        powers = graph.value(f"{name}.powers", n * vocab * 4, gradient_bytes=n * 4)  # that of their sum, expanded
        graph.call(f"{name}.exp", [wide], [powers], saved=[powers], temporaries=[shifted])
        graph.call(f"{name}.log softmax", [wide, powers], [made], temporaries=[shifted], passes_gradient=True)
    loss = graph.call(f"{name}.gather", [made], [activation(graph, f"{name}.log-probabilities", n, 4)],
                      extra=[activation(graph, f"{name}.targets", n, 8, gradient=False)])
    graph.hold(wide)
    return loss


def _cross_entropy(graph: Graph, name: str, logits: Value, shape: Shape, sizes: HeadSizes) -> Value:
    n, vocab = shape.tokens, sizes.vocab
    loss = activation(graph, f"{name}.loss", n, 4)
    targets = activation(graph, f"{name}.targets", n, 9, gradient=False)
    kept = [targets]
    copies: list[Tensor] = []
    if sizes.cross_entropy != "te":
        kept.append(activation(graph, f"{name}.fp32 softmax", n, vocab, 4, gradient=False))
    if sizes.cross_entropy == "native":
        # the compiled pieces do not write into their fp32 input: two copies meet
        copies.append(transient(graph, f"{name}.fp32 logits", n, vocab, 4))
    return graph.call(f"{name}.cross entropy", [logits], [loss], extra=kept, temporaries=copies)
