"""The UNet of Stable Diffusion 1, 2 and XL as a ggml graph.

[unet] leejet/stable-diffusion.cpp unet.hpp `UnetModelBlock::forward`, common.hpp at 10c6501: one image, without
classifier-free batching (the negative prompt is a graph of its own).
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.denoisers import UNet
from vramcast.engines.ggml.ops import concat, cont, like, mul_mat, permute, reshape
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.stable_diffusion_cpp.attention import attention, embedder
from vramcast.engines.stable_diffusion_cpp.ops import (
    POINT,
    Kernel,
    activation,
    add,
    conv_2d,
    group_norm,
    layer_norm,
    leaf,
    linear,
    mul,
    slice_view,
    timestep_embedding,
    upscale,
    weight,
)

HALVING = Kernel(stride=(2, 2))


class Level(NamedTuple):
    """Transformers of one resolution."""

    heads: int
    depth: int
    flash: bool


def unet_graph(spec: UNet, *, width: int, height: int, tokens: int, flash: bool) -> Tensor:
    """The result of one denoising step.

    Args:
        spec: the network
        width: of the latent
        height: of the latent
        tokens: text tokens
        flash: attention in ggml's fused operator where its sizes allow it
    """
    first = spec.block_out_channels[0]
    latent = leaf(width, height, spec.in_channels, 1)
    text = leaf(spec.cross_attention_dim, tokens, 1)
    steps = embedder(timestep_embedding(leaf(1), first), 4 * first)
    if spec.projection_class_embeddings_input_dim:
        label = leaf(spec.projection_class_embeddings_input_dim, 1)
        steps = add(steps, embedder(label, 4 * first))
    levels = [Level(heads, depth, flash) for heads, depth in zip(spec.heads, spec.depths, strict=True)]
    x = conv_2d(latent, first)
    x, skips = _down(spec, x, steps, text, levels)
    x = _residual(x, steps, x.ne[2])
    x = _transformer(x, text, levels[-1])
    x = _residual(x, steps, x.ne[2])
    x = _up(spec, x, skips, steps, text, levels)
    return conv_2d(activation(group_norm(x)), spec.out_channels)


def _down(
    spec: UNet, x: Tensor, steps: Tensor, text: Tensor, levels: list[Level]
) -> tuple[Tensor, list[Tensor]]:
    skips = [x]
    last = len(levels) - 1
    for index, channels in enumerate(spec.block_out_channels):
        for _ in range(spec.layers_per_block):
            x = _residual(x, steps, channels)
            if spec.attends[index]:
                x = _transformer(x, text, levels[index])
            skips.append(x)
        if index != last:
            x = conv_2d(x, channels, HALVING)
            skips.append(x)
    return x, skips


def _up(
    spec: UNet, x: Tensor, skips: list[Tensor], steps: Tensor, text: Tensor, levels: list[Level]
) -> Tensor:
    for index in reversed(range(len(levels))):
        channels = spec.block_out_channels[index]
        for _ in range(spec.layers_per_block + 1):
            x = _residual(concat(x, skips.pop(), 2), steps, channels)
            if spec.attends[index]:
                x = _transformer(x, text, levels[index])
        if index:
            x = conv_2d(upscale(x, 2), channels)
    return x


def _residual(x: Tensor, steps: Tensor, channels: int) -> Tensor:
    y = conv_2d(activation(group_norm(x)), channels)
    shift = linear(like("unary", steps), channels)
    y = add(y, reshape(shift, 1, 1, shift.ne[0], shift.ne[1]))
    y = conv_2d(activation(group_norm(y)), channels)
    return add(y, x if x.ne[2] == channels else conv_2d(x, channels, POINT))


def _transformer(x: Tensor, text: Tensor, level: Level) -> Tensor:
    width, height, channels, batch = x.ne
    tokens = conv_2d(group_norm(x), channels, POINT)
    tokens = reshape(cont(permute(tokens, 1, 2, 0, 3)), channels, width * height, batch)
    for _ in range(level.depth):
        tokens = _layer(tokens, text, level)
    pixels = reshape(cont(permute(tokens, 1, 0, 2, 3)), width, height, channels, batch)
    return add(conv_2d(pixels, channels, POINT), x)


def _layer(x: Tensor, text: Tensor, level: Level) -> Tensor:
    normed = layer_norm(x)
    x = add(_attention(normed, normed, level), x)
    x = add(_attention(layer_norm(x), text, level), x)
    return add(_geglu(layer_norm(x)), x)


def _attention(x: Tensor, source: Tensor, level: Level) -> Tensor:
    channels = x.ne[0]
    q, k, v = (linear(operand, channels, bias=False) for operand in (x, source, source))
    return linear(attention(q, k, v, level.heads, flash=level.flash), channels)


def _geglu(x: Tensor) -> Tensor:
    """Value and gate are products with the halves of one weight."""
    channels = x.ne[0]
    inner = 4 * channels
    both, bias = weight(channels, 2 * inner), weight(2 * inner)
    value, gate = (add(mul_mat(slice_view(both, channels, inner), x), slice_view(bias, inner)) for _ in range(2))
    return linear(mul(value, activation(gate)), channels)
