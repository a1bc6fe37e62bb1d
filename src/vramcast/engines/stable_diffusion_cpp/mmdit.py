"""Stable Diffusion 3 and 3.5 as a ggml graph.

[mmdit] leejet/stable-diffusion.cpp mmdit.hpp `MMDiT::forward` at 10c6501; flash attention is not used there.
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.denoisers import SD3
from vramcast.engines.ggml.ops import concat, cont, permute, reshape
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.stable_diffusion_cpp.attention import (
    attention,
    embedder,
    middle_rows,
    mlp,
    modulate,
    modulation,
    split_qkv,
)
from vramcast.engines.stable_diffusion_cpp.ops import (
    Kernel,
    add,
    conv_2d,
    layer_norm,
    leaf,
    linear,
    mul,
    padded,
    rms_norm,
    slice_view,
    timestep_embedding,
    weight,
)

STEP_FREQUENCIES = 256


class Joint(NamedTuple):
    """One block's parts."""

    heads: int
    qk_norm: bool
    last: bool  # the text stream ends here
    dual: bool  # a second attention over the image alone


def mmdit_graph(spec: SD3, *, width: int, height: int, tokens: int) -> Tensor:
    """The result of one denoising step; sizes of the latent, and text tokens."""
    hidden, patch = spec.hidden, spec.patch_size
    rows, columns = (height + 1) // patch, (width + 1) // patch
    latent, pooled = leaf(width, height, spec.in_channels, 1), leaf(spec.pooled_projection_dim, 1)
    x = add(_patches(latent, hidden, patch), _positions(spec, rows, columns))
    condition = embedder(timestep_embedding(leaf(1), STEP_FREQUENCIES), hidden)
    condition = add(condition, embedder(pooled, hidden))
    text: Tensor | None = linear(leaf(spec.joint_attention_dim, tokens, 1), hidden)
    for index in range(spec.num_layers):
        assert text is not None
        joint = Joint(
            heads=spec.num_attention_heads, qk_norm=spec.qk_norm is not None, last=index == spec.num_layers - 1,
            dual=index in spec.dual_attention_layers,
        )
        text, x = _block(text, x, condition, joint)
    shift, scale = modulation(condition, 2)
    x = linear(modulate(layer_norm(x, affine=False), shift, scale), patch * patch * spec.out_channels)
    return _pixels(x, spec, rows, columns)


def _patches(latent: Tensor, hidden: int, patch: int) -> Tensor:
    x = conv_2d(padded(latent), hidden, Kernel((patch, patch), (patch, patch), (0, 0)))
    x = reshape(x, x.ne[0] * x.ne[1], x.ne[2], x.ne[3])
    return cont(permute(x, 1, 0, 2, 3))


def _positions(spec: SD3, rows: int, columns: int) -> Tensor:
    """The middle of the table of positions, cut along one axis and then the other."""
    side, hidden = spec.pos_embed_max_size, spec.hidden
    table = reshape(weight(hidden, side * side), hidden, side, side)
    table = cont(permute(slice_view(table, hidden, side, rows), 0, 2, 1, 3))
    table = cont(permute(slice_view(table, hidden, rows, columns), 0, 2, 1, 3))
    return reshape(table, hidden, rows * columns)


def _pixels(x: Tensor, spec: SD3, rows: int, columns: int) -> Tensor:
    patch, channels = spec.patch_size, spec.out_channels
    x = cont(permute(reshape(x, channels, patch * patch, rows * columns), 2, 0, 1, 3))
    x = cont(permute(reshape(x, patch, patch, columns, rows * channels), 0, 2, 1, 3))
    return reshape(x, patch * columns, patch * rows, channels)


def _projections(x: Tensor, joint: Joint) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = split_qkv(linear(x, 3 * x.ne[0]))
    return _normed(q, joint), _normed(k, joint), v


def _normed(x: Tensor, joint: Joint) -> Tensor:
    width, length, batch = x.ne[:3]
    x = reshape(x, width // joint.heads, joint.heads, length, batch)
    if joint.qk_norm:
        x = rms_norm(x)
    return reshape(x, width, length, batch)


def _block(
    text: Tensor, x: Tensor, condition: Tensor, joint: Joint
) -> tuple[Tensor | None, Tensor]:
    of_text = modulation(condition, 2 if joint.last else 6)
    text_qkv = _projections(modulate(layer_norm(text, affine=False), *of_text[:2]), joint)
    of_image = modulation(condition, 9 if joint.dual else 6)
    normed = layer_norm(x, affine=False)
    image_qkv = _projections(modulate(normed, *of_image[:2]), joint)
    second = _projections(modulate(normed, *of_image[6:8]), joint) if joint.dual else None
    q, k, v = (concat(a, b, 1) for a, b in zip(text_qkv, image_qkv, strict=True))
    both = cont(permute(attention(q, k, v, joint.heads), 0, 2, 1, 3))
    text_part, image_part = middle_rows(both, text.ne[1]), middle_rows(both, x.ne[1])
    after = None if joint.last else _finish(text, [(text_part, of_text[2])], of_text)
    parts = [(image_part, of_image[2])]
    if second is not None:
        parts.append((attention(*second, joint.heads), of_image[8]))
    return after, _finish(x, parts, of_image)


def _finish(x: Tensor, parts: list[tuple[Tensor, Tensor]], vectors: list[Tensor]) -> Tensor:
    """Gated attention outputs are added, then the gated MLP."""
    projected = [(linear(part, x.ne[0]), gate) for part, gate in parts]
    for part, gate in projected:
        x = add(x, mul(part, _gate(gate)))
    out = mlp(modulate(layer_norm(x, affine=False), vectors[3], vectors[4]), 4 * x.ne[0])
    return add(x, mul(out, _gate(vectors[5])))


def _gate(vector: Tensor) -> Tensor:
    return reshape(vector, vector.ne[0], 1, vector.ne[1])
