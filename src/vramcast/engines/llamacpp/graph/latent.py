"""Multi-head latent attention: compressed keys and values in the cache, or decompressed ones.

[mla] ggml-org/llama.cpp src/models/deepseek2.cpp.
[ik] ikawrakow/ik_llama.cpp src/llama.cpp `build_deepseek2` at bb8ff4e: mode 0 decompresses before it stores, 1 never
decompresses, 2 and 3 decompress the whole cache for long batches with flash attention, as many heads at once as stay
below -amb.
Symbols:  R compressed width   P rotary width   A heads
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.model import MultiLatentAttention, Norm
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.tensor import Tensor, fed
from vramcast.engines.llamacpp.graph.attention import heads_per_step
from vramcast.engines.llamacpp.graph.context import Build
from vramcast.states.ggml import row_bytes

LONG_BATCH: Final = 128
"""ik_llama.cpp decompresses for batches from here on [tokens]."""


def latent_attention(build: Build, mixer: MultiLatentAttention, x: Tensor, *, layer: int) -> Tensor:
    """Attention of a normed input, output projection included."""
    q_nope, q_rope = _queries(build, mixer, x, layer)
    compressed, k_rope = _compressed(build, mixer, x, layer)
    if not build.settings.latent:
        attended = _decompressed(build, mixer, q_nope, q_rope, compressed, k_rope, layer)
    elif build.settings.fork:
        attended = _fork(build, mixer, q_nope, q_rope, compressed, k_rope, layer)
    else:
        attended = _absorbed(build, mixer, q_nope, q_rope, compressed, k_rope, layer)
    build.expand(attended)
    return build.linear("attn_output", attended, build.model.hidden, layer=layer)


def _queries(build: Build, mixer: MultiLatentAttention, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
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


def _compressed(build: Build, mixer: MultiLatentAttention, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Normed compressed keys and values, and the rotary key all heads share."""
    whole = build.linear("attn_kv_a_mqa", x, mixer.kv_lora_rank + mixer.qk_rope_dim, layer=layer)
    step = whole.nb[1]
    rope = ops.like("rope", ops.view(whole, mixer.qk_rope_dim, 1, build.tokens, steps=(step, step)), build.positions)
    low = ops.view(whole, mixer.kv_lora_rank, build.tokens, steps=(step,))
    return build.norm("attn_kv_a_norm", low, Norm.RMS, layer=layer), rope


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
