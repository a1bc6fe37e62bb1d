"""Megatron's dense feed-forward block, its mixture of experts, its Mamba-2 mixer and its gated delta net.

Source: Megatron-LM megatron/core/transformer/mlp.py

Balanced routing is assumed: every expert receives tokens x top_k / experts.
Letters: n tokens of this rank   M rows the local experts compute   E experts   f expert width

Letters: N tokens   i inner width   g groups   s state width   h heads (all local)

[MoE] Megatron-LM megatron/core/transformer/moe/{router,token_dispatcher,experts,shared_experts}.py
[Mixer] Megatron-LM megatron/core/ssm/mamba_mixer.py; mamba_ssm mamba_split_conv1d_scan_combined, which saves its
packed input and its output before the gated norm.
[GDN] modelscope/mcore-bridge f020e479 src/mcore_bridge/model/modules/gated_delta_net.py, on Megatron-LM's
[fla] fla-org/flash-linear-attention bc3b101d fla/ops/gated_delta_rule/chunk.py: backward makes anew what lies between
chunks; fla/modules/l2norm.py, conv/causal_conv1d.py
"""

from __future__ import annotations

from math import ceil
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.megatron_attention import Shape
from vramcast.domain.job import share
from vramcast.domain.model import MLP, LinearAttention, Mamba, MoE
from vramcast.domain.program import Category
from vramcast.errors import Unsupported
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import (
    Base,
    activation,
    column_adapter,
    column_linear,
    fused_activation,
    norm,
    row_adapter,
    row_linear,
    transient,
)
from vramcast.units import ceil_div


def mlp(graph: Graph, x: Value, block: MLP, shape: Shape, *, hidden: int, name: str = "mlp") -> Value:
    """Up projection, activation, down projection."""
    width = block.width // shape.tp
    inner = column_linear(graph, f"{name}.up", x, shape.linear(width * (2 if block.gated else 1), hidden))
    fused = shape.swiglu_fusion if block.gated else shape.gelu_fusion
    if block.bias and not fused:
        biased = activation(graph, f"{name}.biased", shape.tokens, width * (2 if block.gated else 1), shape.element)
        inner = graph.call(f"{name}.bias", [inner], [biased], passes_gradient=True)
    run = fused_activation if fused or not block.gated else _glu
    out = run(graph, f"{name}.activation", inner, rows=shape.tokens, width=width, element=shape.element)
    return row_linear(graph, f"{name}.down", out, shape.linear(hidden, width))


def _glu(graph: Graph, name: str, x: Value, *, rows: int, width: int, element: int) -> Value:
    """SwiGLU by PyTorch's own operators, `--no-bias-swiglu-fusion`: its gate is kept as well.

    Source: Megatron-LM core/transformer/mlp.py `MLP.forward`, glu
    """
    gate, linear = (graph.view(x, f"{name}.{half}", gradient_bytes=x.gradient_bytes // 2) for half in "01")
    gate.num_bytes = linear.num_bytes = x.num_bytes // 2
    graph.call(f"{name}.chunk", [x], [gate, linear])
    turned = activation(graph, f"{name}.silu", rows, width, element)
    graph.call(f"{name}.silu", [gate], [turned], saved=[gate])
    out = activation(graph, f"{name}.out", rows, width, element)
    return graph.call(f"{name}.product", [turned, linear], [out], saved=[turned, linear])


def expert_rows(moe: MoE, shape: Shape) -> int:
    """Rows the local experts compute, M [rows]."""
    rows = shape.tokens_between * moe.top_k * shape.etp
    if shape.capacity_factor is None:
        return rows
    capacity = ceil(shape.tokens_between * moe.top_k / moe.num_experts * shape.capacity_factor)
    return capacity * moe.num_experts * shape.etp


def moe(graph: Graph, x: Value, block: MoE, shape: Shape, *, hidden: int) -> Value:
    """Routed and shared experts; their sum is the output. Recomputed whole, nothing within is kept."""
    if "moe" not in shape.recompute_modules:
        return _moe(graph, x, block, shape, hidden=hidden)
    start = len(graph.operators)
    out = _moe(graph, x, block, replace(shape, recompute_modules=()), hidden=hidden)
    graph.checkpoint(start)
    return out


def _moe(graph: Graph, x: Value, block: MoE, shape: Shape, *, hidden: int) -> Value:
    shared = None
    if block.shared_width:
        inner = MLP(width=block.shared_width, gated=block.expert.gated, bias=block.expert.bias)
        start = len(graph.operators)
        shared = mlp(graph, x, inner, shape, hidden=hidden, name="shared_expert")
        if "shared_experts" in shape.recompute_modules:
            graph.checkpoint(start)
    probabilities = _router(graph, x, block, shape)
    width = block.latent_width or hidden
    source = x
    if block.latent_width:
        source = column_linear(graph, "latent_in", x, shape.linear(width, hidden, tokens=shape.tokens_between))
    rows = expert_rows(block, shape)
    tokens = _dispatch(graph, source, block, shape, rows=rows, width=width)
    expert = _experts(graph, tokens, probabilities, block, shape, rows=rows, width=width)
    out = _combine(graph, expert, block, shape, rows=rows, width=width)
    if block.latent_width:
        out = column_linear(graph, "latent_out", out, shape.linear(hidden, width, tokens=shape.tokens_between))
    if shared is None:
        return out
    total = activation(graph, "moe.sum", shape.tokens_between, hidden, shape.element)
    return graph.call("moe.sum", [out, shared], [total], passes_gradient=True)


def _router(graph: Graph, x: Value, block: MoE, shape: Shape) -> Value:
    """Logits, scores and the dense maps of probabilities and choices."""
    n, e = shape.tokens_between, block.num_experts
    logits = activation(graph, "router.logits", n, e, 4 if shape.router_fp32 else shape.element)
    graph.call("router.gate", [x], [logits], saved=[x])
    scores = activation(graph, "router.scores", n, e, 4)
    graph.call("router.scores", [logits], [scores], saved=[scores])
    chosen = activation(graph, "router.probabilities", n, e, 4)
    marks = activation(graph, "router.map", n, e, 1, gradient=False)
    indices = activation(graph, "router.row map", n, e, 4, gradient=False)
    return graph.call("router.top-k", [scores], [chosen], extra=[marks, indices])


def _dispatch(graph: Graph, x: Value, block: MoE, shape: Shape, *, rows: int, width: int) -> Value:
    e, group = shape.element, shape.ep * shape.etp
    if shape.dispatcher == "allgather":
        if group > 1:
            whole = activation(graph, "dispatch.gathered", shape.tokens_between * group, width, e)
            x = graph.call("dispatch.all-gather", [x], [whole])
        return graph.call("dispatch.permute", [x], [activation(graph, "dispatch.tokens", rows, width, e)])
    sent = activation(graph, "dispatch.permuted", rows // shape.etp, width, e)
    x = graph.call("dispatch.permute", [x], [sent])
    if group > 1:
        x = graph.call("dispatch.all-to-all", [x], [activation(graph, "dispatch.received", rows, width, e)])
        if block.num_experts // shape.ep > 1:
            x = graph.call("dispatch.sort", [x], [activation(graph, "dispatch.sorted by expert", rows, width, e)])
    return x


def _experts(graph: Graph, tokens: Value, probabilities: Value, block: MoE, shape: Shape, *, rows: int,
             width: int) -> Value:
    """Both products of all local experts; probabilities enter through the activation."""
    e, local = shape.element, block.num_experts // shape.ep
    f = block.expert.width // shape.etp
    inner_width = f * (2 if block.expert.gated else 1)
    inner = activation(graph, "experts.up.out", rows, inner_width, e)
    inner = _grouped(graph, "experts.up", tokens, inner, shape, sizes=(inner_width, width, rows), local=local)
    weights = activation(graph, "experts.probabilities", rows, 4)
    graph.call("experts.permute probabilities", [probabilities], [weights])
    start = len(graph.operators)
    hidden = _weighted_activation(graph, inner, weights, block, shape, rows=rows, width=f)
    if "moe_act" in shape.recompute_modules:
        graph.checkpoint(start, discard_output=True)
    out = activation(graph, "experts.down.out", rows, width, e)
    return _grouped(graph, "experts.down", hidden, out, shape, sizes=(width, f, rows), local=local)


def _grouped(
    graph: Graph, name: str, x: Value, out: Value, shape: Shape, *, sizes: tuple[int, int, int], local: int
) -> Value:
    """One product of all local experts; frozen, one adapter that they share [Bridge `share_expert_adapters`], or one
    each [mcore `TEGroupedLinear`]."""
    (width, columns, rows), e, lora = sizes, shape.element, shape.lora
    flops = 2 * rows * width * columns
    if lora is None:
        gradient = transient(graph, f"{name}.weight gradient", width, columns, e, category=Category.GRADIENTS)
        return graph.call(name, [x], [out], saved=[x], weight_gradients=[gradient] * local, flops=flops)
    graph.call(name, [x], [out], flops=flops)
    if not lora.corrects(name):
        return out
    adapter = row_adapter if name == "experts.down" else column_adapter
    base = Base(width, columns, rows, rows, e, lora.etp, local if lora.of_mcore_bridge else 1)
    return adapter(graph, name, x, out, base, lora)


def _weighted_activation(
    graph: Graph, inner: Value, weights: Value, block: MoE, shape: Shape, *, rows: int, width: int
) -> Value:
    """Activation times probability: one kernel for gated and squared-ReLU experts, three for others.

    Source: Megatron-LM core/transformer/moe/experts.py, bias_act_func
    """
    e = shape.element
    fused = shape.swiglu_fusion or not block.expert.gated
    activated = (fused_activation if fused else _glu)(
        graph, "experts.activation", inner, rows=rows, width=width, element=e)
    if (block.expert.gated and fused) or block.expert.activation in ("relu2", "squared_relu"):
        graph.operators[-1].saved = graph.operators[-1].inputs = (inner, weights)
        return activated
    wide = 4 if shape.router_fp32 else e
    product = activation(graph, "experts.weighted", rows, width, wide)
    graph.call("experts.weight", [activated, weights], [product], saved=[activated, weights],
               backward_temporaries=[transient(graph, "experts.weight.gradient product", rows, width, wide)])
    if wide == e:
        return product
    return graph.call("experts.weighted.cast", [product], [activation(graph, "experts.weighted.out", rows, width, e)])


def _combine(graph: Graph, x: Value, block: MoE, shape: Shape, *, rows: int, width: int) -> Value:
    e, n, group = shape.element, shape.tokens_between, shape.ep * shape.etp
    out = activation(graph, "combine.out", n, width, e)
    if shape.dispatcher == "allgather":
        if group > 1:
            x = graph.call("combine.unpermute", [x], [activation(graph, "combine.unpermuted", n * group, width, e)])
        return graph.call("combine.reduce-scatter", [x], [out])
    if group > 1:
        if block.num_experts // shape.ep > 1:
            x = graph.call("combine.sort", [x], [activation(graph, "combine.sorted by source", rows, width, e)])
        back = activation(graph, "combine.returned", rows // shape.etp, width, e)
        x = graph.call("combine.all-to-all", [x], [back])
    return graph.call("combine.unpermute", [x], [out])


CHUNK: Final = 128
"""Positions of one chunk of the state space scan (mamba_mixer.py, chunk_size)."""


def mamba(graph: Graph, x: Value, block: Mamba, shape: Shape, *, hidden: int) -> Value:
    """In projection, convolution and scan in one kernel, out projection."""
    n, e = shape.tokens, shape.element
    i, heads = block.inner_dim // shape.tp, block.num_heads // shape.tp
    states = 2 * max(1, block.num_groups // shape.tp) * block.state_dim
    packed_width = 2 * i + states + heads
    packed = column_linear(graph, "mamba.in", x, shape.linear(packed_width, hidden))
    if shape.batch > 1:
        packed = graph.call("mamba.transpose", [packed], [activation(graph, "mamba.batch first", n, packed_width, e)])
    scanned = activation(graph, "mamba.scan.out", n, i, e)
    before_norm = activation(graph, "mamba.scan before norm", n, i, e, gradient=False)
    inverse = activation(graph, "mamba.norm statistics", n, 4, gradient=False)
    convolved = transient(graph, "mamba.convolved", n, i + states, e)
    steps = transient(graph, "mamba.steps and decays", 2, n, heads, 4)
    chunk_states = transient(graph, "mamba.chunk states", n // CHUNK or 1, i, block.state_dim, 4)
    pairs = transient(graph, "mamba.C B products", n, states // (2 * block.state_dim), CHUNK, 4)
    forward = [convolved, steps, chunk_states, chunk_states, pairs]
    out = graph.call(
        "mamba.scan", [packed], [scanned], saved=[packed], extra=[before_norm, inverse], temporaries=forward,
        backward_temporaries=[*forward, chunk_states, convolved],
    )
    if shape.batch > 1:
        out = graph.call("mamba.transpose back", [out], [activation(graph, "mamba.sequence first", n, i, e)])
    return row_linear(graph, "mamba.out", out, shape.linear(hidden, i))


SOLVED: Final = 64
"""Positions of one chunk of the gated delta rule [fla]."""


def gated_delta(graph: Graph, x: Value, block: LinearAttention, shape: Shape, *, hidden: int) -> Value:
    """In projection, causal convolution, gated delta rule, gated norm, out projection [GDN, fla]."""
    if block.variant != "gated_delta" or shape.cp > 1:
        raise Unsupported("megatron models gated delta nets without context parallelism, and no others of their kind; "
                          "use --cp 1, or engine pytorch")
    owner, n, e = "linear_attention", shape.tokens, shape.element
    heads = share("tp", block.num_v_heads, shape.tp, what="value heads")
    groups = share("tp", block.num_k_heads, shape.tp, what="key heads")
    keys, values, wide = groups * block.k_head_dim, heads * block.v_head_dim, heads * block.k_head_dim

    def copied(name: str, x: Value, width: int) -> Value:
        return graph.call(f"{owner}.{name}", [x], [activation(graph, f"{owner}.{name}", n, width, e)])

    packed = column_linear(graph, f"{owner}.in", x, shape.linear(2 * (keys + values + heads), hidden))
    mixed, gate, steps = (copied(name, packed, width) for name, width in (
        ("queries, keys, values", 2 * keys + values), ("gate", values), ("beta, alpha", 2 * heads)))
    made = activation(graph, f"{owner}.convolved", n, 2 * keys + values, e)
    convolved = graph.call(f"{owner}.convolution", [mixed], [made], saved=[mixed])
    read = []
    for name in ("query", "key"):
        normed = activation(graph, f"{owner}.normed {name}", n, keys, e)
        inverse = activation(graph, f"{owner}.{name} norm", n, groups, 4, gradient=False)
        graph.call(f"{owner}.{name} l2norm", [copied(name, convolved, keys)], [normed], saved=[normed], extra=[inverse])
        read.append(normed if heads == groups else copied(f"repeated {name}", normed, wide))
    decays = activation(graph, f"{owner}.decays", n, heads, 4)
    shifted, soft, beta = (activation(graph, f"{owner}.{name}", n, heads, width, gradient=False) for name, width in (
        ("shifted alpha", 4), ("softplus", 4), ("beta", e)))
    graph.call(f"{owner}.decays", [steps], [decays], extra=[shifted, soft, beta])
    read += [copied("value", convolved, values), decays]
    factors, sums = (activation(graph, f"{owner}.{name}", n, heads, *width, gradient=False) for name, width in (
        ("triangular factors", (SOLVED, e)), ("summed decays", (4,))))
    states = transient(graph, f"{owner}.chunk states", ceil_div(n, SOLVED), wide, block.v_head_dim, e)
    turned, new = transient(graph, f"{owner}.w", n, wide, e), transient(graph, f"{owner}.u", n, values, e)
    scanned = graph.call(
        f"{owner}.rule", read, [activation(graph, f"{owner}.scanned", n, values, e)], saved=read[:3],
        extra=[factors, sums], temporaries=[turned, new, new, states],
        backward_temporaries=[turned, new, new, states, states, new, turned, turned],
    )
    normed = norm(graph, f"{owner}.norm", scanned, rows=n * heads, width=block.v_head_dim, element=e)
    out = graph.call(f"{owner}.gated", [normed, gate], [activation(graph, f"{owner}.gated", n, values, e)],
                     saved=[normed, gate])
    if shape.batch > 1:
        out = copied("sequence first", out, values)
    graph.hold(packed)
    return row_linear(graph, f"{owner}.out", out, shape.linear(hidden, values))
