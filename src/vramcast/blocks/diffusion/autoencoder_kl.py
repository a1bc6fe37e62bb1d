"""AutoencoderKL: the autoencoder of images (Stable Diffusion, SD3, FLUX).

[kl] huggingface/diffusers models/autoencoders/autoencoder_kl.py `decode`, `tiled_decode`, vae.py `Decoder`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from vramcast.blocks.diffusion.common import Network, Weights, conv, each, norm, run_residual, square
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import AutoencoderKL, AutoencoderKLCogVideoX, AutoencoderKLHunyuanVideo
from vramcast.operators.eager import Array, Tape

TILE_OVERLAP: Final = 0.25

TILE_PIXELS: Final = 256
STRIDE_PIXELS: Final = 192
"""Of the tiles of videos [hvvae] [wanvae], from one to the next."""

BIASED_NORM: Final = partial(norm, bias=True)


def parameters(spec: AutoencoderKL) -> Weights:
    """Encoder and decoder: both are loaded, whichever is used."""
    latent = spec.latent_channels
    yield from encoder_weights(spec, 2, residual_weights, middle_weights(spec, "encoder"))
    yield from decoder_weights(
        spec, 2, residual_weights, middle_weights(spec, "decoder"),
        ((before, width, not last) for before, width, last in _up_blocks(spec)),
    )
    if spec.use_quant_conv:
        yield from each("encoder", conv("quant_conv", 2 * latent, 2 * latent, 1, 1))
    if spec.use_post_quant_conv:
        yield from each("decoder", conv("post_quant_conv", latent, latent, 1, 1))


def buffers(spec: AutoencoderKL) -> int:
    """Running means and variances of FLUX.2's norm of latents."""
    return 2 * spec.batch_norm


Pyramid = AutoencoderKL | AutoencoderKLCogVideoX | AutoencoderKLHunyuanVideo
Residual = Callable[[int, int], tuple[Parameter, ...]]
"""Weights of a residual block by its channels in and out."""


def encoder_weights(
    spec: Pyramid, axes: int, residual: Residual, middle: Weights, *, resampled: int | None = None
) -> Weights:
    """From pixels to latents.

    Args:
        axes: of the convolutions
        residual: blocks of every level
        middle: what is behind the coarsest level
        resampled: axes of the convolutions between levels, where they are others
    """
    before, kernel = spec.block_out_channels[0], (3,) * axes
    yield from each("encoder", conv("conv_in", spec.in_channels, before, *kernel))
    for index, width in enumerate(spec.block_out_channels):
        for _ in range(spec.layers_per_block):
            yield from each("encoder", residual(before, width))
            before = width
        if index != len(spec.block_out_channels) - 1:
            yield from each("encoder", conv("downsample", width, width, *(3,) * (resampled or axes)))
    yield from middle
    yield from each("encoder", norm("norm_out", before, bias=True))
    yield from each("encoder", conv("conv_out", before, 2 * spec.latent_channels, *kernel))


def decoder_weights(
    spec: Pyramid, axes: int, residual: Residual, middle: Weights, levels: Iterable[tuple[int, int, bool]], *,
    resampled: int | None = None, norm_out: Callable[[str, int], tuple[Parameter, ...]] = BIASED_NORM,
) -> Weights:
    """From latents to pixels; arguments as of `encoder_weights`.

    Args:
        levels: channels in and out, and whether a convolution makes them finer
        norm_out: the last norm's weights
    """
    kernel = (3,) * axes
    yield from each("decoder", conv("conv_in", spec.latent_channels, spec.block_out_channels[-1], *kernel))
    yield from middle
    for before, width, finer in levels:
        for index in range(spec.layers_per_block + 1):
            yield from each("decoder", residual(width if index else before, width))
        if finer:
            yield from each("decoder", conv("upsample", width, width, *(3,) * (resampled or axes)))
    first = spec.block_out_channels[0]
    yield from each("decoder", (*norm_out("norm_out", first), *conv("conv_out", first, spec.out_channels, *kernel)))


def _up_blocks(spec: AutoencoderKL) -> Iterator[tuple[int, int, bool]]:
    """Channels in and out, and whether it is the last, of the decoder's blocks."""
    channels = spec.block_out_channels
    before = channels[-1]
    for index in reversed(range(len(channels))):
        yield before, channels[index], index == 0
        before = channels[index]


def residual_weights(before: int, width: int, axes: int = 2) -> tuple[Parameter, ...]:
    """Two norms and convolutions over so many axes, and a shortcut where the channels change."""
    shortcut = conv("shortcut", before, width, *(1,) * axes) if before != width else ()
    return (
        *norm("norm1", before, bias=True), *conv("conv1", before, width, *(3,) * axes),
        *norm("norm2", width, bias=True), *conv("conv2", width, width, *(3,) * axes), *shortcut,
    )


def middle_weights(spec: AutoencoderKL | AutoencoderKLHunyuanVideo, owner: str, axes: int = 2) -> Weights:
    """Two residual blocks and attention of the widest channels."""
    width = spec.block_out_channels[-1]
    yield from each(owner, residual_weights(width, width, axes), 2)
    if spec.mid_block_add_attention:
        yield from each(owner, (*norm("attention.norm", width, bias=True), *square("attention.", width)))


def forward(tape: Tape, spec: AutoencoderKL, latent: Array, *, tiling: bool = False) -> Array:
    """Pixels of a batch of latents."""
    side = spec.sample_size // spec.scale
    if not tiling or max(latent.shape[-2:]) <= side:
        return _decode(tape, spec, latent)
    step = int(side * (1 - TILE_OVERLAP))
    limit = spec.sample_size - int(spec.sample_size * TILE_OVERLAP)
    return tiled(tape, latent, (side, side), (step, step), (limit, limit), lambda tile: _decode(tape, spec, tile))


def _decode(tape: Tape, spec: AutoencoderKL, latent: Array) -> Array:
    if spec.use_post_quant_conv:
        latent = tape.conv(latent, spec.latent_channels, kernel=1, padding=0, name="post_quant_conv")
    x = tape.conv(latent, spec.block_out_channels[-1], name="conv_in")
    x = run_residual(tape, x, x.shape[1])
    if spec.mid_block_add_attention:
        x = _run_attention(tape, x)
    x = run_residual(tape, x, x.shape[1])
    for _, width, last in _up_blocks(spec):
        for _ in range(spec.layers_per_block + 1):
            x = run_residual(tape, x, width)
        if not last:
            x = tape.upsample(x, (2, 2))
            x = tape.conv(x, width, name="upsampled.conv")
    x = tape.group_norm(x)
    x = tape.activation(x)
    return tape.conv(x, spec.out_channels, name="pixels")


def encode(tape: Tape, spec: AutoencoderKL, pixels: Array) -> Array:
    """Means and deviations of the latents of a batch of images [kl] `Encoder.forward`."""
    x = tape.conv(pixels, spec.block_out_channels[0], name="conv_in")
    last = len(spec.block_out_channels) - 1
    for index, width in enumerate(spec.block_out_channels):
        before = x  # the caller's variable holds what a level began with until it returns
        for _ in range(spec.layers_per_block):
            x = run_residual(tape, x, width)
        if index != last:
            x = tape.pad(x, (1, 1))
            x = tape.conv(x, width, stride=2, padding=0, name="downsampled")
        del before
    x = run_residual(tape, x, x.shape[1])
    if spec.mid_block_add_attention:
        x = _run_attention(tape, x)
    x = run_residual(tape, x, x.shape[1])
    x = tape.group_norm(x)
    x = tape.activation(x)
    x = tape.conv(x, 2 * spec.latent_channels, name="moments")
    return tape.conv(x, 2 * spec.latent_channels, kernel=1, padding=0) if spec.use_quant_conv else x


def _run_attention(tape: Tape, x: Array) -> Array:
    """One head over all latent pixels."""
    batch, channels, height, width = x.shape
    normed = tape.group_norm(x.view(batch, channels, height * width), "attention.norm")
    turned = normed.view(batch, height * width, channels)
    q, k, v = (tape.linear(turned, channels, f"attention.{name}") for name in "qkv")
    y = tape.attention(q.view(batch, height * width, 1, channels)).view(batch, height * width, channels)
    y = tape.linear(y, channels, "attention.out")
    del q, k, v
    total = tape.add(y.view(*x.shape), x)
    return tape.like("hidden", total)


def in_tiles(tape: Tape, latent: Array, scale: int, decode: Callable[[Array], Array], *, tiling: bool) -> Array:
    """A video's latent, whole or where that is asked for in square tiles."""
    side, stride = TILE_PIXELS // scale, STRIDE_PIXELS // scale
    if not tiling or max(latent.shape[-2:]) <= side:
        return decode(latent)
    return tiled(tape, latent, (side, side), (stride, stride), (STRIDE_PIXELS, STRIDE_PIXELS), decode)


def tiled(
    tape: Tape, latent: Array, size: Sequence[int], stride: Sequence[int], limits: Sequence[int],
    decode: Callable[[Array], Array],
) -> Array:
    """Tiles of (height, width), a stride apart, one after the other; their pixels wait to be cut to limits and joined.

    They are joined along rows and then along columns.
    """
    height, width = latent.shape[-2:]
    rows = []
    for top in range(0, height, stride[0]):
        row = []
        for left in range(0, width, stride[1]):
            tile = latent.view(*latent.shape[:-2], min(size[0], height - top), min(size[1], width - left))
            row.append(decode(tile))
        rows.append(row)
    return _joined(tape, rows, *limits)


def _joined(tape: Tape, rows: list[list[Array]], height: int, width: int) -> Array:
    joined = []
    for row in rows:
        parts = [
            tile.view(*tile.shape[:-2], min(height, tile.shape[-2]), min(width, tile.shape[-1])) for tile in row
        ]
        joined.append(tape.cat(parts, -1, "row of tiles"))
    return tape.cat(joined, -2, "pixels")


NETWORKS: Final = {
    "AutoencoderKL": Network(
        "diffusers models/autoencoders/autoencoder_kl.py, vae.py Decoder", parameters, forward, buffers
    )
}
