"""Attention with keys and values of every head in the cache.

[attn] ggml-org/llama.cpp src/llama-graph.cpp `build_attn`, `build_attn_mha`; src/llama-kv-cache.cpp `cpy_k`, `cpy_v`,
`get_k`, `get_v`. [ik] ikawrakow/ik_llama.cpp src/llama.cpp `llm_build_kv`, `llm_build_kqv`.
"""

from __future__ import annotations

from vramcast.domain.model import Attention, Norm
from vramcast.engines.ggml import ops
from vramcast.engines.ggml.tensor import Tensor, fed
from vramcast.engines.llamacpp.graph.context import Build, window_cells
from vramcast.states.ggml import row_bytes
from vramcast.units import ceil_div


def attention(build: Build, mixer: Attention, x: Tensor, *, layer: int, source_layer: int | None = None) -> Tensor:
    """Queries, keys and values of a normed input, attention, output projection.

    Args:
        build: the graph
        mixer: sizes
        x: hidden states
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
