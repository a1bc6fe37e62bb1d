"""Megatron's attention: projections, rotary embedding, core attention; latent attention.

Letters: N tokens inside the tensor-parallel region   a, g local query and key/value heads   d head width   s sequence

Letters: N tokens inside the tensor-parallel region   n between   a local heads   r latent ranks

[Attn] Megatron-LM megatron/core/transformer/attention.py, get_query_key_value_tensors
[DPA] TransformerEngine pytorch/attention/dot_product_attention/backends.py
[MLA] Megatron-LM megatron/core/transformer/multi_latent_attention.py, get_query_key_value_tensors

The plain values a Megatron block is built from.
"""

from __future__ import annotations

from typing import Literal

from vramcast.domain.model import Attention, MultiLatentAttention, Norm, Noun
from vramcast.domain.program import Category
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import Linear, Lora, activation, column_linear, norm, row_linear, transient

Kernel = Literal["flash", "cudnn", "unfused", "local"]


class Shape(Noun, frozen=True):
    """Local sizes of one micro-batch and the implementations in use."""

    seq: int  # positions of a sample on this rank, context parallelism divided out [tokens]
    batch: int  # samples of a micro-batch
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = False
    element: int = 2  # bytes of an activation
    te: bool = True
    kernel: Kernel = "cudnn"
    hidden_dropout: bool = False
    attention_dropout: bool = False
    rope_fusion: bool = True
    gelu_fusion: bool = True
    swiglu_fusion: bool = True
    fp8: bool = False
    cp_a2a: bool = False
    dispatcher: Literal["allgather", "alltoall", "flex"] = "alltoall"
    capacity_factor: float | None = None
    router_fp32: bool = False
    kv_seq: int = 0  # encoder positions that cross-attention reads
    recompute_modules: tuple[str, ...] = ()
    lora: Lora | None = None  # all weights are frozen, adapters learn

    @property
    def tokens(self) -> int:
        """Positions inside tensor-parallel regions."""
        return self.seq * self.batch

    @property
    def tokens_between(self) -> int:
        """Positions between blocks."""
        return self.tokens // self.tp if self.sp else self.tokens

    def linear(self, rows: int, columns: int, *, tokens: int | None = None) -> Linear:
        """A linear of these local widths over the positions of a rank, or over `tokens`."""
        n = self.tokens if tokens is None else tokens
        return Linear(rows, columns, n, self.tokens_between, self.element, self.lora)


def self_attention(graph: Graph, x: Value, attention: Attention, shape: Shape, *, hidden: int) -> Value:
    """From the normed hidden states to the output of the projection."""
    a, g = attention.num_heads // shape.tp, max(1, attention.num_kv_heads // shape.tp)
    d = attention.head_dim
    gates = a if attention.output_gate else 0
    qkv = column_linear(graph, "attention.qkv", x, shape.linear((a + gates + 2 * g) * d, hidden))
    query, key, value = _split(graph, qkv, attention, shape, a=a, g=g)
    context = core_attention(graph, query, key, value, shape, heads=a, kv_heads=g, qk=d, v=d)
    if gates:  # compiled into one kernel [Attn `_apply_output_gate`]
        gate = _copy(graph, "attention.gate", qkv, shape.tokens, a * d, shape.element)
        gated = activation(graph, "attention.gated", shape.tokens, a * d, shape.element)
        context = graph.call("attention.gated", [context, gate], [gated], saved=[context, gate])
    return row_linear(graph, "attention.out", context, shape.linear(hidden, a * d))


def _split(
    graph: Graph, qkv: Value, attention: Attention, shape: Shape, *, a: int, g: int
) -> tuple[Value, Value, Value]:
    """Views of the packed projection, or copies where a kernel or a rotary embedding cannot use the views."""
    n, d, e = shape.tokens, attention.head_dim, shape.element
    copied = attention.rope or attention.qk_norm != "none" or (a != g) or shape.cp > 1 or attention.output_gate
    if not copied:
        return qkv, qkv, qkv
    query, key, value = qkv, qkv, qkv
    if attention.qk_norm != "none":
        two = 2 if attention.qk_norm_kind is Norm.LAYER else 1
        query = norm(graph, "attention.q_norm", query, rows=n * a, width=d, element=e, statistics=two)
        key = norm(graph, "attention.k_norm", key, rows=n * g, width=d, element=e, statistics=two)
    if attention.rope:
        query = _rotary(graph, "attention.q_rope", query, shape, width=a * d)
        key = _rotary(graph, "attention.k_rope", key, shape, width=g * d)
    if query is qkv:
        query = _copy(graph, "attention.q", qkv, n, a * d, e)
    if key is qkv:
        key = _copy(graph, "attention.k", qkv, n, g * d, e)
    value = _copy(graph, "attention.v", qkv, n, g * d, e)
    return query, key, value


def _rotary(graph: Graph, name: str, x: Value, shape: Shape, *, width: int) -> Value:
    sizes = shape.tokens, width, shape.element
    unfused = () if shape.rope_fusion else ("rotated half", "cosine product")
    parts = [transient(graph, f"{name}.{part}", *sizes) for part in unfused]
    out = activation(graph, f"{name}.out", *sizes)
    return graph.call(name, [x], [out], temporaries=parts, backward_temporaries=parts)


def _copy(graph: Graph, name: str, x: Value, *factors: int) -> Value:
    return graph.call(f"{name}.contiguous", [x], [activation(graph, name, *factors)])


def core_attention(
    graph: Graph, query: Value, key: Value, value: Value, shape: Shape, *, heads: int, kv_heads: int, qk: int, v: int,
    kv_seq: int | None = None,
) -> Value:
    """softmax(QK)V with the kernel in use."""
    start = len(graph.operators)
    if shape.kernel in ("flash", "cudnn"):
        context = _fused_core(graph, [query, key, value], shape, heads=heads, kv_heads=kv_heads, qk=qk, v=v)
    else:
        context = _materialised(
            graph, query, key, value, shape, heads=heads, kv_heads=kv_heads, v=v, kv_seq=kv_seq or shape.seq
        )
    if "core_attn" in shape.recompute_modules:
        graph.checkpoint(start)
    return context


def _fused_core(graph: Graph, qkv: list[Value], shape: Shape, *, heads: int, kv_heads: int, qk: int, v: int) -> Value:
    n, e = shape.tokens, shape.element
    read = list(dict.fromkeys(qkv))
    out = activation(graph, "attention.context", n, heads * v, e)
    lse = activation(graph, "attention.softmax statistics", n, heads, 4, gradient=False)
    exchanged = [
        transient(graph, f"attention.{name} exchange", 2, n, kv_heads * (qk + v), e, category=Category.COMMUNICATION)
        for name in (("context-parallel",) if shape.cp > 1 else ())
    ]
    accumulator = transient(graph, "attention.fp32 dQ", n, heads * qk, 4)
    graph.call(
        "attention.core", read, [out], saved=[*read, out], extra=[lse], temporaries=exchanged,
        backward_temporaries=[accumulator, *exchanged], flops=2 * n * shape.seq * shape.cp * heads * (qk + v),
    )
    if shape.cp > 1 and shape.cp_a2a:
        # heads and sequence change places again: the projection saves a copy of its own
        return _copy(graph, "attention.context, local sequence", out, n, heads * v, e)
    if shape.kernel == "cudnn":
        return out
    # FlashAttention computes batch first: its output is copied to sequence first
    return _copy(graph, "attention.context, sequence first", out, n, heads * v, e)


def _materialised(
    graph: Graph, query: Value, key: Value, value: Value, shape: Shape, *, heads: int, kv_heads: int, v: int,
    kv_seq: int,
) -> Value:
    """Scores, softmax, dropout and two batched products, as TransformerEngine's and Megatron's own unfused paths."""
    n, e = shape.tokens, shape.element
    scores_of = (shape.batch * heads, shape.seq, kv_seq)
    if kv_heads != heads:
        key = _copy(graph, "attention.repeated keys", key, shape.batch * kv_seq, heads * v, e)
        value = _copy(graph, "attention.repeated values", value, shape.batch * kv_seq, heads * v, e)
    scores = activation(graph, "attention.scores", *scores_of, e)
    buffer = [transient(graph, "attention.score buffer", *scores_of, e)] if shape.te else []
    read = list(dict.fromkeys((query, key)))
    graph.call("attention.scores", read, [scores], saved=read, temporaries=buffer, flops=2 * n * kv_seq * heads * v)
    probabilities = activation(graph, "attention.softmax", *scores_of, e)
    graph.call("attention.softmax", [scores], [probabilities], saved=[probabilities], reuses_gradient=True)
    used = probabilities
    if shape.attention_dropout:
        used = activation(graph, "attention.dropped softmax", *scores_of, e)
        mask = activation(graph, "attention.dropout mask", *scores_of, 1, gradient=False)
        graph.call("attention.dropout", [probabilities], [used], extra=[mask])
    product = activation(graph, "attention.context", n, heads * v, e)
    graph.call("attention.values", [used, value], [product], saved=[used, value], flops=2 * n * kv_seq * heads * v)
    out = _copy(graph, "attention.context, sequence first", product, n, heads * v, e)
    graph.hold(scores)
    return out


def latent_attention(graph: Graph, x: Value, mla: MultiLatentAttention, shape: Shape, *, hidden: int) -> Value:
    """Down projections (copied on every rank), norms, up projections, rotary embedding, attention, projection."""
    a, n, e = mla.num_heads // shape.tp, shape.tokens, shape.element
    qk = mla.qk_nope_dim + mla.qk_rope_dim
    start = len(graph.operators)
    query = _query(graph, x, mla, shape, hidden=hidden, rows=a * qk)
    latent, rotary = _latent(graph, x, mla, shape, hidden=hidden)
    up = shape.linear(a * (mla.qk_nope_dim + mla.v_head_dim), mla.kv_lora_rank)
    pair = column_linear(graph, "attention.kv_up", latent, up)
    key = activation(graph, "attention.k", n, a * qk, e)
    value = activation(graph, "attention.v", n, a * mla.v_head_dim, e)
    graph.call("attention.rope and concatenation of keys", [pair, rotary], [key, value])
    if not shape.rope_fusion:
        turned = activation(graph, "attention.q", n, a * qk, e)
        query = graph.call("attention.rope and concatenation of queries", [query], [turned])
    if "mla_up_proj" in shape.recompute_modules:
        graph.checkpoint(start)
    context = core_attention(graph, query, key, value, shape, heads=a, kv_heads=a, qk=qk, v=mla.v_head_dim)
    return row_linear(graph, "attention.out", context, shape.linear(hidden, a * mla.v_head_dim))


def _query(graph: Graph, x: Value, mla: MultiLatentAttention, shape: Shape, *, hidden: int, rows: int) -> Value:
    between, e = shape.tokens_between, shape.element
    if mla.q_lora_rank is None:
        return column_linear(graph, "attention.q", x, shape.linear(rows, hidden))
    compressed = column_linear(graph, "attention.q_down", x, shape.linear(mla.q_lora_rank, hidden, tokens=between))
    normed = norm(graph, "attention.q_norm", compressed, rows=between, width=mla.q_lora_rank, element=e)
    return column_linear(graph, "attention.q_up", normed, shape.linear(rows, mla.q_lora_rank))


def _latent(graph: Graph, x: Value, mla: MultiLatentAttention, shape: Shape, *, hidden: int) -> tuple[Value, Value]:
    """The normed latent, and the rotary part of the keys (gathered along the sequence)."""
    between, e = shape.tokens_between, shape.element
    width = mla.kv_lora_rank + mla.qk_rope_dim
    both = column_linear(graph, "attention.kv_down", x, shape.linear(width, hidden, tokens=between))
    rotary = activation(graph, "attention.rotary key", shape.tokens, mla.qk_rope_dim, e)
    graph.call("attention.rotary key", [both], [rotary])
    compressed = activation(graph, "attention.compressed kv", between, mla.kv_lora_rank, e)
    graph.call("attention.compressed kv", [both], [compressed])
    return norm(graph, "attention.kv_norm", compressed, rows=between, width=mla.kv_lora_rank, element=e), rotary
