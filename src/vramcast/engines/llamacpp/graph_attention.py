"""Attention over the cache: keys and values of every head, or compressed ones of latent attention.

Symbols:  R compressed width   P rotary width   A heads

[attn] ggml-org/llama.cpp src/llama-graph.cpp `build_attn`, `build_attn_mha`; src/llama-kv-cache.cpp `cpy_k`, `cpy_v`,
`get_k`, `get_v`. [ik] ikawrakow/ik_llama.cpp src/llama.cpp `llm_build_kv`, `llm_build_kqv`.
[mla] ggml-org/llama.cpp src/models/deepseek2.cpp.
[ik] ikawrakow/ik_llama.cpp src/llama.cpp `build_deepseek2` at bb8ff4e: mode 0 decompresses before it stores, 1 never
decompresses, 2 and 3 decompress the whole cache for long batches with flash attention, as many heads at once as stay
below -amb.
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.model import Attention, MultiLatentAttention, Norm
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.ops import Tensor, fed
from vramcast.engines.llamacpp.graph_parts import Build, window_cells
from vramcast.states.ggml import row_bytes
from vramcast.units import ceil_div


def attention(build: Build, mixer: Attention, x: Tensor, *, layer: int, source_layer: int | None = None) -> Tensor:
    """Queries, keys and values of a normed input, attention, output projection.

    Args:
        mixer: sizes
        layer: index of the layer
        source_layer: whose cache is read where the layer stores none
    """
    shared = mixer.shared_kv
    q, gate = _queries(build, mixer, x, layer)
    if not build.model.main.causal:
        attended = _encoded(build, mixer, q, *_keys_and_values(build, mixer, x, layer))
    elif shared:
        build.expand(q)
        attended = _attend(build, mixer, q, layer=layer if source_layer is None else source_layer)
    else:
        k, v = _keys_and_values(build, mixer, x, layer)
        build.expand(*((q, k, v) if build.settings.fork else (q, v, k)))
        _store(build, mixer, k, v, layer)
        attended = _attend(build, mixer, q, layer=layer)
    if gate is not None:
        attended = ops.like("mul", attended, ops.like("unary", gate))
    return build.linear("attn_output", attended, build.model.hidden, layer=layer, bias=mixer.out_bias)


def _queries(build: Build, mixer: Attention, x: Tensor, layer: int) -> tuple[Tensor, Tensor | None]:
    heads, width = mixer.num_heads, mixer.head_dim
    wide = heads * width * (2 if mixer.output_gate else 1)
    whole = build.linear("attn_q", x, wide, layer=layer, bias=mixer.qkv_bias)
    if not mixer.output_gate:
        return _rotated(build, mixer, _headed(build, mixer, whole, "attn_q_norm", heads, width, layer)), None
    step = row_bytes("f32", 2 * width)
    q, gate = (ops.view(whole, width, heads, build.tokens, steps=(step, step * heads)) for _ in range(2))
    if mixer.qk_norm != "none":
        q = build.norm("attn_q_norm", q, mixer.qk_norm_kind, layer=layer)
    return _rotated(build, mixer, q), ops.cont(gate, width * heads, build.tokens)


def _headed(build: Build, mixer: Attention, x: Tensor, name: str, heads: int, width: int, layer: int) -> Tensor:
    """A projection as heads, normed before or after it is divided."""
    if mixer.qk_norm == "full":
        x = build.norm(name, x, mixer.qk_norm_kind, layer=layer)
    x = ops.reshape(x, width, heads, build.tokens)
    return build.norm(name, x, mixer.qk_norm_kind, layer=layer) if mixer.qk_norm == "head" else x


def _rotated(build: Build, mixer: Attention, x: Tensor) -> Tensor:
    return ops.like("rope", x, build.positions) if mixer.rope else x


def _keys_and_values(build: Build, mixer: Attention, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    heads, v_width = mixer.num_kv_heads, mixer.v_head_dim or mixer.head_dim
    bias = mixer.qkv_bias
    k_bias = bias if mixer.k_bias is None else mixer.k_bias
    k = build.linear("attn_k", x, heads * mixer.head_dim, layer=layer, bias=k_bias)
    v = k if mixer.k_is_v else build.linear("attn_v", x, heads * v_width, layer=layer, bias=bias)
    k = _headed(build, mixer, k, "attn_k_norm", heads, mixer.head_dim, layer)
    if not build.settings.fork:
        v = ops.reshape(v, v_width, heads, build.tokens)
    if mixer.k_is_v:
        v = build.norm("attn_v_norm", v, Norm.PLAIN, layer=layer)
    return _rotated(build, mixer, k), v


def _encoded(build: Build, mixer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention within the batch, as encoders have it: nothing is cached."""
    heads, width = mixer.num_kv_heads, mixer.head_dim
    counted = ((q, mixer.num_heads), (k, heads), (v, heads))
    q, k, v = (ops.reshape(x, width, count, build.tokens) for x, count in counted)
    if build.settings.has("ordered inputs"):
        build.expand(q, k, v)
    q, k, v = (ops.permute(x, 0, 2, 1, 3) for x in (q, k, v))
    mask = build.mask(build.tokens)
    if build.settings.flash:
        attended = ops.flash_attention(q, ops.cast(k, "f16"), ops.cast(v, "f16"), mask)
        attended = ops.reshape(attended, width * mixer.num_heads, build.tokens)
    else:
        attended = _scores(build, mixer, q, k, ops.cont(ops.transpose(v)), mask)
    build.expand(attended)
    return attended


def _cells(build: Build, mixer: Attention) -> int:
    settings = build.settings
    return window_cells(settings, mixer.window) if mixer.window else settings.context // settings.streams


def _caches(build: Build, mixer: Attention, layer: int) -> tuple[Tensor, Tensor]:
    settings, heads = build.settings, mixer.num_kv_heads
    cells = _cells(build, mixer) * settings.streams
    return (
        build.cache("k", layer, settings.k_type, heads * mixer.head_dim, cells),
        build.cache("v", layer, settings.v_type, heads * (mixer.v_head_dim or mixer.head_dim), cells),
    )


def _store(build: Build, mixer: Attention, k: Tensor, v: Tensor, layer: int) -> None:
    """Write the new keys and values; without flash attention values lie transposed."""
    settings, tokens = build.settings, build.tokens
    cached_k, cached_v = _caches(build, mixer, layer)
    k_width, v_width = cached_k.ne[0], cached_v.ne[0]
    if settings.has("set rows"):
        window = " of windows" if mixer.window else ""
        rows = build.once(f"rows{window}", lambda: fed("i64", tokens))
        build.expand(ops.set_rows(cached_k, ops.view(k, k_width, tokens), rows))
        if settings.flash:
            v_rows = build.once(f"value rows{window}", lambda: fed("i64", tokens))
            build.expand(ops.set_rows(cached_v, ops.view(v, v_width, tokens), v_rows))
        else:
            scattered = build.once(f"value rows{window}", lambda: fed("i64", tokens * v_width))
            flat = ops.reshape(cached_v, 1, cached_v.elements)
            build.expand(ops.set_rows(flat, ops.reshape(v, 1, tokens * v_width), scattered))
        return
    build.expand(ops.copy_into(k, ops.view(cached_k, k_width, tokens)))
    target = ops.view(cached_v, v_width, tokens) if settings.flash else ops.view(cached_v, tokens, v_width)
    flat_v = v if v.ne[0] == v_width else ops.reshape(v, v_width, tokens)
    build.expand(ops.copy_into(flat_v if settings.flash else ops.transpose(flat_v), target))


def _attend(build: Build, mixer: Attention, q: Tensor, *, layer: int) -> Tensor:
    """Attention over the cache: (heads x width, tokens)."""
    settings, streams = build.settings, build.settings.streams
    cached_k, cached_v = _caches(build, mixer, layer)
    cells, heads = _cells(build, mixer), mixer.num_kv_heads
    v_width = mixer.v_head_dim or mixer.head_dim
    mask = build.mask(cells, f"mask of {cells} cells{' windows' if mixer.window else ''}")
    q = ops.permute(ops.view(q, q.ne[0], q.ne[1], build.tokens // streams, streams, steps=q.nb[1:3]), 0, 2, 1, 3)
    k = _as_heads(cached_k, mixer.head_dim, heads, cells, streams)
    if settings.flash and mixer.position_bias != "relative":
        v = _as_heads(cached_v, v_width, heads, cells, streams)
        sinks = (build.weight("attn_sinks.weight", layer, mixer.num_heads),) if mixer.sinks else ()
        attended = ops.flash_attention(q, k, v, mask, *sinks)
        attended = ops.reshape(attended, v_width * mixer.num_heads, build.tokens)
    else:
        v = ops.view(cached_v, cells, v_width, heads, streams)
        attended = _scores(build, mixer, q, k, v, mask)
    build.expand(attended)
    return attended


def _as_heads(cached: Tensor, width: int, heads: int, cells: int, streams: int) -> Tensor:
    step, row = row_bytes(cached.dtype, width), row_bytes(cached.dtype, width * heads)
    return ops.view(cached, width, cells, heads, streams, steps=(row, step, row * cells))


def _scores(build: Build, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention with the scores stored in f32; ik_llama.cpp can take one head at a time."""
    settings = build.settings
    whole = 4 * k.ne[1] * q.ne[1] * q.ne[2] >> 20  # [MiB]
    piecewise = settings.fork and 0 < settings.score_batch < whole and k.ne[2] == q.ne[2]
    if not piecewise:
        weighted = _weighted(mixer, q, k, v, mask, fork=settings.fork)
    else:
        pieces = [_weighted(mixer, _head(q), _head(k), _head(v), mask, fork=True) for _ in range(q.ne[2])]
        weighted = pieces[0]
        for piece in pieces[1:]:
            weighted = ops.concat(weighted, piece, 2)
    return ops.cont(ops.permute(weighted, 0, 2, 1, 3), weighted.ne[0] * weighted.ne[2], build.tokens)


def _head(x: Tensor) -> Tensor:
    return ops.view(x, x.ne[0], x.ne[1], 1, steps=(x.nb[1], x.nb[2]))


def _weighted(mixer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, fork: bool) -> Tensor:
    scores = ops.mul_mat(k, q)
    if mixer.softcap and not fork:
        scores = ops.like("scale", ops.like("unary", ops.like("scale", scores)))
    # ik_llama.cpp's operator for capped scores never works in place
    probabilities = ops.like("soft_cap_max" if mixer.softcap and fork else "soft_max", scores, mask)
    return ops.mul_mat(v, probabilities)


def heads_per_step(heads: int, *, needed_mib: int, allowed_mib: int) -> int:
    """How many heads ik_llama.cpp takes at once so that a piece stays below -amb."""
    steps = min(ceil_div(needed_mib, allowed_mib), heads)
    return ceil_div(heads, steps)


LONG_BATCH: Final = 128
"""ik_llama.cpp decompresses for batches from here on [tokens]."""


def latent_attention(build: Build, mixer: MultiLatentAttention, x: Tensor, *, layer: int) -> Tensor:
    """Attention of a normed input, output projection included."""
    q_nope, q_rope = _latent_queries(build, mixer, x, layer)
    # normed compressed keys and values, and the rotary key all heads share
    whole = build.linear("attn_kv_a_mqa", x, mixer.kv_lora_rank + mixer.qk_rope_dim, layer=layer)
    step = whole.nb[1]
    rope = ops.like("rope", ops.view(whole, mixer.qk_rope_dim, 1, build.tokens, steps=(step, step)), build.positions)
    low = ops.view(whole, mixer.kv_lora_rank, build.tokens, steps=(step,))
    compressed, k_rope = build.norm("attn_kv_a_norm", low, Norm.RMS, layer=layer), rope
    if not build.settings.latent:
        attended = _decompressed(build, mixer, q_nope, q_rope, compressed, k_rope, layer)
    elif build.settings.fork:
        attended = _fork(build, mixer, q_nope, q_rope, compressed, k_rope, layer)
    else:
        attended = _absorbed(build, mixer, q_nope, q_rope, compressed, k_rope, layer)
    build.expand(attended)
    return build.linear("attn_output", attended, build.model.hidden, layer=layer)


def _latent_queries(build: Build, mixer: MultiLatentAttention, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    heads, width = mixer.num_heads, mixer.qk_nope_dim + mixer.qk_rope_dim
    if mixer.q_lora_rank is None:
        q = build.linear("attn_q", x, heads * width, layer=layer)
    else:
        low = build.linear("attn_q_a", x, mixer.q_lora_rank, layer=layer)
        low = build.norm("attn_q_a_norm", low, Norm.RMS, layer=layer)
        q = build.linear("attn_q_b", low, heads * width, layer=layer)
    steps = (row_bytes("f32", width), row_bytes("f32", width * heads))
    nope = ops.view(q, mixer.qk_nope_dim, heads, build.tokens, steps=steps)
    rope = ops.view(q, mixer.qk_rope_dim, heads, build.tokens, steps=steps)
    return nope, ops.like("rope", rope, build.positions)


def _decompressed(
    build: Build, mixer: MultiLatentAttention, q_nope: Tensor, q_rope: Tensor, low: Tensor, k_rope: Tensor, layer: int
) -> Tensor:
    """Keys and values of every head in the cache."""
    heads, tokens, nope, v_width = mixer.num_heads, build.tokens, mixer.qk_nope_dim, mixer.v_head_dim
    kv = build.linear("attn_kv_b", low, heads * (nope + v_width), layer=layer)
    steps = (row_bytes("f32", nope + v_width), row_bytes("f32", heads * (nope + v_width)))
    v = ops.view(ops.cont(ops.view(kv, v_width, heads, tokens, steps=steps)), v_width * heads, tokens)
    k_nope = ops.view(kv, nope, heads, tokens, steps=steps)
    q = ops.concat(q_nope, q_rope, 0)
    k = ops.concat(k_nope, ops.repeat(k_rope, *q_rope.ne), 0)
    build.expand(q, k, v)
    return _over_heads(build, mixer, q, k, v, layer)


def _over_heads(
    build: Build, mixer: MultiLatentAttention, q: Tensor, k: Tensor, v: Tensor, layer: int
) -> Tensor:
    """Store decompressed keys and values, and attend to all of them."""
    settings, heads, tokens, cells = build.settings, mixer.num_heads, build.tokens, build.settings.context
    width, v_width = mixer.qk_nope_dim + mixer.qk_rope_dim, mixer.v_head_dim
    cached_k = build.cache("k", layer, settings.k_type, width, heads * cells)
    cached_v = build.cache("v", layer, settings.v_type, v_width * heads, cells)
    build.expand(ops.copy_into(k, ops.view(cached_k, width, heads * tokens)))
    stored = (v_width * heads, tokens) if settings.flash else (tokens, v_width * heads)
    build.expand(ops.copy_into(v if settings.flash else ops.transpose(v), ops.view(cached_v, *stored)))
    q = ops.permute(q, 0, 2, 1, 3)
    row = row_bytes(settings.k_type, width)
    k = ops.view(cached_k, width, cells, heads, steps=(row * heads, row))
    mask = build.mask(cells)
    if settings.flash:
        row = row_bytes(settings.v_type, v_width)
        v = ops.view(cached_v, v_width, cells, heads, steps=(row * heads, row))
        return ops.reshape(ops.flash_attention(q, k, v, mask), v_width * heads, tokens)
    scores = ops.like("soft_max", ops.mul_mat(k, q), mask)
    weighted = ops.mul_mat(ops.view(cached_v, cells, v_width, heads), scores)
    return ops.cont(ops.permute(weighted, 0, 2, 1, 3), v_width * heads, tokens)


def _absorbed(
    build: Build, mixer: MultiLatentAttention, q_nope: Tensor, q_rope: Tensor, low: Tensor, k_rope: Tensor, layer: int
) -> Tensor:
    """llama.cpp: queries go into the compressed space, one key for all heads; values are a view of the keys."""
    settings, tokens, rank = build.settings, build.tokens, mixer.kv_lora_rank
    width = rank + mixer.qk_rope_dim
    streams, cells = settings.streams, settings.context // settings.streams
    q = ops.concat(ops.permute(_absorb(build, mixer, q_nope, layer), 0, 2, 1, 3), q_rope, 0)
    v = ops.reshape(low, rank, 1, tokens)
    k = ops.concat(v, k_rope, 0)
    build.expand(q, v, k)
    cached = build.cache("k", layer, settings.k_type, width, cells * streams)
    if settings.has("set rows"):
        rows = build.once("rows", lambda: fed("i64", tokens))
        build.expand(ops.set_rows(cached, ops.view(k, width, tokens), rows))
    else:
        build.expand(ops.copy_into(k, ops.view(cached, width, tokens)))
    row = row_bytes(settings.k_type, width)
    k = ops.view(cached, width, cells, 1, streams, steps=(row, row, row * cells))
    v = ops.view(k, rank, cells, 1, streams, steps=k.nb[1:])
    q = ops.permute(ops.view(q, width, mixer.num_heads, tokens // streams, streams, steps=q.nb[1:3]), 0, 2, 1, 3)
    mask = build.mask(cells)
    if settings.flash:
        attended = ops.permute(ops.flash_attention(q, k, v, mask), 0, 2, 1, 3)
        attended = ops.permute(ops.mul_mat(_values_back(build, mixer, layer), attended), 0, 2, 1, 3)
        return ops.reshape(ops.cont(attended), mixer.num_heads * mixer.v_head_dim, tokens)
    scores = ops.like("soft_max", ops.mul_mat(k, q), mask)
    weighted = ops.mul_mat(ops.cont(ops.transpose(v)), scores)
    weighted = ops.mul_mat(_values_back(build, mixer, layer), weighted)
    return ops.cont(ops.permute(weighted, 0, 2, 1, 3), mixer.num_heads * mixer.v_head_dim, tokens)


def _absorb(build: Build, mixer: MultiLatentAttention, q_nope: Tensor, layer: int) -> Tensor:
    down = build.weight("attn_k_b.weight", layer, mixer.qk_nope_dim, mixer.kv_lora_rank, mixer.num_heads)
    return ops.mul_mat(down, ops.permute(q_nope, 0, 2, 1, 3))


def _values_back(build: Build, mixer: MultiLatentAttention, layer: int) -> Tensor:
    return build.weight("attn_v_b.weight", layer, mixer.kv_lora_rank, mixer.v_head_dim, mixer.num_heads)


def _fork(
    build: Build, mixer: MultiLatentAttention, q_nope: Tensor, q_rope: Tensor, low: Tensor, k_rope: Tensor, layer: int
) -> Tensor:
    """ik_llama.cpp: the compressed cache, decompressed or not by mode, batch and attention."""
    settings, tokens, rank = build.settings, build.tokens, mixer.kv_lora_rank
    width, cells = rank + mixer.qk_rope_dim, settings.context
    cached = build.cache("k", layer, settings.k_type, width, cells)
    transposed = None
    if settings.latent == 1 and not settings.flash:
        store = build.cache("v", layer, settings.v_type, rank * cells)
        step = row_bytes(settings.v_type, cells)
        build.expand(ops.copy_into(ops.transpose(low), ops.view(store, tokens, rank, steps=(step,))))
        transposed = ops.view(store, cells, rank, steps=(step,))
    k = ops.concat(ops.permute(k_rope, 0, 2, 1, 3), low, 0)
    build.expand(ops.copy_into(k, ops.view(cached, width, tokens)))
    if settings.latent > 1 and settings.flash and tokens >= LONG_BATCH:
        return _decompressing(build, mixer, q_nope, q_rope, cached, layer)
    q = ops.concat(ops.permute(q_rope, 0, 2, 1, 3), _absorb(build, mixer, q_nope, layer), 0)
    weighted = _fork_scores(build, mixer, q, cached, transposed)
    weighted = ops.mul_mat(_values_back(build, mixer, layer), weighted)
    merged = ops.cont(ops.permute(weighted, 0, 2, 1, 3))
    return ops.view(merged, mixer.v_head_dim * mixer.num_heads, tokens)


def _fork_scores(
    build: Build, mixer: MultiLatentAttention, q: Tensor, cached: Tensor, transposed: Tensor | None
) -> Tensor:
    """Attention in the compressed space: (R, tokens, heads)."""
    settings, rank = build.settings, mixer.kv_lora_rank
    values = ops.view(cached, rank, settings.context, steps=(cached.nb[1],))
    if settings.flash and settings.latent in (1, 3):
        attended = ops.flash_attention(q, ops.view(cached, *cached.ne[:2]), values, build.mask(settings.context))
        return ops.permute(attended, 0, 2, 1, 3)
    if transposed is None:
        transposed = ops.cont(ops.transpose(values))
    mask, heads = build.mask(settings.context), mixer.num_heads
    needed = 4 * settings.context * q.ne[1] * heads >> 20
    if not 0 < settings.score_batch < needed:
        return _compressed_piece(build, q, cached, transposed, mask)
    step = heads_per_step(heads, needed_mib=needed, allowed_mib=settings.score_batch)
    found: Tensor | None = None
    for first in range(0, heads, step):
        taken = ops.view(q, q.ne[0], q.ne[1], min(step, heads - first), steps=(q.nb[1], q.nb[2]))
        scores = ops.mul_mat(ops.view(cached, *cached.ne[:2]), taken)
        piece = ops.mul_mat(transposed, ops.like("soft_max", scores, mask))
        found = piece if found is None else ops.concat(found, piece, 2)
        build.expand(found)
    assert found is not None
    return found


def _compressed_piece(build: Build, q: Tensor, cached: Tensor, transposed: Tensor, mask: Tensor) -> Tensor:
    """All heads at once; short batches put tokens behind heads."""
    long = build.tokens >= LONG_BATCH
    scores = ops.mul_mat(ops.view(cached, *cached.ne[:2]), q if long else ops.permute(q, 0, 2, 1, 3))
    if not long:
        scores = ops.cont(ops.permute(scores, 0, 2, 1, 3))
    scores = ops.like("soft_max", scores, mask)
    weighted = ops.mul_mat(transposed, scores if long else ops.permute(scores, 0, 2, 1, 3))
    return weighted if long else ops.permute(weighted, 0, 2, 1, 3)


def _decompressing(
    build: Build, mixer: MultiLatentAttention, q_nope: Tensor, q_rope: Tensor, cached: Tensor, layer: int
) -> Tensor:
    """Modes 2 and 3 with flash attention: keys and values of some heads at a time, of the whole cache."""
    settings, cells, rope = build.settings, build.settings.context, mixer.qk_rope_dim
    nope, v_width, heads = mixer.qk_nope_dim, mixer.v_head_dim, mixer.num_heads
    step = _heads_at_once(mixer, cells=cells, allowed_mib=settings.score_batch)
    low = ops.view(cached, mixer.kv_lora_rank, cells, steps=(cached.nb[1],))
    dtype = "f16" if build.host else settings.k_type  # with cards f16, whatever the cache
    cached_rope = ops.view(cached, rope, cells, 1, steps=cached.nb[1:3])
    k_rope = ops.repeat(cached_rope if settings.k_type == dtype else ops.cast(cached_rope, dtype), rope, cells, step)
    q = ops.permute(ops.concat(q_rope, q_nope, 0), 0, 2, 1, 3)
    build.expand(q)
    weight = build.weight("attn_kv_b.weight", layer, mixer.kv_lora_rank, heads * (nope + v_width))
    steps = (row_bytes("f32", step * (nope + v_width)), row_bytes("f32", nope + v_width))
    found: Tensor | None = None
    for _ in range(heads // step):
        whole = ops.mul_mat(ops.view(weight, weight.ne[0], (nope + v_width) * step), low)
        v = ops.cast(ops.view(whole, v_width, cells, step, steps=steps), dtype)
        k_nope = ops.cast(ops.view(whole, nope, cells, step, steps=steps), dtype)
        build.expand(k_nope, v)
        k = ops.concat(k_rope, k_nope, 0)
        build.expand(k)
        taken = ops.view(q, q.ne[0], q.ne[1], step, steps=(q.nb[1], q.nb[2]))
        attended = ops.flash_attention(taken, k, v, build.mask(cells))
        attended = ops.reshape(attended, v_width * step, build.tokens)
        found = attended if found is None else ops.concat(found, attended, 0)
    assert found is not None
    return found


def _heads_at_once(mixer: MultiLatentAttention, *, cells: int, allowed_mib: int) -> int:
    """Heads whose decompressed keys and values stay below -amb, by halving."""
    heads = mixer.num_heads
    needed = 4 * heads * (mixer.qk_nope_dim + mixer.v_head_dim) * cells >> 20
    while allowed_mib and heads % 2 == 0 and needed > allowed_mib:
        heads, needed = heads // 2, needed // 2
    return heads
