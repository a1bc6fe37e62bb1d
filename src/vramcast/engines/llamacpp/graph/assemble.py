"""The whole graph of a micro-batch: embedding, layers, head.

[llama] ggml-org/llama.cpp src/models/llama.cpp and its kin; ikawrakow/ik_llama.cpp src/llama.cpp `build_llama`,
`build_qwen3moe`, `build_deepseek2`. What families do beside these parts (clamps, scales of residuals) takes no memory.
"""

from __future__ import annotations

from vramcast.domain.model import Attention, Head, Layer, LinearAttention, Mamba, Model, MoE, MultiLatentAttention
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.tensor import Graph, Tensor, fed
from vramcast.engines.llamacpp.graph.attention import attention
from vramcast.engines.llamacpp.graph.channel import experts, feed_forward
from vramcast.engines.llamacpp.graph.context import Build
from vramcast.engines.llamacpp.graph.latent import latent_attention
from vramcast.engines.llamacpp.graph.recurrent import linear_attention, mamba


def whole_graph(build: Build, layers: tuple[tuple[int, Layer], ...], *, last: int) -> Graph:
    """The graph over some of the layers.

    Args:
        build: the graph in the making
        layers: index and layer, in order
        last: index of the model's last layer, behind which only rows with an output are kept
    """
    hidden = _embedded(build)
    for index, layer in layers:
        hidden = _layer(build, layer, hidden, index=index, final=index == last)
    hidden = build.norm("output_norm", hidden, build.model.main.final_norm, layer=None)
    if build.model.head is Head.LM:
        hidden = ops.mul_mat(build.weight("output.weight", None, hidden.ne[0], build.model.vocab), hidden)
    build.expand(hidden)
    return build.graph


def _embedded(build: Build) -> Tensor:
    """Rows of the token embedding, and of positions where they are learned."""
    model = build.model
    table = build.weight("token_embd.weight", None, model.hidden, model.vocab)
    hidden = ops.get_rows(table, fed("i32", build.tokens))
    if model.main.token_types:
        kinds = build.weight("token_types.weight", None, model.hidden, model.main.token_types)
        hidden = build.add(hidden, ops.view(kinds, model.hidden))
    if model.main.positions:
        positions = build.weight("position_embd.weight", None, model.hidden, model.main.positions)
        hidden = build.add(hidden, ops.get_rows(positions, build.positions))
    return build.norm("token_embd_norm", hidden, model.main.embedding_norm, layer=None)


def _layer(build: Build, layer: Layer, hidden: Tensor, *, index: int, final: bool) -> Tensor:
    before = layer.norm_placement == "pre"
    residual = hidden
    normed = build.norm("attn_norm", hidden, layer.norm, layer=index) if before else hidden
    mixed = _mixed(build, layer, normed, index=index)
    if final:
        rows = build.once("outputs", lambda: fed("i32", build.outputs))
        residual = ops.get_rows(residual, rows)
        mixed = None if mixed is None else ops.get_rows(mixed, rows)
        normed = ops.get_rows(normed, rows) if layer.parallel else normed
    if layer.post_norms and mixed is not None:
        mixed = build.norm("attn_post_norm", mixed, layer.norm, layer=index)
    if layer.channel is None:
        return residual if mixed is None else build.add(mixed, residual)
    if layer.parallel:
        inner = normed if layer.shared_input_norm else build.norm("ffn_norm", residual, layer.norm, layer=index)
        joined = _channel(build, layer, inner, index=index)
        return build.add(joined if mixed is None else build.add(joined, mixed), residual)
    return _second_half(build, layer, mixed, residual, index=index)


def _second_half(build: Build, layer: Layer, mixed: Tensor | None, residual: Tensor, *, index: int) -> Tensor:
    placement = layer.norm_placement
    if placement == "output" and mixed is not None:
        mixed = build.norm("attn_post_norm", mixed, layer.norm, layer=index)
    middle = residual if mixed is None else build.add(mixed, residual)
    if placement == "post":
        middle = build.norm("attn_output_norm", middle, layer.norm, layer=index)
    inner = build.norm("ffn_norm", middle, layer.norm, layer=index) if placement == "pre" else middle
    changed = _channel(build, layer, inner, index=index)
    if layer.post_norms or placement == "output":
        changed = build.norm("ffn_post_norm", changed, layer.norm, layer=index)
    summed = build.add(changed, middle)
    return build.norm("layer_output_norm", summed, layer.norm, layer=index) if placement == "post" else summed


def _mixed(build: Build, layer: Layer, x: Tensor, *, index: int) -> Tensor | None:
    match layer.mixer:
        case Attention():
            return attention(build, layer.mixer, x, layer=index, source_layer=source_of(build.model, index))
        case MultiLatentAttention():
            return latent_attention(build, layer.mixer, x, layer=index)
        case Mamba():
            return mamba(build, layer.mixer, x, layer=index)
        case LinearAttention():
            return linear_attention(build, layer.mixer, x, layer=index)
        case _:
            return None


def _channel(build: Build, layer: Layer, x: Tensor, *, index: int) -> Tensor:
    if isinstance(layer.channel, MoE):
        return experts(build, layer.channel, x, layer=index)
    assert layer.channel is not None
    return feed_forward(build, layer.channel, x, layer=index)


def source_of(model: Model, index: int) -> int:
    """The layer whose cache a layer reads: its own, or the last before it of its kind that stores one (Gemma 3n, 4)."""
    mixer = model.main.layers[index].mixer
    if not isinstance(mixer, Attention) or not mixer.shared_kv:
        return index
    kin = [
        number
        for number, layer in enumerate(model.main.layers[:index])
        if isinstance(layer.mixer, Attention) and not layer.mixer.shared_kv
        and (layer.mixer.window is None) == (mixer.window is None)
    ]
    return kin[-1] if kin else index
