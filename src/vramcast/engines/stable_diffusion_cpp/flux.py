"""FLUX.1 as a ggml graph.

[flux] leejet/stable-diffusion.cpp flux.hpp `Flux::forward` at 10c6501
"""

from __future__ import annotations

from vramcast.domain.denoisers import Flux
from vramcast.engines.ggml.ops import concat, cont, permute, repeat, reshape
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.stable_diffusion_cpp.attention import (
    attend,
    embedder,
    middle_rows,
    mlp,
    modulate,
    modulation,
    split_qkv,
)
from vramcast.engines.stable_diffusion_cpp.ops import (
    activation,
    add,
    in_place,
    layer_norm,
    leaf,
    linear,
    mul,
    padded,
    rms_norm,
    slice_view,
    timestep_embedding,
)

STEP_FREQUENCIES = 256
PATCH = 2

Projections = tuple[Tensor, Tensor, Tensor]


def flux_graph(spec: Flux, *, width: int, height: int, tokens: int, flash: bool) -> Tensor:
    """The result of one denoising step; sizes of the latent, and text tokens."""
    hidden, heads = spec.hidden, spec.num_attention_heads
    columns, rows, channels = width // PATCH, height // PATCH, spec.in_channels // PATCH**2
    latent, text = leaf(width, height, channels, 1), leaf(spec.joint_attention_dim, tokens, 1)
    positions = leaf(2, 2, spec.attention_head_dim // 2, tokens + rows * columns)
    image = linear(_patches(latent, rows, columns), hidden)
    condition = embedder(timestep_embedding(leaf(1), STEP_FREQUENCIES), hidden)
    if spec.guidance_embeds:
        condition = add(condition, embedder(timestep_embedding(leaf(1), STEP_FREQUENCIES), hidden))
    condition = add(condition, embedder(leaf(spec.pooled_projection_dim, 1), hidden))
    text = linear(text, hidden)
    for _ in range(spec.num_layers):
        image, text = _double(image, text, condition, positions, heads, flash=flash)
    x = concat(text, image, 1)
    for _ in range(spec.num_single_layers):
        x = _single(x, condition, positions, heads, flash=flash)
    x = middle_rows(cont(permute(x, 0, 2, 1, 3)), rows * columns)
    shift, scale = modulation(condition, 2)
    x = linear(modulate(layer_norm(x, affine=False), shift, scale), PATCH**2 * channels)
    x = cont(permute(reshape(x, PATCH**2, channels, rows * columns), 0, 2, 1, 3))
    x = cont(permute(reshape(x, PATCH, PATCH, columns, rows * channels), 0, 2, 1, 3))
    return reshape(x, width, height, channels)


def _patches(latent: Tensor, rows: int, columns: int) -> Tensor:
    channels = latent.ne[2]
    x = cont(permute(reshape(padded(latent), PATCH, columns, PATCH, rows * channels), 0, 2, 1, 3))
    x = cont(permute(reshape(x, PATCH**2, rows * columns, channels), 0, 2, 1, 3))
    return reshape(x, PATCH**2 * channels, rows * columns)


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Pairs of channels times their rotation: every pair's two entries are repeated, multiplied and summed."""
    width, heads, length, batch = x.ne
    x = cont(permute(x, 0, 2, 1, 3))
    x = cont(permute(reshape(x, 2, width // 2, length, heads * batch), 3, 0, 1, 2))
    turn = cont(permute(positions, 3, 0, 1, 2))
    products = []
    for _ in range(2):
        half = slice_view(x, *x.ne[:3])
        half = repeat(reshape(half, 1, *half.ne[:3]), 2, *half.ne[:3])
        products.append(mul(half, slice_view(turn, *turn.ne[:3])))
    return reshape(in_place("add", *products), width, length, heads * batch)


def _attention(qkv: Projections, positions: Tensor, *, flash: bool) -> Tensor:
    q, k, v = qkv
    return attend(_rotated(q, positions), _rotated(k, positions), v, v.ne[1], flash=flash)


def _projections(qkv: Tensor, heads: int) -> Projections:
    q, k, v = (
        reshape(part, part.ne[0] // heads, heads, part.ne[1], part.ne[2]) for part in split_qkv(qkv)
    )
    return rms_norm(q), rms_norm(k), v


def _double(
    image: Tensor, text: Tensor, condition: Tensor, positions: Tensor, heads: int, *, flash: bool
) -> tuple[Tensor, Tensor]:
    of_image, of_text = modulation(condition, 6), modulation(condition, 6)
    image_qkv = _stream(image, of_image, heads)
    text_qkv = _stream(text, of_text, heads)
    q, k, v = (concat(a, b, 2) for a, b in zip(text_qkv, image_qkv, strict=True))
    both = cont(permute(_attention((q, k, v), positions, flash=flash), 0, 2, 1, 3))
    text_part, image_part = middle_rows(both, text.ne[1]), middle_rows(both, image.ne[1])
    return _finish(image, image_part, of_image), _finish(text, text_part, of_text)


def _stream(x: Tensor, vectors: list[Tensor], heads: int) -> Projections:
    normed = modulate(layer_norm(x, affine=False), vectors[0], vectors[1])
    return _projections(linear(normed, 3 * x.ne[0]), heads)


def _finish(x: Tensor, attended: Tensor, vectors: list[Tensor]) -> Tensor:
    x = add(x, mul(linear(attended, x.ne[0]), vectors[2]))
    out = mlp(modulate(layer_norm(x, affine=False), vectors[3], vectors[4]), 4 * x.ne[0])
    return add(x, mul(out, vectors[5]))


def _single(
    x: Tensor, condition: Tensor, positions: Tensor, heads: int, *, flash: bool
) -> Tensor:
    hidden = x.ne[0]
    shift, scale, gate = modulation(condition, 3)
    joined = linear(modulate(layer_norm(x, affine=False), shift, scale), 7 * hidden)
    joined = cont(permute(joined, 2, 0, 1, 3))
    qkv, inner = (
        cont(permute(slice_view(joined, joined.ne[0], joined.ne[1], parts * hidden), 1, 2, 0, 3))
        for parts in (3, 4)
    )
    attended = _attention(_projections(qkv, heads), positions, flash=flash)
    out = linear(concat(attended, activation(inner), 0), hidden)
    return add(x, mul(out, gate))
