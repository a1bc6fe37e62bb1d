"""FLUX.1 as a ggml graph.

[flux] leejet/stable-diffusion.cpp flux.hpp `Flux::forward` at 10c6501
"""

from __future__ import annotations

from vramcast.allocator.ggml import GgmlTensor
from vramcast.domain.denoisers import Flux
from vramcast.engines.stable_diffusion_cpp.attention import (
    attend,
    embedder,
    middle_rows,
    mlp,
    modulate,
    modulation,
    split_qkv,
)
from vramcast.operators.ggml import (
    activation,
    add,
    concat,
    cont,
    in_place,
    layer_norm,
    leaf,
    linear,
    mul,
    pad,
    permute,
    repeat,
    reshape,
    rms_norm,
    slice_view,
    timestep_embedding,
)

STEP_FREQUENCIES = 256
PATCH = 2

Projections = tuple[GgmlTensor, GgmlTensor, GgmlTensor]


def flux_graph(spec: Flux, *, width: int, height: int, tokens: int, flash: bool) -> GgmlTensor:
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


def _patches(latent: GgmlTensor, rows: int, columns: int) -> GgmlTensor:
    channels = latent.shape[2]
    x = cont(permute(reshape(pad(latent), PATCH, columns, PATCH, rows * channels), 0, 2, 1, 3))
    x = cont(permute(reshape(x, PATCH**2, rows * columns, channels), 0, 2, 1, 3))
    return reshape(x, PATCH**2 * channels, rows * columns)


def _rotated(x: GgmlTensor, positions: GgmlTensor) -> GgmlTensor:
    """Pairs of channels times their rotation: every pair's two entries are repeated, multiplied and summed."""
    width, heads, length, batch = x.shape
    x = cont(permute(x, 0, 2, 1, 3))
    x = cont(permute(reshape(x, 2, width // 2, length, heads * batch), 3, 0, 1, 2))
    turn = cont(permute(positions, 3, 0, 1, 2))
    products = []
    for _ in range(2):
        half = slice_view(x, *x.shape[:3])
        half = repeat(reshape(half, 1, *half.shape[:3]), 2, *half.shape[:3])
        products.append(mul(half, slice_view(turn, *turn.shape[:3])))
    return reshape(in_place("add", *products), width, length, heads * batch)


def _attention(qkv: Projections, positions: GgmlTensor, *, flash: bool) -> GgmlTensor:
    q, k, v = qkv
    return attend(_rotated(q, positions), _rotated(k, positions), v, v.shape[1], flash=flash)


def _projections(qkv: GgmlTensor, heads: int) -> Projections:
    q, k, v = (
        reshape(part, part.shape[0] // heads, heads, part.shape[1], part.shape[2]) for part in split_qkv(qkv)
    )
    return rms_norm(q), rms_norm(k), v


def _double(
    image: GgmlTensor, text: GgmlTensor, condition: GgmlTensor, positions: GgmlTensor, heads: int, *, flash: bool
) -> tuple[GgmlTensor, GgmlTensor]:
    of_image, of_text = modulation(condition, 6), modulation(condition, 6)
    image_qkv = _stream(image, of_image, heads)
    text_qkv = _stream(text, of_text, heads)
    q, k, v = (concat(a, b, 2) for a, b in zip(text_qkv, image_qkv, strict=True))
    both = cont(permute(_attention((q, k, v), positions, flash=flash), 0, 2, 1, 3))
    text_part, image_part = middle_rows(both, text.shape[1]), middle_rows(both, image.shape[1])
    return _finish(image, image_part, of_image), _finish(text, text_part, of_text)


def _stream(x: GgmlTensor, vectors: list[GgmlTensor], heads: int) -> Projections:
    normed = modulate(layer_norm(x, affine=False), vectors[0], vectors[1])
    return _projections(linear(normed, 3 * x.shape[0]), heads)


def _finish(x: GgmlTensor, attended: GgmlTensor, vectors: list[GgmlTensor]) -> GgmlTensor:
    x = add(x, mul(linear(attended, x.shape[0]), vectors[2]))
    out = mlp(modulate(layer_norm(x, affine=False), vectors[3], vectors[4]), 4 * x.shape[0])
    return add(x, mul(out, vectors[5]))


def _single(
    x: GgmlTensor, condition: GgmlTensor, positions: GgmlTensor, heads: int, *, flash: bool
) -> GgmlTensor:
    hidden = x.shape[0]
    shift, scale, gate = modulation(condition, 3)
    joined = linear(modulate(layer_norm(x, affine=False), shift, scale), 7 * hidden)
    joined = cont(permute(joined, 2, 0, 1, 3))
    qkv, inner = (
        cont(permute(slice_view(joined, joined.shape[0], joined.shape[1], parts * hidden), 1, 2, 0, 3))
        for parts in (3, 4)
    )
    attended = _attention(_projections(qkv, heads), positions, flash=flash)
    out = linear(concat(attended, activation(inner), 0), hidden)
    return add(x, mul(out, gate))
