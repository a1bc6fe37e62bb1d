"""Self- and cross-attention blocks, with heads of their own keys and values or latent ones that are expanded.

Symbols:  T tokens   H hidden   A heads   G key/value heads   D head width   N no-position width   R rotary width   V
value width   C compressed width

[HF] transformers models/llama/modeling_llama.py `LlamaAttention.forward`, models/t5 and models/bert likewise;
transformers models/deepseek_v3/modeling_deepseek_v3.py `DeepseekV3Attention.forward`
[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1
"""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.blocks import parts
from vramcast.blocks.parts import Sizes, adapter_of, project
from vramcast.domain.job import AttentionKernel, share
from vramcast.domain.model import Attention, MultiLatentAttention, Norm
from vramcast.errors import Unsupported
from vramcast.operators.attention import Scores, attention
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import cast


def attention_block(
    graph: Graph, x: Value, *, spec: Attention, sizes: Sizes, source: Value | None = None, owner: str = "attention"
) -> Value:
    """Attention over x (or from x to `source`), its output projection included.

    Args:
        x: normed states (T, H)
        spec: heads and variants
        sizes: local sizes and implementations
        source: states that keys and values read (cross-attention)
        owner: prefix of value names

    Returns: (T, H) elements of the compute width
    """
    heads, kv_heads = _local_heads(spec, sizes)
    d, d_v, tokens = spec.head_dim, spec.v_head_dim or spec.head_dim, sizes.tokens
    reads = tokens if source is None else sizes.batch * sizes.source_len
    q, k, v = _projections(graph, x, spec=spec, sizes=sizes, source=source, owner=owner)
    if sizes.caches_products and source is None:
        products = dict.fromkeys(value.storage for value in (q, k, v))
        graph.returns(*(graph.view(value, f"{value.name} in the cache", gradient_bytes=0) for value in products))
    counts = (tokens * heads * d, reads * kv_heads * d, reads * kv_heads * d_v)
    q, k = _norms(graph, q, k, spec=spec, elements=counts[:2], sizes=sizes)
    if spec.rope and source is None:
        q, k = parts.rope(
            graph, q, k, q_elements=counts[0], k_elements=counts[1], sizes=sizes, fraction=spec.rope_fraction,
            width=k.num_bytes // counts[1],
        )
    scores = _scores(spec, sizes, heads=heads, kv_heads=kv_heads, source=source is not None)
    q, k, v = (  # autocast's casts before the kernel
        cast(graph, value, elements=count, to_bytes=sizes.numerics.compute)
        for value, count in zip((q, k, v), counts, strict=True)
    )
    if sizes.caches:
        graph.returns(k, v)
    context = attention(graph, q, k, v, scores=scores, kernel=sizes.attention)
    if spec.output_gate:
        context = parts.output_gate(graph, f"{owner}.gated", context, q)
    if spec.copies_context:
        copy = graph.value(f"{owner}.context.copy", context.num_bytes, gradient_bytes=context.gradient_bytes)
        context = graph.call("clone", [context], [copy], passes_gradient=True)
    shape = (sizes.hidden, heads * d_v)
    out = project(graph, f"{owner}.out", context, tokens=tokens, shape=shape, sizes=sizes, bias=spec.out_bias)
    graph.hold(x, q, k, v)
    return out


def _projections(
    graph: Graph, x: Value, *, spec: Attention, sizes: Sizes, source: Value | None, owner: str
) -> tuple[Value, Value, Value]:
    """Queries of x; keys and values of x, or of the states that cross-attention reads."""
    heads, kv_heads = _local_heads(spec, sizes)
    tokens = sizes.tokens
    q_rows = heads * spec.head_dim * (2 if spec.output_gate else 1)
    rows = (q_rows, kv_heads * spec.head_dim, kv_heads * (spec.v_head_dim or spec.head_dim))
    if source is None and adapter_of(sizes, f"{owner}.qkv") is not None:  # slices of one product, corrected as one
        shape = (sum(rows), sizes.hidden)
        whole = project(graph, f"{owner}.qkv", x, tokens=tokens, shape=shape, sizes=sizes, bias=spec.qkv_bias)
        element = whole.num_bytes // sum(rows)
        q, k, v = (
            _piece(graph, whole, f"{owner}.{name}", element * count) for name, count in zip("qkv", rows, strict=True)
        )
        return q, k, v
    q = project(graph, f"{owner}.q", x, tokens=tokens, shape=(q_rows, sizes.hidden), sizes=sizes, bias=spec.qkv_bias)
    states, reads, width = x, tokens, sizes.hidden
    if source is not None:
        states, reads, width = source, sizes.batch * sizes.source_len, spec.source_width or sizes.hidden
    k, v = (
        project(graph, f"{owner}.{name}", states, tokens=reads, shape=(out, width), sizes=sizes, bias=spec.qkv_bias)
        for name, out in (("k", rows[1]), ("v", rows[2]))
    )
    return q, k, v


def _local_heads(spec: Attention, sizes: Sizes) -> tuple[int, int]:
    heads = share("tp", spec.num_heads, sizes.tp, what="num_heads")
    return heads, max(1, spec.num_kv_heads // sizes.tp)


def _norms(
    graph: Graph, q: Value, k: Value, *, spec: Attention, elements: tuple[int, ...], sizes: Sizes
) -> tuple[Value, Value]:
    if spec.qk_norm == "none":
        return q, k
    widths = (spec.head_dim,) * 2
    if spec.qk_norm == "full":
        widths = (spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim)
    kind = spec.qk_norm_kind
    q = parts.norm(graph, "attention.q_norm", q, kind=kind, elements=elements[0], width=widths[0], sizes=sizes)
    k = parts.norm(graph, "attention.k_norm", k, kind=kind, elements=elements[1], width=widths[1], sizes=sizes)
    return q, k


def _scores(spec: Attention, sizes: Sizes, *, heads: int, kv_heads: int, source: bool) -> Scores:
    biased = spec.position_bias != "none" or spec.relative_buckets > 0
    keys = sizes.source_len if source else (sizes.keys or sizes.seq_len)
    return replace(_sizes_of_scores(sizes, heads, spec.head_dim, spec.v_head_dim or spec.head_dim),
        keys=keys, kv_heads=kv_heads, masked=sizes.masked or biased, additions=int(biased), sinks=spec.sinks,
        fp32_softmax=sizes.fp32_softmax and not spec.sinks, grouped=sizes.grouped and not sizes.masked,
    )


def _sizes_of_scores(sizes: Sizes, heads: int, head_dim: int, v_head_dim: int) -> Scores:
    """Where every head has keys and values of its own."""
    return Scores(
        batch=sizes.batch, queries=sizes.seq_len, keys=sizes.keys or sizes.seq_len, heads=heads, kv_heads=heads,
        head_dim=head_dim, v_head_dim=v_head_dim, width=sizes.numerics.compute, dropout=sizes.attention_dropout,
        masked=sizes.masked, fp32_softmax=sizes.fp32_softmax, copies=sizes.copies_scores,
    )


def latent_attention_block(graph: Graph, x: Value, *, spec: MultiLatentAttention, sizes: Sizes) -> Value:
    """Compressed queries and keys/values, expanded per head, then attention with heads of N + R and V.

    Args:
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
    scores, kernel = _sizes_of_scores(sizes, heads, wide // heads, spec.v_head_dim), sizes.attention
    if kernel is AttentionKernel.FLASH and spec.v_head_dim != scores.head_dim:
        kernel = AttentionKernel.EFFICIENT  # PyTorch's flash wants equal head widths [sdp_utils.cpp]
    context = attention(graph, q, k, v, scores=scores, kernel=kernel)
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
