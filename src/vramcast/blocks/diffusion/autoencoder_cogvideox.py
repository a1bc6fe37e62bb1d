"""AutoencoderKLCogVideoX: video in batches of two latent frames, with the last inputs of every convolution kept.

[cogvae] huggingface/diffusers models/autoencoders/autoencoder_kl_cogvideox.py; upsampling.py `CogVideoXUpsample3D`
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import log2
from typing import Final

from vramcast.blocks.diffusion.autoencoder_kl import decoder_weights, encoder_weights, tiled
from vramcast.blocks.diffusion.common import Network, Weights, conv, each, norm
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import AutoencoderKLCogVideoX
from vramcast.operators.eager import Array, Tape
from vramcast.units import GIB, ceil_div

FRAMES_AT_ONCE: Final = 2
"""Latent frames of one batch."""

TILE_OVERLAP: Final = (1 / 6, 1 / 5)

SPLIT_BYTES: Final = 2 * GIB
"""A convolution with a larger 16-bit input is split along time."""

Cache = dict[str, Array]


def parameters(spec: AutoencoderKLCogVideoX) -> Weights:
    last, latent = spec.block_out_channels[-1], spec.latent_channels
    plain, spatial = (partial(_residual, latent=channels) for channels in (None, latent))
    yield from encoder_weights(spec, 3, plain, each("encoder", plain(last, last), 2), resampled=2)
    middle = (("decoder", parameter, 1) for _ in range(2) for parameter in spatial(last, last))
    levels = ((before, width, upsamples) for before, width, upsamples, _ in _up_blocks(spec))
    norm_out = partial(_spatial_norm, latent=latent)
    yield from decoder_weights(spec, 3, spatial, middle, levels, resampled=2, norm_out=norm_out)


def _residual(before: int, width: int, latent: int | None) -> tuple[Parameter, ...]:
    norms = [
        norm(name, size, bias=True) if latent is None else _spatial_norm(name, size, latent)
        for name, size in (("norm1", before), ("norm2", width))
    ]
    shortcut = conv("shortcut", before, width, 1, 1, 1) if before != width else ()
    return (
        *norms[0], *conv("conv1", before, width, 3, 3, 3), *norms[1], *conv("conv2", width, width, 3, 3, 3), *shortcut
    )


def _spatial_norm(name: str, width: int, latent: int) -> tuple[Parameter, ...]:
    scale, shift = (conv(f"{name}.{part}", latent, width, 1, 1, 1) for part in ("conv_y", "conv_b"))
    return (*norm(name, width, bias=True), *scale, *shift)


def _up_blocks(spec: AutoencoderKLCogVideoX) -> Iterator[tuple[int, int, bool, bool]]:
    """Channels in and out, whether a block makes pixels finer, and whether time too."""
    channels = spec.block_out_channels
    before, finer = channels[-1], int(log2(spec.temporal_compression_ratio))
    for index, width in enumerate(reversed(channels)):
        yield before, width, index != len(channels) - 1, index < finer
        before = width


def forward(
    tape: Tape, spec: AutoencoderKLCogVideoX, latent: Array, *, tiling: bool = False
) -> Array:
    """Frames of a video's latent (B, C, frames, height, width)."""
    tile_height, tile_width = spec.sample_height // 2 // spec.scale, spec.sample_width // 2 // spec.scale
    height, width = latent.shape[-2:]
    if not tiling or (width <= tile_width and height <= tile_height):
        return _frames(tape, spec, latent)
    steps = [int(tile * (1 - part)) for tile, part in zip((tile_height, tile_width), TILE_OVERLAP, strict=True)]
    limits = [
        pixels // 2 - int(pixels // 2 * part)
        for pixels, part in zip((spec.sample_height, spec.sample_width), TILE_OVERLAP, strict=True)
    ]
    return tiled(tape, latent, (tile_height, tile_width), steps, limits, lambda tile: _frames(tape, spec, tile))


def _frames(tape: Tape, spec: AutoencoderKLCogVideoX, latent: Array) -> Array:
    """Batches of frames, the odd ones with the first batch."""
    total = latent.shape[2]
    batches = max(total // FRAMES_AT_ONCE, 1)
    cache: Cache = {}
    done = []
    for index in range(batches):
        frames = min(total, FRAMES_AT_ONCE + (total % FRAMES_AT_ONCE if index == 0 else 0))
        part = latent.view(*latent.shape[:2], frames, *latent.shape[3:])
        pixels, cache = _decode(tape, spec, part, cache)
        done.append(pixels)
    return tape.cat(done, 2, "frames")


def _decode(tape: Tape, spec: AutoencoderKLCogVideoX, z: Array, cache: Cache) -> tuple[Array, Cache]:
    run = _Decoder(tape, z, cache)
    x = run.causal(z, spec.block_out_channels[-1], "conv_in")
    x = run.residuals(x, x.shape[1], "mid", 2)
    for level, (_, width, upsamples, in_time) in enumerate(_up_blocks(spec)):
        x = run.block(x, width, f"up.{level}", spec.layers_per_block + 1, finer=(upsamples, in_time))
    x = run.spatial_norm(x, "norm_out")
    x = tape.activation(x)
    return run.causal(x, spec.out_channels, "conv_out"), run.kept


class _Decoder:
    """One batch of frames through the decoder: reads the former batch's cache and fills its own."""

    def __init__(self, tape: Tape, z: Array, cache: Cache) -> None:
        self.tape = tape
        self.z = z
        self.cache = cache
        self.kept: Cache = {}

    def causal(self, x: Array, width: int, name: str, *, kernel: int = 3) -> Array:
        """A convolution over time that sees the past only; it keeps its last inputs (all of them with kernel 1)."""
        tape = self.tape
        if kernel > 1:
            before = kernel - 1
            x = tape.cat((x.view(*x.shape[:2], before, *x.shape[3:]), x), 2, "causal.input")
        frames = kernel - 1 or x.shape[2]
        self.kept[name] = tape.new("convolution cache", (*x.shape[:2], frames, *x.shape[3:]), x.width)
        side = 0 if kernel == 1 else 1
        return self._safe(x, width, kernel, (0, side, side))

    def _safe(self, x: Array, width: int, kernel: int, padding: tuple[int, int, int]) -> Array:
        tape = self.tape
        if x.num_bytes <= SPLIT_BYTES:
            return tape.conv(x, width, kernel=kernel, padding=padding)
        parts = int(x.num_bytes / GIB / 2) + 1
        step = ceil_div(x.shape[2], parts)
        chunks = []
        for start in range(0, x.shape[2], step):
            frames = min(step, x.shape[2] - start)
            chunk = x.view(*x.shape[:2], frames, *x.shape[3:])
            if kernel > 1 and start:
                chunk = tape.cat((chunk.view(*x.shape[:2], kernel - 1, *x.shape[3:]), chunk), 2, "chunk")
            chunks.append(chunk)
        done = [tape.conv(chunk, width, kernel=kernel, padding=padding) for chunk in chunks]
        return tape.cat(done, 2)

    def spatial_norm(self, x: Array, name: str) -> Array:
        """A norm scaled and shifted by the latent, spread over the frames."""
        tape = self.tape
        first, *rest = x.shape[2:]
        shape = (*self.z.shape[:2], first, *rest)
        if first > 1 and first % 2:
            parts = [tape.new("latent.spread", (*shape[:2], size, *rest), x.width) for size in (1, first - 1)]
            spread = tape.cat(parts, 2, "latent.spread")
        else:
            spread = tape.new("latent.spread", shape, x.width)
        held = parts if first > 1 and first % 2 else []
        scale = self.causal(spread, x.shape[1], f"{name}.conv_y", kernel=1)
        shift = self.causal(spread, x.shape[1], f"{name}.conv_b", kernel=1)
        normed = tape.group_norm(x)
        scaled = tape.multiply(normed, scale, name="spatial norm")
        total = tape.add(scaled, shift, name="spatial norm")
        del held
        return total

    def residual(self, x: Array, width: int, name: str) -> Array:
        """Two spatial norms and convolutions."""
        tape = self.tape
        y = self.spatial_norm(x, f"{name}.norm1")
        y = tape.activation(y)
        y = self.causal(y, width, f"{name}.conv1")
        y = self.spatial_norm(y, f"{name}.norm2")
        y = tape.activation(y)
        y = self.causal(y, width, f"{name}.conv2")
        if x.shape[1] != width:
            x = self._safe(x, width, 1, (0, 0, 0))
        return tape.add(y, x, name="hidden")

    def residuals(self, x: Array, width: int, name: str, count: int) -> Array:
        """So many in a row; the caller's variable holds the input of the first meanwhile."""
        for index in range(count):
            x = self.residual(x, width, f"{name}.{index}")
        return x

    def block(self, x: Array, width: int, name: str, count: int, *, finer: tuple[bool, bool]) -> Array:
        """The residual blocks of one level; it holds its input until it returns."""
        y = self.residuals(x, width, name, count)
        return self.upsampled(y, in_time=finer[1]) if finer[0] else y

    def upsampled(self, x: Array, *, in_time: bool) -> Array:
        """Twice as fine in space, and in time but for the first frame of the video."""
        tape = self.tape
        batch, channels, frames, height, width = x.shape
        finer = frames
        if in_time and frames > 1:
            odd = frames % 2
            finer = odd + 2 * (frames - odd)
            parts = [tape.new("upsampled", (batch, channels, finer - odd, 2 * height, 2 * width), x.width)]
            if odd:
                parts.insert(0, tape.new("upsampled", (batch, channels, 1, 2 * height, 2 * width), x.width))
                x = tape.cat(parts, 2, "upsampled")
            else:
                x = parts[0]
            del parts
        else:
            x = tape.new("upsampled", (batch, channels, finer, 2 * height, 2 * width), x.width)
        x = tape.copy(x, "frames first").view(batch * finer, channels, 2 * height, 2 * width)
        x = tape.conv(x, channels, name="upsampled.conv")
        return x.view(batch, channels, finer, 2 * height, 2 * width)


NETWORKS: Final = {
    "AutoencoderKLCogVideoX": Network("diffusers models/autoencoders/autoencoder_kl_cogvideox.py", parameters, forward)
}
