"""ggml operators: what each one makes of its operands' shapes, and whether it makes anything.

Shapes are written fastest axis first, as ggml has them. A view (reshape, permute, slice, "inplace" operator) owns no
memory; results of products are fp32.

[ggml] ggml-org/ggml src/ggml.c at ff90529
[extend] leejet/stable-diffusion.cpp ggml_extend.hpp at 10c6501
"""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from vramcast.allocator.ggml import GgmlTensor, Shape

F32: Final = "f32"
F16: Final = "f16"
I32: Final = "i32"

WIDTHS: Final[dict[str, int]] = {F32: 4, F16: 2, I32: 4}
"""Bytes of one element of what a graph computes with; quantised types are weights only."""


def _shape(*sizes: int) -> Shape:
    first, second, third, fourth = (*sizes, 1, 1, 1)[:4]
    return first, second, third, fourth


def _contiguous(shape: Shape, width: int) -> Shape:
    a, b, c, _ = shape
    return width, width * a, width * a * b, width * a * b * c


def _tensor(op: str, dtype: str, shape: Shape, *sources: GgmlTensor, external: bool = False) -> GgmlTensor:
    width = WIDTHS[dtype]
    return GgmlTensor(
        op, dtype, shape, _contiguous(shape, width), prod(shape) * width, sources, external=external
    )


def leaf(*sizes: int, dtype: str = F32) -> GgmlTensor:
    """An input that the caller copies into the compute buffer."""
    return _tensor("", dtype, _shape(*sizes))


def weight(*sizes: int, dtype: str = F32) -> GgmlTensor:
    """A parameter: it lies in the buffer of weights. Its type matters where an operator takes it over."""
    return _tensor("", dtype, _shape(*sizes), external=True)


def _view(op: str, of: GgmlTensor, shape: Shape, strides: Shape, *others: GgmlTensor) -> GgmlTensor:
    return GgmlTensor(op, of.dtype, shape, strides, 0, (of, *others), of.view_of or of)


def in_place(op: str, x: GgmlTensor, *others: GgmlTensor) -> GgmlTensor:
    """An operator written as `ggml_*_inplace`: a view of its operand."""
    return _view(op, x, x.shape, x.strides, *others)


def like(op: str, x: GgmlTensor, *others: GgmlTensor) -> GgmlTensor:
    """A new contiguous tensor of the operand's type and sizes."""
    return _tensor(op, x.dtype, x.shape, x, *others)


def reshape(x: GgmlTensor, *sizes: int) -> GgmlTensor:
    """Other sizes over the same memory."""
    shape = _shape(*sizes)
    return _view("reshape", x, shape, _contiguous(shape, WIDTHS[x.dtype]))


def permute(x: GgmlTensor, *axes: int) -> GgmlTensor:
    """Axis i of the operand becomes axis axes[i] of the view."""
    shape, strides = [0] * 4, [0] * 4
    for source, target in enumerate(axes):
        shape[target], strides[target] = x.shape[source], x.strides[source]
    return _view("permute", x, _shape(*shape), _shape(*strides))


def slice_view(x: GgmlTensor, *sizes: int) -> GgmlTensor:
    """`ggml_view_*` with the operand's strides."""
    return _view("view", x, _shape(*sizes), x.strides)


def cont(x: GgmlTensor) -> GgmlTensor:
    """A contiguous copy."""
    return like("cont", x)


def add(a: GgmlTensor, b: GgmlTensor) -> GgmlTensor:
    """a + b, b repeated over a."""
    return like("add", a, b)


def mul(a: GgmlTensor, b: GgmlTensor) -> GgmlTensor:
    """a * b, b repeated over a."""
    return like("mul", a, b)


def activation(x: GgmlTensor) -> GgmlTensor:
    """`ggml_silu_inplace`, `ggml_gelu_inplace` and kin."""
    return in_place("unary", x)


def mul_mat(a: GgmlTensor, b: GgmlTensor) -> GgmlTensor:
    """b times the transpose of a: fp32."""
    return _tensor("mul_mat", F32, (a.shape[1], b.shape[1], b.shape[2], b.shape[3]), a, b)


def concat(a: GgmlTensor, b: GgmlTensor, axis: int) -> GgmlTensor:
    """a and b one behind the other."""
    sizes = list(a.shape)
    sizes[axis] += b.shape[axis]
    return _tensor("concat", a.dtype, _shape(*sizes), a, b)


def repeat(x: GgmlTensor, *sizes: int) -> GgmlTensor:
    """x repeated to those sizes."""
    return _tensor("repeat", x.dtype, _shape(*sizes), x)


def pad(x: GgmlTensor, *more: int) -> GgmlTensor:
    """x with so much more along each axis; a copy even where nothing is added."""
    added = _shape(*(*more, 0, 0, 0, 0)[:4])
    sizes = (size + extra for size, extra in zip(x.shape, added, strict=True))
    return _tensor("pad", x.dtype, _shape(*sizes), x)


def upscale(x: GgmlTensor, factor: int) -> GgmlTensor:
    """Both first axes so many times larger."""
    w, h, c, n = x.shape
    return _tensor("upscale", x.dtype, (w * factor, h * factor, c, n), x)


def cast(x: GgmlTensor, dtype: str) -> GgmlTensor:
    """A copy in another type."""
    return _tensor("cpy", dtype, x.shape, x)


def get_rows(table: GgmlTensor, rows: GgmlTensor) -> GgmlTensor:
    """Rows of a table by number."""
    return _tensor("get_rows", F32, (table.shape[0], rows.shape[0], rows.shape[1], rows.shape[2]), table, rows)


def timestep_embedding(steps: GgmlTensor, width: int) -> GgmlTensor:
    """[extend] `ggml_nn_timestep_embedding`: scaled steps, then sines of every frequency."""
    scaled = like("scale", steps)
    return _tensor("timestep_embedding", F32, _shape(width + width % 2, steps.shape[0]), scaled)


def linear(x: GgmlTensor, out_features: int, *, bias: bool = True) -> GgmlTensor:
    """[extend] `ggml_nn_linear`."""
    y = mul_mat(weight(x.shape[0], out_features), x)
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


def conv_2d(x: GgmlTensor, out_channels: int, kernel: Kernel = WINDOW, *, bias: bool = True) -> GgmlTensor:
    """[ggml] `ggml_conv_2d`: fp16 columns of every window, a product, and a copy in the order of the result."""
    width, height, channels, batch = x.shape
    (kw, kh), (sw, sh), (pw, ph) = kernel
    out_w, out_h = (width + 2 * pw - kw) // sw + 1, (height + 2 * ph - kh) // sh + 1
    weights = weight(kw, kh, channels, out_channels, dtype=F16)
    columns = _tensor("im2col", F16, (channels * kh * kw, out_w, out_h, batch), weights, x)
    rows = reshape(columns, columns.shape[0], out_w * out_h * batch)
    product = mul_mat(rows, reshape(weights, channels * kh * kw, out_channels))
    y = cont(permute(reshape(product, out_w, out_h, batch, out_channels), 0, 1, 3, 2))
    return add(y, reshape(weight(out_channels), 1, 1, out_channels)) if bias else y


def group_norm(x: GgmlTensor) -> GgmlTensor:
    """[extend] `ggml_nn_group_norm`: the normalised copy, scaled and shifted."""
    channels = x.shape[2]
    scaled = mul(like("group_norm", x), reshape(weight(channels), 1, 1, channels))
    return add(scaled, reshape(weight(channels), 1, 1, channels))


def layer_norm(x: GgmlTensor, *, affine: bool = True) -> GgmlTensor:
    """[extend] `ggml_nn_layer_norm`."""
    y = like("norm", x)
    return add(mul(y, weight(x.shape[0])), weight(x.shape[0])) if affine else y


def rms_norm(x: GgmlTensor) -> GgmlTensor:
    """The normalised copy, scaled."""
    return mul(like("rms_norm", x), weight(x.shape[0]))


def flash_attention(q: GgmlTensor, k: GgmlTensor, v: GgmlTensor, mask: GgmlTensor | None = None) -> GgmlTensor:
    """[ggml] `ggml_flash_attn_ext`."""
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return _tensor("flash_attn_ext", F32, (q.shape[0], q.shape[2], q.shape[1], q.shape[3]), *operands)
