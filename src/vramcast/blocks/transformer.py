"""Residual layers of transformers as eager PyTorch runs them.

Symbols:  T tokens   H hidden
[HF] transformers models/llama/modeling_llama.py `LlamaDecoderLayer.forward`, models/bert/modeling_bert.py `BertLayer`,
models/falcon/modeling_falcon.py `FalconDecoderLayer` (both parts read one norm), models/gemma2 (norms behind parts),
models/falcon_h1 `FalconH1DecoderLayer` (two mixers of one norm).
"""

from __future__ import annotations

from typing import Final

from vramcast.blocks import parts
from vramcast.blocks.attention import attention_block, latent_attention_block
from vramcast.blocks.mlp import mlp_block, moe_block
from vramcast.blocks.sizes import Sizes
from vramcast.blocks.ssm import state_space_block
from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, MoE, MultiLatentAttention
from vramcast.operators.graph import Graph, Value

SOURCE: Final = "transformers models/llama/modeling_llama.py and kin; pytorch tools/autograd/derivatives.yaml"


def decoder_layer(layer: Layer, sizes: Sizes, *, owner: str = "decoder.layers") -> Graph:
    """One residual layer: tokens are mixed, then channels.

    Leaves out: embeddings, the final norm and the head (see `head`), weights and optimizer states.

    Args:
        sizes: local sizes, element widths, implementations
        owner: where the ledger lists its tensors

    Returns: a graph whose first input and first output are the residual stream; keys and values follow where the
        sizes say that they are cached
    """
    graph = Graph(owner=owner, source=SOURCE, rows=sizes.tokens)
    x = graph.input("hidden", sizes.residual_bytes)
    out = _parallel(graph, x, layer, sizes) if layer.parallel else _sequential(graph, x, layer, sizes)
    graph.outputs.insert(0, out)
    return graph


def _sequential(graph: Graph, x: Value, layer: Layer, sizes: Sizes) -> Value:
    if layer.mixer is not None:
        x = _residual(graph, x, "mixer", layer, sizes)
    if layer.cross_attention is not None:
        x = _residual(graph, x, "cross_attention", layer, sizes)
    if layer.channel is not None:
        x = _residual(graph, x, "channel", layer, sizes)
    return x


def _residual(graph: Graph, x: Value, part: str, layer: Layer, sizes: Sizes) -> Value:
    """x + part(norm(x)), or with the norm where the family puts it."""
    placement = layer.norm_placement
    inner = _norm(graph, f"{part}_norm", x, layer, sizes) if placement == "pre" else x
    out = _part(graph, inner, part, layer, sizes)
    elements = sizes.residual_tokens * sizes.hidden
    out = parts.dropout(graph, part, out, elements=elements, probability=sizes.hidden_dropout)
    if layer.post_norms:
        out = _norm(graph, f"{part}_post_norm", out, layer, sizes)
    elif placement == "output":
        out = _norm(graph, f"{part}_norm", out, layer, sizes)
    total = parts.add(graph, f"{part}_residual", x, out)
    graph.hold(x)
    return _norm(graph, f"{part}_norm", total, layer, sizes) if placement == "post" else total


def _parallel(graph: Graph, x: Value, layer: Layer, sizes: Sizes) -> Value:
    """x + mixer(norm(x)) + channel(norm(x))."""
    first = _norm(graph, "mixer_norm", x, layer, sizes)
    second = first if layer.shared_input_norm else _norm(graph, "channel_norm", x, layer, sizes)
    mixed = _part(graph, first, "mixer", layer, sizes)
    channels = _part(graph, second, "channel", layer, sizes)
    both = parts.add(graph, "parallel_sum", channels, mixed)
    total = parts.add(graph, "parallel_residual", x, both)
    graph.hold(x, mixed)
    return total


def _norm(graph: Graph, name: str, x: Value, layer: Layer, sizes: Sizes) -> Value:
    elements = sizes.residual_tokens * sizes.hidden
    return parts.norm(graph, name, x, kind=layer.norm, elements=elements, width=sizes.hidden, sizes=sizes)


def _part(graph: Graph, x: Value, part: str, layer: Layer, sizes: Sizes) -> Value:
    x = _gather(graph, x, part, sizes)
    if part == "channel":
        out = _channel(graph, x, layer, sizes)
    elif part == "mixer":
        out = _mixer(graph, x, layer, sizes)
        if layer.beside is not None:
            out = parts.add(graph, "mixers_sum", state_space_block(graph, x, spec=layer.beside, sizes=sizes), out)
    else:
        assert layer.cross_attention is not None
        size = sizes.batch * sizes.source_len * sizes.hidden * sizes.numerics.residual
        # the encoder owns its states and sums their gradient: here they are read, nothing more
        nowhere = graph.tensor("encoder_states", 0)
        source = Value("encoder_states", size, 0, nowhere)
        graph.inputs.append(source)
        out = attention_block(
            graph, x, spec=layer.cross_attention, sizes=sizes, source=source, owner="cross.attention"
        )
    return _scatter(graph, out, part, sizes)


def _mixer(graph: Graph, x: Value, layer: Layer, sizes: Sizes) -> Value:
    match layer.mixer:
        case Attention():
            return attention_block(graph, x, spec=layer.mixer, sizes=sizes)
        case MultiLatentAttention():
            return latent_attention_block(graph, x, spec=layer.mixer, sizes=sizes)
        case Mamba() | LinearAttention():
            return state_space_block(graph, x, spec=layer.mixer, sizes=sizes)
        case None:
            return x


def _channel(graph: Graph, x: Value, layer: Layer, sizes: Sizes) -> Value:
    if isinstance(layer.channel, MoE):
        return moe_block(graph, x, spec=layer.channel, sizes=sizes)
    assert layer.channel is not None
    return mlp_block(graph, x, spec=layer.channel, sizes=sizes, tokens=sizes.tokens)


def _gather(graph: Graph, x: Value, part: str, sizes: Sizes) -> Value:
    """Sequence parallelism: every rank needs all positions for its heads."""
    if not sizes.sequence_parallel or sizes.tp == 1:
        return x
    size = x.num_bytes * sizes.tp
    whole = graph.value(f"{part}.gathered", size, gradient_bytes=size if x.gradient_bytes else 0)
    return graph.call("all_gather", [x], [whole])


def _scatter(graph: Graph, x: Value, part: str, sizes: Sizes) -> Value:
    """The partial sums of all ranks: reduced to this rank's positions, or to a copy for everybody."""
    if sizes.tp == 1:
        return x
    size = x.num_bytes // sizes.tp if sizes.sequence_parallel else x.num_bytes
    reduced = graph.value(f"{part}.reduced", size)
    return graph.call("reduce_scatter" if sizes.sequence_parallel else "all_reduce", [x], [reduced])
