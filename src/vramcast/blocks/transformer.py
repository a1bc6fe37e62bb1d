"""Residual layers of transformers as eager PyTorch runs them.

Symbols:  T tokens   H hidden
[HF] transformers models/llama/modeling_llama.py `LlamaDecoderLayer.forward`, models/bert/modeling_bert.py `BertLayer`,
models/falcon/modeling_falcon.py `FalconDecoderLayer` (both parts read one norm), models/gemma2 (norms behind parts),
models/falcon_h1 `FalconH1DecoderLayer` (two mixers of one norm).

Selective state space and gated linear attention layers with their fused kernels.

Symbols:  T tokens   I inner width   N state width   B batch   L chunks of a sequence
[Mamba] state-spaces/mamba mamba_ssm/ops/selective_scan_interface.py `MambaInnerFn`: keeps the projected input, the
convolution's output and the scan's states; recomputes the rest.
[Mamba-2] mamba_ssm/ops/triton/ssd_combined.py `MambaSplitConv1dScanCombinedFn`: keeps the projection and chunk states
[Jamba] transformers src/transformers/models/jamba/modeling_jamba.py `JambaMambaMixer.forward`
[LFM2] transformers src/transformers/models/lfm2/modeling_lfm2.py `Lfm2ShortConv`
[GDN] fla-org/flash-linear-attention fla/ops/gated_delta_rule/chunk.py `ChunkGatedDeltaRuleFunction`
[KDA] Kimi Linear, arXiv:2510.26692, section 3: decay and gate come through a width of one head
Without these kernels transformers falls back to Python loops that need far more; that path is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vramcast.blocks import parts
from vramcast.blocks.attention import attention_block, latent_attention_block
from vramcast.blocks.mlp import mlp_block, moe_block
from vramcast.blocks.parameters.targets import parts_of
from vramcast.blocks.parts import Sizes, adapter_of, project
from vramcast.domain.job import share
from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, MoE, MultiLatentAttention
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.units import ceil_div

CHUNK = 64
"""Tokens of a chunk in the linear-attention kernels."""

MAMBA2_CHUNK = 256
"""`chunk_size` of Mamba-2 models."""

JOINED: Final[dict[str, Callable[[int, int], int]]] = {
    "gated_delta": lambda value, heads: value + 2 * heads,  # gate, beta, decay
    "kimi_delta": lambda value, heads: heads,  # beta
    "lightning": lambda value, heads: value,  # gate
}
"""Variant -> rows that the projection of queries, keys and values has beside them."""


BESIDE: Final[dict[str, tuple[str, ...]]] = {
    "gated_delta": ("gate", "beta", "decay"), "kimi_delta": ("beta",), "lightning": ("gate",),
}
"""Variant -> weights that read the same states as queries, keys and values do."""


def state_space_block(graph: Graph, x: Value, *, spec: Mamba | LinearAttention, sizes: Sizes) -> Value:
    """In-projection, causal convolution, scan, gate, out-projection."""
    if isinstance(spec, LinearAttention) and spec.variant == "short_conv":
        return _short_convolution(graph, x, spec, sizes)
    if isinstance(spec, LinearAttention):
        return _linear_attention(graph, x, spec, sizes)
    return _mamba(graph, x, spec, sizes)


def _mamba(graph: Graph, x: Value, spec: Mamba, sizes: Sizes) -> Value:
    inner = share("tp", spec.inner_dim, sizes.tp, what="inner width")
    groups = 2 * spec.num_groups * spec.state_dim
    rows = 2 * inner if spec.version == 1 else 2 * inner + groups + spec.num_heads
    mixed = project(
        graph, "mamba.in", x, tokens=sizes.tokens, shape=(rows, sizes.hidden), sizes=sizes, bias=spec.proj_bias
    )
    width = inner if spec.version == 1 else inner + groups
    convolved = _saved_step(graph, mixed, "mamba.convolved", sizes.tokens * width * sizes.numerics.compute)
    steps: tuple[Value, ...] = ()
    if spec.version == 1:
        # one scan state per chunk of 2,048 positions, and dt, B, C of every position
        states = sizes.batch * inner * spec.state_dim * 2 * ceil_div(sizes.seq_len, 2048) * 4
        if any(adapter_of(sizes, path) for path in STEPS):
            steps = _corrected_steps(graph, convolved, spec, sizes, inner=inner)
        else:
            states += sizes.tokens * (inner + 2 * spec.state_dim + spec.dt_rank) * sizes.numerics.compute
    else:
        states = sizes.batch * inner * spec.state_dim * ceil_div(sizes.seq_len, MAMBA2_CHUNK) * 4
    out = _scan(graph, "mamba", convolved, mixed, inner=inner, states=states, sizes=sizes, steps=steps)
    shape = (sizes.hidden, inner)
    return project(graph, "mamba.out", out, tokens=sizes.tokens, shape=shape, sizes=sizes, bias=spec.proj_bias)


STEPS: Final = ("mamba.x", "mamba.dt")
"""What makes dt, B and C of what was convolved: part of the kernel, unless adapters correct it."""


def _corrected_steps(graph: Graph, x: Value, spec: Mamba, sizes: Sizes, *, inner: int) -> tuple[Value, ...]:
    """dt, and B and C between norms, by linear layers of their own [Jamba]."""
    shape = (spec.dt_rank + 2 * spec.state_dim, inner)
    narrow = project(graph, STEPS[0], x, tokens=sizes.tokens, shape=shape, sizes=sizes)
    normed = aten.unary(graph, narrow, num_bytes=narrow.num_bytes, name="mamba.steps_normed", saves="input")
    wide = project(graph, STEPS[1], normed, tokens=sizes.tokens, shape=(inner, spec.dt_rank), sizes=sizes)
    return wide, normed


def _linear_attention(graph: Graph, x: Value, spec: LinearAttention, sizes: Sizes) -> Value:
    heads_v = share("tp", spec.num_v_heads, sizes.tp, what="value heads")
    heads_k = share("tp", spec.num_k_heads, sizes.tp, what="key heads")
    key, value = heads_k * spec.k_head_dim, heads_v * spec.v_head_dim
    rows = 2 * key + value + JOINED[spec.variant](value, heads_v)
    element = sizes.numerics.compute
    mixed, gate, steps = _projected(graph, x, spec, sizes, rows=rows, heads=(heads_k, heads_v))
    convolved = _saved_step(graph, mixed, "linear_attention.convolved", sizes.tokens * (2 * key + value) * element)
    # the triangular factors of every chunk, and the state between chunks
    states = sizes.tokens * heads_v * CHUNK * element
    states += sizes.batch * ceil_div(sizes.seq_len, CHUNK) * heads_v * spec.k_head_dim * spec.v_head_dim * element
    if spec.variant == "kimi_delta":
        decay = _narrowed(graph, x, "linear_attention.decay", width=spec.v_head_dim, rows=key, sizes=sizes)
        gate = _narrowed(graph, x, "linear_attention.gate", width=spec.v_head_dim, rows=value, sizes=sizes)
        steps = (*steps, decay)
    out = _scan(graph, "linear_attention", convolved, gate, inner=value, states=states, sizes=sizes, steps=steps)
    shape = (sizes.hidden, value)
    return project(graph, "linear_attention.out", out, tokens=sizes.tokens, shape=shape, sizes=sizes)


def _projected(
    graph: Graph, x: Value, spec: LinearAttention, sizes: Sizes, *, rows: int, heads: tuple[int, int]
) -> tuple[Value, Value, tuple[Value, ...]]:
    """What the convolution, the gate and the scan read: one product, or those that adapters correct apart."""
    owner, tokens = "linear_attention", sizes.tokens
    key, value = heads[0] * spec.k_head_dim, heads[1] * spec.v_head_dim
    widths = {"q": key, "k": key, "v": value, "gate": value, "beta": heads[1], "decay": heads[1]}
    weights = tuple(f"{owner}.{name}" for name in ("q", "k", "v", *BESIDE[spec.variant]))
    targets = sizes.adapter.targets if sizes.adapter is not None else ()
    joined = [path for path in targets if any(part in weights for part in parts_of(path))]
    if not joined:
        mixed = project(graph, f"{owner}.in", x, tokens=tokens, shape=(rows, sizes.hidden), sizes=sizes)
        return mixed, mixed, ()
    left = tuple(path for path in weights if not any(path in parts_of(other) for other in joined))
    reads: dict[str, Value] = {}
    for path, read_by in (*((path, parts_of(path)) for path in joined), *([(f"{owner}.in", left)] if left else [])):
        shape = (sum(widths[part.rpartition(".")[2]] for part in read_by), sizes.hidden)
        reads |= dict.fromkeys(read_by, project(graph, path, x, tokens=tokens, shape=shape, sizes=sizes))
    read = list(dict.fromkeys(reads[f"{owner}.{name}"] for name in "qkv"))
    mixed = read[0]
    if len(read) > 1:
        mixed = graph.value(f"{owner}.qkv_states", tokens * (2 * key + value) * sizes.numerics.compute)
        graph.call("cat", read, [mixed])
    steps = (reads[f"{owner}.{name}"] for name in ("beta", "decay") if f"{owner}.{name}" in reads)
    return mixed, reads.get(f"{owner}.gate", mixed), tuple(dict.fromkeys(steps))


def _narrowed(graph: Graph, x: Value, path: str, *, width: int, rows: int, sizes: Sizes) -> Value:
    """A projection in two steps, of which the first is narrow [KDA]."""
    low = project(graph, f"{path}_a", x, tokens=sizes.tokens, shape=(width, sizes.hidden), sizes=sizes)
    return project(graph, f"{path}_b", low, tokens=sizes.tokens, shape=(rows, width), sizes=sizes)


def _short_convolution(graph: Graph, x: Value, spec: LinearAttention, sizes: Sizes) -> Value:
    """Three projections in one: what is convolved, the gate before it and the gate behind it."""
    width = share("tp", spec.num_v_heads, sizes.tp, what="value heads") * spec.v_head_dim
    size, owner = sizes.tokens * width * sizes.numerics.compute, "linear_attention"
    shape = (3 * width, sizes.hidden)
    mixed = project(graph, f"{owner}.in", x, tokens=sizes.tokens, shape=shape, sizes=sizes)
    gated = graph.value(f"{owner}.gated", size)
    graph.call("mul", [mixed], [gated], saved=[mixed])
    convolved = _saved_step(graph, gated, f"{owner}.convolved", size)
    out = graph.value(f"{owner}.gated_again", size)
    graph.call("mul", [convolved, mixed], [out], saved=[convolved, mixed])
    return project(graph, f"{owner}.out", out, tokens=sizes.tokens, shape=(sizes.hidden, width), sizes=sizes)


def _saved_step(graph: Graph, x: Value, name: str, num_bytes: int) -> Value:
    out = graph.value(name, num_bytes, gradient_bytes=num_bytes if x.gradient_bytes else 0)
    return graph.call("causal_conv1d", [x], [out], saved=[x])


def _scan(
    graph: Graph, owner: str, convolved: Value, gate: Value, *, inner: int, states: int, sizes: Sizes,
    steps: tuple[Value, ...] = (),
) -> Value:
    """The scan with its chunk states, then the gated norm; `steps` are what it reads beside the convolution."""
    read = [convolved, *steps]
    size = sizes.tokens * inner * sizes.numerics.compute
    scanned = graph.value(f"{owner}.scanned", size)
    extra = graph.value(f"{owner}.chunk_states", states, gradient_bytes=0)
    backward = graph.tensor(f"{owner}.chunk_state_gradients", states)
    graph.call("scan", read, [scanned], saved=read, extra=[extra], backward_temporaries=[backward])
    gated = graph.value(f"{owner}.gated", size)
    graph.call("gated_norm", [scanned, gate], [gated], saved=[scanned, gate])
    return aten.unary(graph, gated, num_bytes=size, name=f"{owner}.normed", saves="input")


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
