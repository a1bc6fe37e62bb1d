"""The graph of a micro-batch: embedding, layers (those with a recurrent state too), head.

Symbols:  C channels of the convolution   K its kernel   S sequences

[mamba] ggml-org/llama.cpp src/models/mamba-base.cpp; [delta] src/models/delta-net-base.cpp, qwen35.cpp; [state]
src/llama-graph.cpp `build_rs`. States are f32.
[llama] ggml-org/llama.cpp src/models/llama.cpp and its kin; ikawrakow/ik_llama.cpp src/llama.cpp `build_llama`,
`build_qwen3moe`, `build_deepseek2`. What families do beside these parts (clamps, scales of residuals) takes no memory.
"""

from __future__ import annotations

from vramcast.domain.model import Attention, Head, Layer, LinearAttention, Mamba, Model, MoE, MultiLatentAttention
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Graph, Tensor, fed
from vramcast.engines.llamacpp.graph_attention import attention, latent_attention
from vramcast.engines.llamacpp.graph_parts import Build, experts, feed_forward
from vramcast.errors import Unsupported
from vramcast.states.ggml import row_bytes
from vramcast.states.storage import state_elements


def _sequences(build: Build) -> tuple[int, int]:
    """Sequences of the graph, and tokens of each."""
    slots = build.settings.slots if build.settings.has("streams") else 1
    return slots, build.tokens // slots


def _state(build: Build, name: str, elements: int, layer: int) -> tuple[Tensor, Tensor]:
    """The state cache and its rows of the sequences at hand [state]."""
    slots = build.settings.slots
    cached = build.cache(name, layer, "f32", elements, slots)
    rows = build.once("states", lambda: fed("i32", slots))
    taken = ops.get_rows(ops.reshape(cached, elements, slots), ops.view(rows, _sequences(build)[0]))
    build.expand(taken)
    return cached, taken


def _convolved(build: Build, x: Tensor, channels: int, kernel: int, elements: int, layer: int) -> Tensor:
    """The causal convolution of (C, tokens, sequences) behind the kept columns, which are replaced."""
    sequences, tokens = _sequences(build)
    cached, taken = _state(build, "r", elements, layer)
    kept = ops.reshape(taken, kernel - 1, channels, sequences)
    whole = ops.concat(kept, ops.transpose(x), 0)
    last = ops.view(whole, kernel - 1, channels, sequences, steps=whole.nb[1:3])
    build.expand(ops.copy_into(last, ops.view(cached, elements, sequences)))
    weight = build.weight("ssm_conv1d.weight", layer, kernel, channels)
    return ops.sized("ssm_conv", "f32", (channels, tokens, sequences), whole, weight)


def mamba(build: Build, mixer: Mamba, x: Tensor, *, layer: int) -> Tensor:
    """A selective state space layer."""
    return _mamba1(build, mixer, x, layer) if mixer.version == 1 else _mamba2(build, mixer, x, layer)


def _mamba1(build: Build, mixer: Mamba, x: Tensor, layer: int) -> Tensor:
    sequences, tokens = _sequences(build)
    inner, state = mixer.inner_dim, mixer.state_dim
    conv, recurrent = state_elements(mixer)
    both = build.linear("ssm_in", ops.reshape(x, x.ne[0], tokens, sequences), 2 * inner, layer=layer)
    half, z = (ops.view(both, inner, tokens, sequences, steps=both.nb[1:3]) for _ in range(2))
    inside = _convolved(build, half, inner, mixer.conv_kernel, conv, layer)
    inside = ops.like("unary", build.add(inside, build.weight("ssm_conv1d.bias", layer, inner)))
    low = build.linear("ssm_x", inside, mixer.dt_rank + 2 * state, layer=layer)
    dt = ops.view(low, mixer.dt_rank, tokens, sequences, steps=low.nb[1:3])
    b, c = (ops.view(low, state, 1, tokens, sequences, steps=(low.nb[0] * state, *low.nb[1:3])) for _ in range(2))
    dt = build.linear("ssm_dt", dt, inner, layer=layer, bias=True)
    heads = ops.reshape(inside, 1, inner, tokens, sequences)
    return _scanned(build, mixer, (heads, dt, b, c), z, inner, recurrent, layer)


def _mamba2(build: Build, mixer: Mamba, x: Tensor, layer: int) -> Tensor:
    sequences, tokens = _sequences(build)
    inner, state, groups, heads = mixer.inner_dim, mixer.state_dim, mixer.num_groups, mixer.num_heads
    channels = inner + 2 * groups * state
    conv, recurrent = state_elements(mixer)
    whole = build.linear("ssm_in", ops.reshape(x, x.ne[0], tokens, sequences), inner + channels + heads, layer=layer)
    width = inner // heads
    z = ops.view(whole, width, heads, tokens, sequences, steps=(4 * width, *whole.nb[1:3]))
    mixed = ops.view(whole, channels, tokens, sequences, steps=whole.nb[1:3])
    dt = ops.view(whole, heads, tokens, sequences, steps=whole.nb[1:3])
    inside = _convolved(build, mixed, channels, mixer.conv_kernel, conv, layer)
    inside = ops.like("unary", build.add(inside, build.weight("ssm_conv1d.bias", layer, channels)))
    values = ops.view(inside, width, heads, tokens, sequences, steps=(4 * width, *inside.nb[1:3]))
    b, c = (ops.view(inside, state, groups, tokens, sequences, steps=(4 * state, *inside.nb[1:3])) for _ in range(2))
    dt = build.add(ops.cont(dt), build.weight("ssm_dt.bias", layer, heads))
    return _scanned(build, mixer, (values, dt, b, c), z, inner, recurrent, layer)


def _scanned(
    build: Build, mixer: Mamba, inputs: tuple[Tensor, ...], z: Tensor, inner: int, recurrent: int, layer: int
) -> Tensor:
    """The scan, what is added and gated behind it, and the output projection."""
    sequences, tokens = _sequences(build)
    values, slots = inputs[0], build.settings.slots
    cached = build.cache("s", layer, "f32", recurrent, slots)
    decay = build.weight("ssm_a", layer, mixer.state_dim if mixer.version == 1 else 1, inner)
    elements = inner * tokens * sequences + recurrent * sequences
    scanned = ops.sized("ssm_scan", "f32", (elements,), ops.reshape(cached, recurrent, slots), *inputs, decay)
    build.expand(ops.copy_into(ops.view(scanned, recurrent * sequences), ops.view(cached, recurrent * sequences)))
    y = ops.view(scanned, *values.ne)
    y = build.add(y, ops.like("mul", values, build.weight("ssm_d", layer, 1)))
    y = build.gated(ops.cont(z), y if z.ne == y.ne else ops.reshape(y, *z.ne), "silu")
    if mixer.version == 2:
        y = ops.reshape(y, inner // mixer.num_groups, mixer.num_groups, tokens, sequences)
        y = ops.like("mul", ops.like("rms_norm", y), build.weight("ssm_norm.weight", layer, inner))
    y = build.linear("ssm_out", ops.reshape(y, inner, tokens, sequences), build.model.hidden, layer=layer)
    return ops.reshape(y, build.model.hidden, tokens * sequences)


def linear_attention(build: Build, mixer: LinearAttention, x: Tensor, *, layer: int) -> Tensor:
    """A gated delta net [delta] in its fused form."""
    if mixer.variant == "short_conv":
        raise Unsupported("{}: short convolutions are not modelled for llama.cpp; use engine vllm", build.model.name)
    sequences, tokens = _sequences(build)
    heads, width = mixer.num_v_heads, mixer.v_head_dim
    keys, values = mixer.num_k_heads * mixer.k_head_dim, heads * width
    conv, recurrent = state_elements(mixer)
    channels = 2 * keys + values
    mixed = ops.reshape(build.linear("attn_qkv", x, channels, layer=layer), channels, tokens, sequences)
    z = build.linear("attn_gate", x, values, layer=layer)
    beta, gate = _decays(build, mixer, x, layer)
    inside = ops.like("unary", _convolved(build, mixed, channels, mixer.conv_kernel, conv, layer))
    cached, state = _state(build, "s", recurrent, layer)
    state = ops.reshape(state, width, mixer.k_head_dim, heads, sequences)
    row = row_bytes("f32", channels)

    def part(count: int, size: int) -> Tensor:
        return ops.view(inside, size, count, tokens, sequences, steps=(4 * size, row, row * tokens))

    q, k = (ops.like("l2_norm", part(mixer.num_k_heads, mixer.k_head_dim)) for _ in range(2))
    rows = tokens * sequences + recurrent * sequences // values  # outputs, then the new state
    inputs = (q, k, part(heads, width), gate, beta, state)
    result = ops.sized("gated_delta_net", "f32", (values, rows), *inputs)
    build.expand(ops.copy_into(ops.view(result, recurrent, sequences), ops.view(cached, recurrent, sequences)))
    normed = ops.like("rms_norm", ops.view(result, width, heads, tokens, sequences))
    normed = ops.like("mul", normed, build.weight("ssm_norm.weight", layer, width))
    gated = ops.like("mul", normed, ops.like("unary", ops.reshape(z, width, heads, tokens, sequences)))
    projected = build.linear("ssm_out", ops.reshape(gated, values, tokens, sequences), build.model.hidden, layer=layer)
    return ops.reshape(projected, build.model.hidden, tokens * sequences)


def _decays(build: Build, mixer: LinearAttention, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """How much of its state a head writes and keeps, per token."""
    (sequences, tokens), heads = _sequences(build), mixer.num_v_heads
    beta = ops.reshape(build.linear("ssm_beta", x, heads, layer=layer), 1, heads, tokens, sequences)
    alpha = ops.reshape(build.linear("ssm_alpha", x, heads, layer=layer), heads, tokens, sequences)
    alpha = ops.like("unary", build.add(alpha, build.weight("ssm_dt.bias", layer, heads)))
    gate = ops.like("mul", alpha, build.weight("ssm_a", layer, heads))
    return ops.like("unary", beta), ops.reshape(gate, 1, heads, tokens, sequences)


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
