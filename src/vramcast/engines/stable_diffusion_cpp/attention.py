"""Attention and modulation as stable-diffusion.cpp builds them.

[extend] leejet/stable-diffusion.cpp ggml_extend.hpp `ggml_nn_attention_ext` at 10c6501
[mmdit] leejet/stable-diffusion.cpp mmdit.hpp `modulate`, `split_qkv` at 10c6501
"""

from __future__ import annotations

from typing import Final

from vramcast.engines.ggml.ops import cast, cont, flash_attention, like, mul_mat, permute, reshape
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.stable_diffusion_cpp.ops import activation, add, in_place, linear, mul, slice_view

FLASH_KEYS: Final = 256
"""The flash kernel takes keys in multiples of this [tokens]."""

FLASH_WIDTHS: Final = (64, 256)
"""Head widths it takes: multiples of the first, up to the second."""


def heads_first(x: Tensor, heads: int) -> Tensor:
    """(C, L, N) as (D, L, heads N), copied."""
    channels, length, batch = x.ne[:3]
    width = channels // heads
    apart = reshape(x, width, heads, length, batch)
    return reshape(cont(permute(apart, 0, 2, 1, 3)), width, length, heads * batch)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, *, flash: bool = False) -> Tensor:
    """Attention of (C, L, N) queries, keys and values."""
    channels, length, batch = v.ne[:3]
    apart = reshape(v, channels // heads, heads, length, batch)
    return attend(heads_first(q, heads), heads_first(k, heads), apart, heads, flash=flash)


def attend(
    q: Tensor, k: Tensor, v: Tensor, heads: int, *, flash: bool = False, mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention of (D, L, heads N) queries and keys and (D, heads, L, N) values."""
    width, queries = q.ne[:2]
    keys, batch = k.ne[1], v.ne[3]
    if flash and keys % FLASH_KEYS == 0 and width % FLASH_WIDTHS[0] == 0 and width <= FLASH_WIDTHS[1]:
        narrow = cast(reshape(cont(permute(v, 0, 2, 1, 3)), width, keys, heads * batch), "f16")
        found = slice_view(flash_attention(q, cast(k, "f16"), narrow, None), width, heads, queries)
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


def split_qkv(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one projection [mmdit]."""
    width, length, batch = qkv.ne[0] // 3, qkv.ne[1], qkv.ne[2]
    apart = cont(permute(reshape(qkv, width, 3, length, batch), 0, 3, 1, 2))
    q, k, v = (slice_view(apart, width, length, batch) for _ in range(3))
    return q, k, v


def modulation(condition: Tensor, vectors: int) -> list[Tensor]:
    """So many vectors of the condition's width from one linear behind silu."""
    width, batch = condition.ne[:2]
    joined = reshape(linear(like("unary", condition), width * vectors), width, vectors, batch)
    apart = cont(permute(joined, 0, 2, 1, 3))
    return [slice_view(apart, width, batch) for _ in range(vectors)]


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (1 + scale) + shift [mmdit]."""
    shift, scale = (reshape(vector, vector.ne[0], 1, vector.ne[1]) for vector in (shift, scale))
    return add(add(x, mul(x, scale)), shift)


def mlp(x: Tensor, width: int) -> Tensor:
    """Two linears with an activation in place."""
    return linear(activation(linear(x, width)), x.ne[0])


def embedder(x: Tensor, width: int) -> Tensor:
    """A vector through two linears of the given width."""
    return linear(activation(linear(x, width)), width)


def middle_rows(x: Tensor, rows: int) -> Tensor:
    """So many rows of a sequence-first copy, back in batch-first order."""
    return cont(permute(slice_view(x, x.ne[0], x.ne[1], rows), 0, 2, 1, 3))
