"""What stable-diffusion.cpp's graphs are written with, on top of ggml's operators.

Sizes are written fastest axis first, as ggml has them. An operator written `ggml_*_inplace` is a view of its operand.

[ggml] ggml-org/ggml src/ggml.c at ff90529   [extend] leejet/stable-diffusion.cpp ggml_extend.hpp at 10c6501
[extend] leejet/stable-diffusion.cpp ggml_extend.hpp `ggml_nn_attention_ext` at 10c6501
[mmdit] leejet/stable-diffusion.cpp mmdit.hpp `modulate`, `split_qkv` at 10c6501
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.engines.ggml.ops import (
    Graph,
    Tensor,
    cast,
    cont,
    flash_attention,
    like,
    mul_mat,
    permute,
    placed,
    reshape,
    shaped,
    sized,
)
from vramcast.engines.ggml.scheduler import Memory, Step, pack

DEVICE: Final = Memory(128, pads_rows=True, shrinks=False)
"""CUDA buffers of the builds covered: newer ones pad keys for flash attention and are refused."""


def compute_buffer_bytes(result: Tensor) -> int:
    """The buffer that a graph reserves on its one backend [bytes]."""
    graph = Graph()
    graph.expand(result)
    steps = [Step(node, 0) for node in graph.nodes]
    return pack(steps, [Step(leaf, 0) for leaf in graph.leafs], [DEVICE])[0]


def leaf(*ne: int, dtype: str = "f32") -> Tensor:
    """An input that the caller copies into the compute buffer."""
    return Tensor(dtype, shaped(*ne))


def weight(*ne: int, dtype: str = "f32") -> Tensor:
    """A parameter: it lies in the buffer of weights. Its type matters where an operator takes it over."""
    return placed(dtype, *ne, home=0, weight=True)


def in_place(op: str, x: Tensor, *others: Tensor) -> Tensor:
    """An operator that writes over its operand."""
    return Tensor(x.dtype, x.ne, op=op, src=(x, *others), root=x, nb=x.nb)


def slice_view(x: Tensor, *ne: int) -> Tensor:
    """`ggml_view_*` with the operand's steps."""
    return Tensor(x.dtype, shaped(*ne), op="view", src=(x,), root=x, nb=x.nb)


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, b repeated over a."""
    return like("add", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b, b repeated over a."""
    return like("mul", a, b)


def activation(x: Tensor) -> Tensor:
    """`ggml_silu_inplace`, `ggml_gelu_inplace` and kin."""
    return in_place("unary", x)


def padded(x: Tensor) -> Tensor:
    """`ggml_pad` to whole patches: a copy even where nothing is added."""
    return like("pad", x)


def upscale(x: Tensor, factor: int) -> Tensor:
    """Both first axes so many times larger."""
    width, height, channels, batch = x.ne
    return sized("upscale", x.dtype, (width * factor, height * factor, channels, batch), x)


def timestep_embedding(steps: Tensor, width: int) -> Tensor:
    """[extend] `ggml_nn_timestep_embedding`: scaled steps, then sines of every frequency."""
    return sized("timestep_embedding", "f32", (width + width % 2, steps.ne[0]), like("scale", steps))


def linear(x: Tensor, out_features: int, *, bias: bool = True) -> Tensor:
    """[extend] `ggml_nn_linear`."""
    y = mul_mat(weight(x.ne[0], out_features), x)
    return add(y, weight(out_features)) if bias else y


class Kernel(NamedTuple):
    """A convolution's window."""

    size: tuple[int, int] = (3, 3)  # along the first and the second axis
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)


WINDOW: Final = Kernel()
"""A 3 x 3 convolution that keeps the size."""

POINT: Final = Kernel((1, 1), padding=(0, 0))
"""A 1 x 1 convolution."""


def conv_2d(x: Tensor, out_channels: int, kernel: Kernel = WINDOW) -> Tensor:
    """[ggml] `ggml_conv_2d` and a bias: fp16 columns of every window, a product, a copy in the order of the result."""
    width, height, channels, batch = x.ne
    (kw, kh), (sw, sh), (pw, ph) = kernel
    out_w, out_h = (width + 2 * pw - kw) // sw + 1, (height + 2 * ph - kh) // sh + 1
    weights = weight(kw, kh, channels, out_channels, dtype="f16")
    columns = sized("im2col", "f16", (channels * kh * kw, out_w, out_h, batch), weights, x)
    rows = reshape(columns, columns.ne[0], out_w * out_h * batch)
    product = mul_mat(rows, reshape(weights, channels * kh * kw, out_channels))
    y = cont(permute(reshape(product, out_w, out_h, batch, out_channels), 0, 1, 3, 2))
    return add(y, reshape(weight(out_channels), 1, 1, out_channels))


def group_norm(x: Tensor) -> Tensor:
    """[extend] `ggml_nn_group_norm`: the normalised copy, scaled and shifted."""
    channels = x.ne[2]
    scaled = mul(like("group_norm", x), reshape(weight(channels), 1, 1, channels))
    return add(scaled, reshape(weight(channels), 1, 1, channels))


def layer_norm(x: Tensor, *, affine: bool = True) -> Tensor:
    """[extend] `ggml_nn_layer_norm`."""
    y = like("norm", x)
    return add(mul(y, weight(x.ne[0])), weight(x.ne[0])) if affine else y


def rms_norm(x: Tensor) -> Tensor:
    """The normalised copy, scaled."""
    return mul(like("rms_norm", x), weight(x.ne[0]))


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
