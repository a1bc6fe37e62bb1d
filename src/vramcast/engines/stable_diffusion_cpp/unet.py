"""The UNet of Stable Diffusion 1, 2 and XL, its autoencoder's decoder and its text encoders as ggml graphs.

[unet] leejet/stable-diffusion.cpp unet.hpp `UnetModelBlock::forward`, common.hpp at 10c6501: one image, without
classifier-free batching (the negative prompt is a graph of its own).
[vae] leejet/stable-diffusion.cpp vae.hpp `Decoder::forward`, `AttnBlock` at 10c6501
[clip] leejet/stable-diffusion.cpp clip.hpp `CLIPTextModel::forward`; [t5] t5.hpp `T5Stack::forward`, both at 10c6501
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.model import MLP, Attention, Layer, Model
from vramcast.domain.pipeline import AutoencoderKL, UNet
from vramcast.engines.ggml.ops import Tensor, concat, cont, get_rows, like, mul_mat, permute, reshape
from vramcast.engines.stable_diffusion_cpp.ops import (
    POINT,
    Kernel,
    activation,
    add,
    attend,
    attention,
    conv_2d,
    embedder,
    group_norm,
    heads_first,
    in_place,
    layer_norm,
    leaf,
    linear,
    mul,
    rms_norm,
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


def vae_graph(spec: AutoencoderKL, *, width: int, height: int) -> Tensor:
    """The pixels of one latent."""
    x = leaf(width, height, spec.latent_channels, 1)
    if spec.use_post_quant_conv:
        x = conv_2d(x, spec.latent_channels, POINT)
    top = spec.block_out_channels[-1]
    x = _vae_residual(conv_2d(x, top), top)
    x = _vae_residual(_vae_attention(x), top)
    for index in reversed(range(len(spec.block_out_channels))):
        channels = spec.block_out_channels[index]
        for _ in range(spec.layers_per_block + 1):
            x = _vae_residual(x, channels)
        if index:
            x = conv_2d(upscale(x, 2), channels)
    return conv_2d(activation(group_norm(x)), spec.out_channels)


def _vae_residual(x: Tensor, channels: int) -> Tensor:
    y = conv_2d(activation(group_norm(x)), channels)
    y = conv_2d(activation(group_norm(y)), channels)
    return add(y, x if x.ne[2] == channels else conv_2d(x, channels, POINT))


def _vae_attention(x: Tensor) -> Tensor:
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


def text_graph(model: Model, *, tokens: int) -> Tensor:
    """Hidden states of one prompt."""
    layers = model.main.layers
    mixer = layers[0].mixer
    if isinstance(mixer, Attention) and mixer.position_bias == "relative":
        return _t5(model, layers, tokens)
    return _clip(model, layers, tokens)


def _embedded(model: Model, tokens: int) -> Tensor:
    return reshape(get_rows(weight(model.hidden, model.vocab), leaf(tokens, dtype="i32")), model.hidden, tokens)


def _clip(model: Model, layers: tuple[Layer, ...], tokens: int) -> Tensor:
    x = add(_embedded(model, tokens), weight(model.hidden, tokens))
    for layer in layers:
        x = add(x, _text_attention(layer_norm(x), layer, bias=True, causal=True))
        width = layer.channel.width if isinstance(layer.channel, MLP) else 0
        x = add(x, linear(activation(linear(layer_norm(x), width)), model.hidden))
    return layer_norm(x)


def _t5(model: Model, layers: tuple[Layer, ...], tokens: int) -> Tensor:
    mixer = layers[0].mixer
    heads = mixer.num_heads if isinstance(mixer, Attention) else 1
    buckets = leaf(tokens * tokens, dtype="i32")
    values = reshape(get_rows(weight(heads, 32), buckets), heads, tokens, tokens)
    positions = cont(permute(values, 2, 0, 1, 3))
    x = _embedded(model, tokens)
    for layer in layers:
        x = in_place("add", _text_attention(rms_norm(x), layer, bias=False, mask=positions), x)
        width = layer.channel.width if isinstance(layer.channel, MLP) else 0
        normed = rms_norm(x)
        gate = activation(linear(normed, width, bias=False))
        inner = in_place("mul", gate, linear(normed, width, bias=False))
        x = in_place("add", linear(inner, model.hidden, bias=False), x)
    return rms_norm(x)


def _text_attention(
    x: Tensor, layer: Layer, *, bias: bool, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    assert isinstance(layer.mixer, Attention)
    heads, hidden = layer.mixer.num_heads, x.ne[0]
    q, k, v = (linear(x, heads * layer.mixer.head_dim, bias=bias) for _ in range(3))
    if mask is not None:
        k = in_place("scale", k)
    width, length, batch = v.ne[:3]
    apart = reshape(v, width // heads, heads, length, batch)
    y = attend(heads_first(q, heads), heads_first(k, heads), apart, heads, mask=mask, causal=causal)
    return linear(y, hidden, bias=bias)
