"""FLUX.1 as a ggml graph.

Stable Diffusion 3 and 3.5 as a ggml graph.

[flux] leejet/stable-diffusion.cpp flux.hpp `Flux::forward` at 10c6501
[mmdit] leejet/stable-diffusion.cpp mmdit.hpp `MMDiT::forward` at 10c6501; flash attention is not used there.

The UNet of Stable Diffusion 1, 2 and XL, its autoencoder's decoder and its text encoders as ggml graphs.

[unet] leejet/stable-diffusion.cpp unet.hpp `UnetModelBlock::forward`, common.hpp at 10c6501: one image, without
classifier-free batching (the negative prompt is a graph of its own).
[vae] leejet/stable-diffusion.cpp vae.hpp `Decoder::forward`, `AttnBlock` at 10c6501
[clip] leejet/stable-diffusion.cpp clip.hpp `CLIPTextModel::forward`; [t5] t5.hpp `T5Stack::forward`, both at 10c6501
"""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.model import MLP, Attention, Layer, Model
from vramcast.domain.pipeline import SD3, AutoencoderKL, Flux, UNet
from vramcast.engines.ggml.ops import Tensor, concat, cont, get_rows, like, mul_mat, permute, repeat, reshape
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
    middle_rows,
    mlp,
    modulate,
    modulation,
    mul,
    padded,
    rms_norm,
    slice_view,
    split_qkv,
    timestep_embedding,
    upscale,
    weight,
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
    x = add(_mmdit_patches(latent, hidden, patch), _positions(spec, rows, columns))
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


def _mmdit_patches(latent: Tensor, hidden: int, patch: int) -> Tensor:
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


def _mmdit_projections(x: Tensor, joint: Joint) -> tuple[Tensor, Tensor, Tensor]:
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
    text_qkv = _mmdit_projections(modulate(layer_norm(text, affine=False), *of_text[:2]), joint)
    of_image = modulation(condition, 9 if joint.dual else 6)
    normed = layer_norm(x, affine=False)
    image_qkv = _mmdit_projections(modulate(normed, *of_image[:2]), joint)
    second = _mmdit_projections(modulate(normed, *of_image[6:8]), joint) if joint.dual else None
    q, k, v = (concat(a, b, 1) for a, b in zip(text_qkv, image_qkv, strict=True))
    both = cont(permute(attention(q, k, v, joint.heads), 0, 2, 1, 3))
    text_part, image_part = middle_rows(both, text.ne[1]), middle_rows(both, x.ne[1])
    after = None if joint.last else _mmdit_finish(text, [(text_part, of_text[2])], of_text)
    parts = [(image_part, of_image[2])]
    if second is not None:
        parts.append((attention(*second, joint.heads), of_image[8]))
    return after, _mmdit_finish(x, parts, of_image)


def _mmdit_finish(x: Tensor, parts: list[tuple[Tensor, Tensor]], vectors: list[Tensor]) -> Tensor:
    """Gated attention outputs are added, then the gated MLP."""
    projected = [(linear(part, x.ne[0]), gate) for part, gate in parts]
    for part, gate in projected:
        x = add(x, mul(part, _gate(gate)))
    out = mlp(modulate(layer_norm(x, affine=False), vectors[3], vectors[4]), 4 * x.ne[0])
    return add(x, mul(out, _gate(vectors[5])))


def _gate(vector: Tensor) -> Tensor:
    return reshape(vector, vector.ne[0], 1, vector.ne[1])


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
    x = add(_unet_attention(normed, normed, level), x)
    x = add(_unet_attention(layer_norm(x), text, level), x)
    return add(_geglu(layer_norm(x)), x)


def _unet_attention(x: Tensor, source: Tensor, level: Level) -> Tensor:
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
