"""One Megatron residual layer on the tape.

Source: Megatron-LM megatron/core/transformer/transformer_layer.py
"""

from __future__ import annotations

from vramcast.blocks.megatron_attention import core_attention, self_attention
from vramcast.blocks.megatron_mla import latent_attention
from vramcast.blocks.megatron_mlp import mlp
from vramcast.blocks.megatron_moe import moe
from vramcast.blocks.megatron_shape import Shape
from vramcast.blocks.megatron_ssm import mamba
from vramcast.domain.model import Attention, Layer, Mamba, MoE, MultiLatentAttention, Norm
from vramcast.domain.program import Tensor
from vramcast.errors import Unsupported
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import Linear, column_linear, dropout_add, norm, row_linear


def layer_graph(layer: Layer, shape: Shape, *, hidden: int, owner: str, causal: bool, boundary: Tensor) -> Graph:
    """The tape of one layer; its input and output are instances of `boundary`."""
    graph = Graph(owner=owner, source="Megatron-LM core/transformer, TransformerEngine pytorch/module")
    _check(layer)
    x = graph.input("hidden", boundary.num_bytes, tensor=boundary)
    out = x
    if layer.mixer is not None:
        out = _residual(graph, out, layer, shape, part="mixer", hidden=hidden, causal=causal)
    if layer.cross_attention is not None:
        out = _residual(graph, out, layer, shape, part="cross", hidden=hidden, causal=causal)
    if layer.channel is not None:
        out = _residual(graph, out, layer, shape, part="channel", hidden=hidden, causal=causal)
    out.tensor = boundary
    graph.returns(out)
    if shape.fp8:
        _save_inputs_in_fp8(graph)
    return graph


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


def _check(layer: Layer) -> None:
    if layer.parallel or layer.post_norms or layer.norm_placement != "pre":
        raise Unsupported(
            "megatron's layers are pre-norm and sequential; parallel or post-norm layers need engine pytorch"
        )


def _residual(graph: Graph, x: Value, layer: Layer, shape: Shape, *, part: str, hidden: int, causal: bool) -> Value:
    rows, e = shape.tokens_between, shape.element
    start = len(graph.operators)
    normed = norm(
        graph, f"{part}_norm", x, rows=rows, width=hidden, element=e, statistics=2 if layer.norm is Norm.LAYER else 1
    )
    if "layernorm" in shape.recompute_modules and owns_norm(layer, part, te=shape.te):
        graph.checkpoint(start, discard_output=True)
    if part == "channel":
        out = (
            moe(graph, normed, layer.channel, shape, hidden=hidden)
            if isinstance(layer.channel, MoE)
            else (_dense(graph, normed, layer, shape, hidden=hidden))
        )
    elif part == "cross":
        out = _cross(graph, normed, layer, shape, hidden=hidden)
    else:
        out = _mixer(graph, normed, layer, shape, hidden=hidden, causal=causal)
    dropout = shape.hidden_dropout
    return dropout_add(graph, f"{part}_add", out, x, rows=rows, width=hidden, element=e, dropout=dropout)


def owns_norm(layer: Layer, part: str, *, te: bool) -> bool:
    """Whether the norm before a part is a module; TransformerEngine makes the others within the linear behind them.

    Source: Megatron-LM core/models/gpt/gpt_layer_specs.py `get_gpt_layer_with_transformer_engine_submodules`
    """
    read = {"mixer": layer.mixer, "cross": layer.cross_attention, "channel": layer.channel}[part]
    return read is not None and (not te or isinstance(read, (MultiLatentAttention, MoE)))


def _dense(graph: Graph, x: Value, layer: Layer, shape: Shape, *, hidden: int) -> Value:
    assert layer.channel is not None and not isinstance(layer.channel, MoE)
    start = len(graph.operators)
    out = mlp(graph, x, layer.channel, shape, hidden=hidden)
    if "mlp" in shape.recompute_modules:
        graph.checkpoint(start)
    return out


def _mixer(graph: Graph, x: Value, layer: Layer, shape: Shape, *, hidden: int, causal: bool) -> Value:
    match layer.mixer:
        case Attention():
            return self_attention(graph, x, layer.mixer, shape, hidden=hidden, causal=causal)
        case MultiLatentAttention():
            return latent_attention(graph, x, layer.mixer, shape, hidden=hidden)
        case Mamba() if layer.mixer.version == 2:
            return mamba(graph, x, layer.mixer, shape, hidden=hidden)
        case _:
            raise Unsupported("megatron models attention, MLA and Mamba-2 mixers; use engine pytorch for others")


def _cross(graph: Graph, x: Value, layer: Layer, shape: Shape, *, hidden: int) -> Value:
    """Queries from the decoder, keys and values from the encoder's output, which every layer reads."""
    attention = layer.cross_attention
    assert attention is not None
    a, d, e = attention.num_heads // shape.tp, attention.head_dim, shape.element
    context_tokens = shape.batch * shape.kv_seq
    between = context_tokens // shape.tp if shape.sp else context_tokens
    memory = graph.input("encoder output", between * hidden * e)
    query = column_linear(
        graph,
        "cross.q",
        x,
        Linear(rows=a * d, columns=hidden, tokens=shape.tokens, tokens_between=shape.tokens_between, element=e),
    )
    pair = column_linear(
        graph,
        "cross.kv",
        memory,
        Linear(rows=2 * a * d, columns=hidden, tokens=context_tokens, tokens_between=between, element=e),
    )
    context = core_attention(graph, query, pair, pair, shape, heads=a, kv_heads=a, qk=d, v=d, kv_seq=shape.kv_seq)
    return row_linear(
        graph,
        "cross.out",
        context,
        Linear(rows=hidden, columns=a * d, tokens=shape.tokens, tokens_between=shape.tokens_between, element=e),
    )
