"""Attention and modulation as stable-diffusion.cpp builds them.

[extend] leejet/stable-diffusion.cpp ggml_extend.hpp `ggml_nn_attention_ext` at 10c6501
[mmdit] leejet/stable-diffusion.cpp mmdit.hpp `modulate`, `split_qkv` at 10c6501
"""

from __future__ import annotations

from typing import Final

from vramcast.allocator.ggml import GgmlTensor
from vramcast.operators.ggml import (
    F16,
    activation,
    add,
    cast,
    cont,
    flash_attention,
    in_place,
    like,
    linear,
    mul,
    mul_mat,
    permute,
    reshape,
    slice_view,
)

FLASH_KEYS: Final = 256
"""The flash kernel takes keys in multiples of this [tokens]."""

FLASH_WIDTHS: Final = (64, 256)
"""Head widths it takes: multiples of the first, up to the second."""


def heads_first(x: GgmlTensor, heads: int) -> GgmlTensor:
    """(C, L, N) as (D, L, heads N), copied."""
    channels, length, batch = x.shape[:3]
    width = channels // heads
    apart = reshape(x, width, heads, length, batch)
    return reshape(cont(permute(apart, 0, 2, 1, 3)), width, length, heads * batch)


def attention(q: GgmlTensor, k: GgmlTensor, v: GgmlTensor, heads: int, *, flash: bool = False) -> GgmlTensor:
    """Attention of (C, L, N) queries, keys and values."""
    channels, length, batch = v.shape[:3]
    apart = reshape(v, channels // heads, heads, length, batch)
    return attend(heads_first(q, heads), heads_first(k, heads), apart, heads, flash=flash)


def attend(
    q: GgmlTensor, k: GgmlTensor, v: GgmlTensor, heads: int, *, flash: bool = False, mask: GgmlTensor | None = None,
    causal: bool = False,
) -> GgmlTensor:
    """Attention of (D, L, heads N) queries and keys and (D, heads, L, N) values."""
    width, queries = q.shape[:2]
    keys, batch = k.shape[1], v.shape[3]
    if flash and keys % FLASH_KEYS == 0 and width % FLASH_WIDTHS[0] == 0 and width <= FLASH_WIDTHS[1]:
        narrow = cast(reshape(cont(permute(v, 0, 2, 1, 3)), width, keys, heads * batch), F16)
        found = slice_view(flash_attention(q, cast(k, F16), narrow), width, heads, queries)
    else:
        turned = reshape(cont(permute(v, 1, 2, 0, 3)), keys, width, heads * batch)
        scores = in_place("scale", mul_mat(k, q))
        if mask is not None:
            scores = add(scores, mask)
        if causal:
            scores = in_place("diag_mask_inf", scores)
        product = mul_mat(turned, in_place("soft_max", scores))
        found = permute(reshape(product, width, queries, heads, batch), 0, 2, 1, 3)
    return reshape(cont(found), width * heads, queries, batch)


def split_qkv(qkv: GgmlTensor) -> tuple[GgmlTensor, GgmlTensor, GgmlTensor]:
    """Queries, keys and values of one projection [mmdit]."""
    width, length, batch = qkv.shape[0] // 3, qkv.shape[1], qkv.shape[2]
    apart = cont(permute(reshape(qkv, width, 3, length, batch), 0, 3, 1, 2))
    q, k, v = (slice_view(apart, width, length, batch) for _ in range(3))
    return q, k, v


def modulation(condition: GgmlTensor, vectors: int) -> list[GgmlTensor]:
    """So many vectors of the condition's width from one linear behind silu."""
    width, batch = condition.shape[:2]
    joined = reshape(linear(like("unary", condition), width * vectors), width, vectors, batch)
    apart = cont(permute(joined, 0, 2, 1, 3))
    return [slice_view(apart, width, batch) for _ in range(vectors)]


def modulate(x: GgmlTensor, shift: GgmlTensor, scale: GgmlTensor) -> GgmlTensor:
    """x (1 + scale) + shift [mmdit]."""
    shift, scale = (reshape(vector, vector.shape[0], 1, vector.shape[1]) for vector in (shift, scale))
    return add(add(x, mul(x, scale)), shift)


def mlp(x: GgmlTensor, width: int) -> GgmlTensor:
    """Two linears with an activation in place."""
    return linear(activation(linear(x, width)), x.shape[0])


def embedder(x: GgmlTensor, width: int) -> GgmlTensor:
    """A vector through two linears of the given width."""
    return linear(activation(linear(x, width)), width)


def middle_rows(x: GgmlTensor, rows: int) -> GgmlTensor:
    """So many rows of a sequence-first copy, back in batch-first order."""
    return cont(permute(slice_view(x, x.shape[0], x.shape[1], rows), 0, 2, 1, 3))
