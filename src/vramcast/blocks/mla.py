"""Multi-head latent attention as transformers writes it: nothing is absorbed, keys and values are expanded.

Symbols:  T tokens   A heads   N no-position width   R rotary width   V value width   C compressed width
[HF] transformers models/deepseek_v3/modeling_deepseek_v3.py `DeepseekV3Attention.forward`
[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1
"""

from __future__ import annotations

from vramcast.blocks import parts
from vramcast.blocks.projection import project
from vramcast.blocks.sizes import Sizes
from vramcast.domain.job import AttentionKernel, share
from vramcast.domain.model import MultiLatentAttention, Norm
from vramcast.errors import Unsupported
from vramcast.operators.attention import Scores, attention
from vramcast.operators.graph import Graph, Value


def latent_attention_block(graph: Graph, x: Value, *, spec: MultiLatentAttention, sizes: Sizes) -> Value:
    """Compressed queries and keys/values, expanded per head, then attention with heads of N + R and V.

    Args:
        graph: the block under construction
        x: normed states (T, H)
        spec: heads and widths
        sizes: local sizes and implementations
    """
    if spec.indexer_heads:
        raise Unsupported("sparse attention with an indexer is not modelled for training; use a model without it")
    heads = share("tp", spec.num_heads, sizes.tp, what="num_heads")
    tokens, element = sizes.tokens, sizes.numerics.compute
    wide = heads * (spec.qk_nope_dim + spec.qk_rope_dim)
    query = _query(graph, x, spec=spec, sizes=sizes, rows=wide)
    compressed, value_width = spec.kv_lora_rank, heads * spec.v_head_dim
    kv_rows = compressed + spec.qk_rope_dim
    shape = (kv_rows, sizes.hidden)
    joint = project(graph, "attention.kv_a", x, tokens=tokens, shape=shape, sizes=sizes, bias=spec.bias)
    latent = _piece(graph, joint, "attention.latent", tokens * compressed * element)
    rotary = _piece(graph, joint, "attention.k_rotary", tokens * spec.qk_rope_dim * element)
    elements = tokens * compressed
    normed = parts.norm(
        graph, "attention.kv_a_norm", latent, kind=Norm.RMS, elements=elements, width=compressed, sizes=sizes
    )
    shape = (heads * (spec.qk_nope_dim + spec.v_head_dim), compressed)
    expanded = project(graph, "attention.kv_b", normed, tokens=tokens, shape=shape, sizes=sizes)
    q_rotary = _piece(graph, query, "attention.q_rotary", tokens * heads * spec.qk_rope_dim * element)
    q_turned, k_turned = parts.rope(
        graph, q_rotary, rotary, q_elements=tokens * heads * spec.qk_rope_dim, k_elements=tokens * spec.qk_rope_dim,
        sizes=sizes,
    )
    q = graph.value("attention.q_states", tokens * wide * element)
    graph.call("cat", [query, q_turned], [q])
    k = graph.value("attention.k_states", tokens * wide * element)
    graph.call("cat", [expanded, k_turned], [k])
    v = graph.view(expanded, "attention.v_states", gradient_bytes=tokens * value_width * element)
    v.num_bytes = tokens * value_width * element
    graph.call("slice", [expanded], [v])
    if sizes.caches:
        graph.returns(k, v)
    context = _attend(graph, q, k, v, spec=spec, sizes=sizes, heads=heads)
    shape = (sizes.hidden, value_width)
    out = project(graph, "attention.out", context, tokens=tokens, shape=shape, sizes=sizes, bias=spec.bias)
    graph.hold(x, q, k, v)
    return out


def _query(graph: Graph, x: Value, *, spec: MultiLatentAttention, sizes: Sizes, rows: int) -> Value:
    tokens, rank = sizes.tokens, spec.q_lora_rank
    if rank is None:
        return project(graph, "attention.q", x, tokens=tokens, shape=(rows, sizes.hidden), sizes=sizes)
    low = project(graph, "attention.q_a", x, tokens=tokens, shape=(rank, sizes.hidden), sizes=sizes, bias=spec.bias)
    low = parts.norm(graph, "attention.q_a_norm", low, kind=Norm.RMS, elements=tokens * rank, width=rank, sizes=sizes)
    return project(graph, "attention.q_b", low, tokens=tokens, shape=(rows, rank), sizes=sizes)


def _piece(graph: Graph, whole: Value, name: str, num_bytes: int) -> Value:
    """A slice: the whole's storage, a gradient of its own."""
    part = graph.view(whole, name, gradient_bytes=num_bytes if whole.gradient_bytes else 0)
    part.num_bytes = num_bytes
    return graph.call("slice", [whole], [part])


def _attend(
    graph: Graph, q: Value, k: Value, v: Value, *, spec: MultiLatentAttention, sizes: Sizes, heads: int
) -> Value:
    scores = Scores(
        batch=sizes.batch, queries=sizes.seq_len, keys=sizes.keys or sizes.seq_len, heads=heads, kv_heads=heads,
        head_dim=spec.qk_nope_dim + spec.qk_rope_dim, v_head_dim=spec.v_head_dim, width=sizes.numerics.compute,
        dropout=sizes.attention_dropout, masked=sizes.masked, fp32_softmax=sizes.fp32_softmax,
        copies=sizes.copies_scores,
    )
    kernel = sizes.attention
    if kernel is AttentionKernel.FLASH and spec.v_head_dim != scores.head_dim:
        kernel = AttentionKernel.EFFICIENT  # PyTorch's flash wants equal head widths [sdp_utils.cpp]
    return attention(graph, q, k, v, scores=scores, kernel=kernel)
