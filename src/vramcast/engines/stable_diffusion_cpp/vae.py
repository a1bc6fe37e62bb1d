"""The autoencoder's decoder as a ggml graph.

[vae] leejet/stable-diffusion.cpp vae.hpp `Decoder::forward`, `AttnBlock` at 10c6501
"""

from __future__ import annotations

from vramcast.domain.autoencoders import AutoencoderKL
from vramcast.engines.ggml.ops import cont, mul_mat, permute, reshape
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.stable_diffusion_cpp.ops import (
    POINT,
    activation,
    add,
    conv_2d,
    group_norm,
    in_place,
    leaf,
    upscale,
)


def vae_graph(spec: AutoencoderKL, *, width: int, height: int) -> Tensor:
    """The pixels of one latent."""
    x = leaf(width, height, spec.latent_channels, 1)
    if spec.use_post_quant_conv:
        x = conv_2d(x, spec.latent_channels, POINT)
    top = spec.block_out_channels[-1]
    x = _residual(conv_2d(x, top), top)
    x = _residual(_attention(x), top)
    for index in reversed(range(len(spec.block_out_channels))):
        channels = spec.block_out_channels[index]
        for _ in range(spec.layers_per_block + 1):
            x = _residual(x, channels)
        if index:
            x = conv_2d(upscale(x, 2), channels)
    return conv_2d(activation(group_norm(x)), spec.out_channels)


def _residual(x: Tensor, channels: int) -> Tensor:
    y = conv_2d(activation(group_norm(x)), channels)
    y = conv_2d(activation(group_norm(y)), channels)
    return add(y, x if x.ne[2] == channels else conv_2d(x, channels, POINT))


def _attention(x: Tensor) -> Tensor:
    """One head over all pixels."""
    width, height, channels, batch = x.ne
    normed = group_norm(x)
    q, k = (
        reshape(cont(permute(conv_2d(normed, channels, POINT), 1, 2, 0, 3)), channels, width * height, batch)
        for _ in range(2)
    )
    v = reshape(conv_2d(normed, channels, POINT), width * height, channels, batch)
    scores = in_place("soft_max", in_place("scale", mul_mat(k, q)))
    y = cont(permute(mul_mat(v, scores), 1, 0, 2, 3))
    return add(conv_2d(reshape(y, width, height, channels, batch), channels, POINT), x)
