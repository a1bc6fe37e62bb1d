"""Megatron multi-latent attention.

Letters: N tokens inside the tensor-parallel region   n between   a local heads   r latent ranks
[MLA] Megatron-LM megatron/core/transformer/multi_latent_attention.py, get_query_key_value_tensors
"""

from __future__ import annotations

from vramcast.blocks.megatron_attention import core_attention
from vramcast.blocks.megatron_shape import Shape
from vramcast.domain.model import MultiLatentAttention
from vramcast.operators.graph import Graph, Value
from vramcast.operators.transformer_engine import Linear, activation, column_linear, norm, row_linear


def latent_attention(graph: Graph, x: Value, mla: MultiLatentAttention, shape: Shape, *, hidden: int) -> Value:
    """Down projections (copied on every rank), norms, up projections, rotary embedding, attention, projection."""
    a, n, e = mla.num_heads // shape.tp, shape.tokens, shape.element
    qk = mla.qk_nope_dim + mla.qk_rope_dim
    start = len(graph.operators)
    query = _query(graph, x, mla, shape, hidden=hidden, rows=a * qk)
    latent, rotary = _latent(graph, x, mla, shape, hidden=hidden)
    up = Linear(rows=a * (mla.qk_nope_dim + mla.v_head_dim), columns=mla.kv_lora_rank, tokens=n,
                tokens_between=shape.tokens_between, element=e)
    pair = column_linear(graph, "attention.kv_up", latent, up)
    key = activation(graph, "attention.k", n, a * qk, e)
    value = activation(graph, "attention.v", n, a * mla.v_head_dim, e)
    graph.call("attention.rope and concatenation of keys", [pair, rotary], [key, value])
    if not shape.rope_fusion:
        turned = activation(graph, "attention.q", n, a * qk, e)
        graph.call("attention.rope and concatenation of queries", [query], [turned])
        query = turned
    if "mla_up_proj" in shape.recompute_modules:
        graph.checkpoint(start)
    context = core_attention(graph, query, key, value, shape, heads=a, kv_heads=a, qk=qk, v=mla.v_head_dim)
    out = Linear(rows=hidden, columns=a * mla.v_head_dim, tokens=n, tokens_between=shape.tokens_between, element=e)
    return row_linear(graph, "attention.out", context, out)


def _query(graph: Graph, x: Value, mla: MultiLatentAttention, shape: Shape, *, hidden: int, rows: int) -> Value:
    n, between, e = shape.tokens, shape.tokens_between, shape.element
    if mla.q_lora_rank is None:
        direct = Linear(rows=rows, columns=hidden, tokens=n, tokens_between=between, element=e)
        return column_linear(graph, "attention.q", x, direct)
    down = Linear(rows=mla.q_lora_rank, columns=hidden, tokens=between, tokens_between=between, element=e)
    compressed = column_linear(graph, "attention.q_down", x, down)
    normed = norm(graph, "attention.q_norm", compressed, rows=between, width=mla.q_lora_rank, element=e)
    up = Linear(rows=rows, columns=mla.q_lora_rank, tokens=n, tokens_between=between, element=e)
    return column_linear(graph, "attention.q_up", normed, up)


def _latent(graph: Graph, x: Value, mla: MultiLatentAttention, shape: Shape, *, hidden: int) -> tuple[Value, Value]:
    """The normed latent, and the rotary part of the keys (gathered along the sequence)."""
    between, e = shape.tokens_between, shape.element
    width = mla.kv_lora_rank + mla.qk_rope_dim
    down = Linear(rows=width, columns=hidden, tokens=between, tokens_between=between, element=e)
    both = column_linear(graph, "attention.kv_down", x, down)
    rotary = activation(graph, "attention.rotary key", shape.tokens, mla.qk_rope_dim, e)
    graph.call("attention.rotary key", [both], [rotary])
    compressed = activation(graph, "attention.compressed kv", between, mla.kv_lora_rank, e)
    graph.call("attention.compressed kv", [both], [compressed])
    return norm(graph, "attention.kv_norm", compressed, rows=between, width=mla.kv_lora_rank, element=e), rotary
