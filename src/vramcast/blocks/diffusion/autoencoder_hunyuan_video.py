"""AutoencoderKLHunyuanVideo: video in spans of frames, each span in tiles where tiling is on.

[hvvae] huggingface/diffusers models/autoencoders/autoencoder_kl_hunyuan_video.py
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import log2
from typing import Final

from vramcast.blocks.diffusion.autoencoder_kl import (
    decoder_weights,
    encoder_weights,
    in_tiles,
    middle_weights,
    residual_weights,
)
from vramcast.blocks.diffusion.common import Network, Weights, conv, each
from vramcast.domain.pipeline import AutoencoderKLHunyuanVideo
from vramcast.operators.eager import Array, Tape

TILE_FRAMES: Final = 16
STRIDE_FRAMES: Final = 12


def parameters(spec: AutoencoderKLHunyuanVideo) -> Weights:
    latent, residual = spec.latent_channels, partial(residual_weights, axes=3)
    yield from encoder_weights(spec, 3, residual, middle_weights(spec, "encoder", 3))
    yield from each("encoder", conv("quant_conv", 2 * latent, 2 * latent, 1, 1, 1))
    yield from each("decoder", conv("post_quant_conv", latent, latent, 1, 1, 1))
    levels = ((before, width, factor is not None) for before, width, factor in _up_blocks(spec))
    yield from decoder_weights(spec, 3, residual, middle_weights(spec, "decoder", 3), levels)


def _up_blocks(spec: AutoencoderKLHunyuanVideo) -> Iterator[tuple[int, int, tuple[int, int, int] | None]]:
    """Channels in and out, and by how much a block makes frames, rows and columns finer."""
    channels = spec.block_out_channels
    in_space, in_time = int(log2(spec.spatial_compression_ratio)), int(log2(spec.temporal_compression_ratio))
    before = channels[-1]
    for index, width in enumerate(reversed(channels)):
        space = 2 if index < in_space else 1
        time = 2 if len(channels) - 1 - in_time <= index < len(channels) - 1 else 1
        yield before, width, (time, space, space) if (time, space) != (1, 1) else None
        before = width


def forward(tape: Tape, spec: AutoencoderKLHunyuanVideo, latent: Array, *, tiling: bool = False) -> Array:
    """Frames of a video's latent (B, C, frames, height, width)."""
    ratio = spec.temporal_compression_ratio
    frames, stride = TILE_FRAMES // ratio, STRIDE_FRAMES // ratio
    if latent.shape[2] <= frames:
        return _span(tape, spec, latent, tiling=tiling)
    spans = []
    for start in range(0, latent.shape[2], stride):
        count = min(frames + 1, latent.shape[2] - start)
        part = latent.view(*latent.shape[:2], count, *latent.shape[3:])
        done = _span(tape, spec, part, tiling=tiling)
        spans.append(done)
    limit = [STRIDE_FRAMES + (index == 0) for index in range(len(spans))]
    cut = [
        done.view(*done.shape[:2], min(done.shape[2], most), *done.shape[3:])
        for done, most in zip(spans, limit, strict=True)
    ]
    return tape.cat(cut, 2, "frames")


def _span(tape: Tape, spec: AutoencoderKLHunyuanVideo, latent: Array, *, tiling: bool) -> Array:
    return in_tiles(tape, latent, spec.scale, lambda tile: _decode(tape, spec, tile), tiling=tiling)


def _decode(tape: Tape, spec: AutoencoderKLHunyuanVideo, latent: Array) -> Array:
    z = tape.conv(latent, spec.latent_channels, kernel=1, padding=0, name="post_quant_conv")
    x = _causal(tape, z, spec.block_out_channels[-1])
    x = _run_middle(tape, spec, x)
    for _, width, factor in _up_blocks(spec):
        x = _run_up(tape, spec, x, width, factor)
    x = tape.group_norm(x)
    x = tape.activation(x)
    return _causal(tape, x, spec.out_channels)


def _causal(tape: Tape, x: Array, width: int) -> Array:
    """Past frames and edges are repeated before the convolution."""
    padded = tape.pad(x, (2, 2, 2), "causal.input")
    return tape.conv(padded, width, padding=0)


def _run_residual(tape: Tape, x: Array, width: int) -> Array:
    y = tape.group_norm(x, "norm1")
    y = tape.activation(y)
    y = _causal(tape, y, width)
    y = tape.group_norm(y, "norm2")
    y = tape.activation(y)
    y = _causal(tape, y, width)
    rest = tape.conv(x, width, kernel=1, padding=0, name="shortcut") if x.shape[1] != width else x
    return tape.add(y, rest, name="hidden")


def _run_middle(tape: Tape, spec: AutoencoderKLHunyuanVideo, x: Array) -> Array:
    x = _run_residual(tape, x, x.shape[1])
    if spec.mid_block_add_attention:
        x = _run_attention(tape, x)
    return _run_residual(tape, x, x.shape[1])


def _run_attention(tape: Tape, x: Array) -> Array:
    """Attention over all positions of all frames, later frames masked: the mask is a whole matrix."""
    batch, channels, frames, height, width = x.shape
    tokens = frames * height * width
    mask = tape.new("attention mask", (batch, tokens, tokens), x.width)
    turned = tape.copy(x.view(batch, tokens, channels), "attention.norm")
    q, k, v = (tape.linear(turned, channels, f"attention.{name}") for name in "qkv")
    y = tape.attention(q.view(batch, tokens, 1, channels)).view(batch, tokens, channels)
    y = tape.linear(y, channels, "attention.out")
    del q, k, v, mask
    return tape.add(y.view(*x.shape), x, name="hidden")


def _run_up(
    tape: Tape, spec: AutoencoderKLHunyuanVideo, x: Array, width: int, factor: tuple[int, int, int] | None
) -> Array:
    y = x
    for _ in range(spec.layers_per_block + 1):
        y = _run_residual(tape, y, width)
    if factor is None:
        return y
    batch, channels, frames, height, columns = y.shape
    first = tape.new("upsampled", (batch, channels, 1, factor[1] * height, factor[2] * columns), y.width)
    if frames > 1:
        others = tape.new(
            "upsampled", (batch, channels, factor[0] * (frames - 1), factor[1] * height, factor[2] * columns), y.width
        )
        y = tape.cat((first, others), 2, "upsampled")
        return _held(tape, y, width, first, others)
    return _held(tape, first, width)


def _held(tape: Tape, y: Array, width: int, *_parts: Array) -> Array:
    """The parts of the larger frames are variables of the upsampler while it convolves their sum."""
    return _causal(tape, y, width)


NETWORKS: Final = {
    "AutoencoderKLHunyuanVideo": Network(
        "diffusers models/autoencoders/autoencoder_kl_hunyuan_video.py", parameters, forward
    )
}
