"""AutoencoderKLWan and AutoencoderKLQwenImage: one latent frame after the other, with the last inputs kept.

[wanvae] huggingface/diffusers models/autoencoders/autoencoder_kl_wan.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.diffusion.autoencoder_kl import in_tiles
from vramcast.blocks.diffusion.common import Network, Weights, conv, each
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import AutoencoderKLWan
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32

KEPT_FRAMES: Final = 2

Cache = dict[str, Array]


def parameters(spec: AutoencoderKLWan) -> Weights:
    latent, widths = spec.z_dim, [spec.base_dim * mult for mult in spec.dim_mult]
    before = widths[0]
    yield from each("encoder", conv("conv_in", spec.in_channels, before, 3, 3, 3))
    for index, width in enumerate(widths):
        for _ in range(spec.num_res_blocks):
            yield from each("encoder", _residual(before, width))
            before = width
        if index != len(widths) - 1:
            yield from each("encoder", conv("downsample", width, width, 3, 3))
            if spec.temperal_downsample[index]:
                yield from each("encoder", conv("downsample.time", width, width, 3, 1, 1))
    yield from _middle("encoder", before)
    yield from each("encoder", (_gain("norm_out", before), *conv("conv_out", before, 2 * latent, 3, 3, 3)))
    yield from each("encoder", conv("quant_conv", 2 * latent, 2 * latent, 1, 1, 1))
    yield from each("decoder", conv("post_quant_conv", latent, latent, 1, 1, 1))
    base = spec.decoder_base_dim or spec.base_dim
    top = base * spec.dim_mult[-1]
    yield from each("decoder", conv("conv_in", latent, top, 3, 3, 3))
    yield from _middle("decoder", top)
    for before, width, factor in _up_blocks(spec):
        for index in range(spec.num_res_blocks + 1):
            yield from each("decoder", _residual(width if index else before, width))
        if factor:
            yield from each("decoder", conv("upsample", width, width // 2, 3, 3))
        if factor == "time":
            yield from each("decoder", conv("upsample.time", width, 2 * width, 3, 1, 1))
    yield from each("decoder", (_gain("norm_out", base), *conv("conv_out", base, spec.out_channels, 3, 3, 3)))


def _gain(path: str, width: int) -> Parameter:
    return Parameter(path=path, shape=(width,), kind="norm")


def _residual(before: int, width: int) -> tuple[Parameter, ...]:
    shortcut = conv("shortcut", before, width, 1, 1, 1) if before != width else ()
    return (
        _gain("norm1", before), *conv("conv1", before, width, 3, 3, 3), _gain("norm2", width),
        *conv("conv2", width, width, 3, 3, 3), *shortcut,
    )


def _middle(owner: str, width: int) -> Weights:
    attention = (
        _gain("attention.norm", width), *conv("attention.qkv", width, 3 * width, 1, 1),
        *conv("attention.out", width, width, 1, 1),
    )
    yield from each(owner, _residual(width, width), 2)
    yield from each(owner, attention)


def _up_blocks(spec: AutoencoderKLWan) -> Iterator[tuple[int, int, str]]:
    """Channels in and out, and whether a block makes "time" and space finer, "space" or "" neither."""
    base = spec.decoder_base_dim or spec.base_dim
    widths = [base * mult for mult in reversed(spec.dim_mult)]
    in_time = list(reversed(spec.temperal_downsample))
    before = widths[0]
    for index, width in enumerate(widths):
        last = index == len(widths) - 1
        yield before if not index else before // 2, width, "" if last else "time" if in_time[index] else "space"
        before = width


def forward(tape: Tape, spec: AutoencoderKLWan, latent: Array, *, tiling: bool = False) -> Array:
    """Frames of a video's latent (B, C, frames, height, width)."""
    return in_tiles(tape, latent, spec.scale, lambda tile: _frames(tape, spec, tile), tiling=tiling)


def _frames(tape: Tape, spec: AutoencoderKLWan, latent: Array) -> Array:
    """The frames decoded so far are joined with each new one."""
    z = tape.conv(latent, spec.z_dim, kernel=1, padding=0, name="post_quant_conv")
    cache: Cache = {}
    done: Array | None = None
    for index in range(latent.shape[2]):
        part = z.view(*z.shape[:2], 1, *z.shape[3:])
        pixels = _Decoder(tape, cache, first=index == 0).decode(spec, part)
        done = pixels if done is None else tape.cat((done, pixels), 2, "frames")
    assert done is not None
    return tape.add(done, name="clamped")


class _Decoder:
    """One latent frame through the decoder; each convolution's last inputs replace the former ones."""

    def __init__(self, tape: Tape, cache: Cache, *, first: bool) -> None:
        self.tape = tape
        self.cache = cache
        self.first = first

    def decode(self, spec: AutoencoderKLWan, z: Array) -> Array:
        """Pixels of the frame, four frames of them but for the first."""
        top = (spec.decoder_base_dim or spec.base_dim) * spec.dim_mult[-1]
        x = self.causal(z, top, "conv_in")
        x = self.residual(x, top, "mid.0")
        x = self.attention(x)
        x = self.residual(x, top, "mid.1")
        for level, (_, width, factor) in enumerate(_up_blocks(spec)):
            x = self.block(x, width, f"up.{level}", spec.num_res_blocks + 1, factor)
        x = self.norm(x)
        x = self.tape.activation(x)
        return self.causal(x, spec.out_channels, "conv_out")

    def norm(self, x: Array) -> Array:
        """The norm over channels in fp32, cast back, scaled, multiplied by the gain and shifted by nothing."""
        tape = self.tape
        wide = tape.cast(x, FP32, "norm.fp32")
        normalized = tape.cast(tape.like("norm.normalized", wide), x.width, "norm")
        del wide
        y = tape.multiply(normalized, name="norm.scaled")
        del normalized
        y = tape.multiply(y, name="norm.weighted")
        return tape.add(y, name="normed")

    def causal(self, x: Array, width: int, name: str, *, kernel: tuple[int, int, int] = (3, 3, 3)) -> Array:
        """A convolution over this frame and the kept ones."""
        tape = self.tape
        batch, channels, frames, rows, columns = x.shape
        kept = tape.new("convolution cache", (batch, channels, min(frames, KEPT_FRAMES), rows, columns), x.width)
        if frames < KEPT_FRAMES and name in self.cache:
            kept = tape.new("convolution cache", (batch, channels, KEPT_FRAMES, rows, columns), x.width)
        side = kernel[1] // 2
        if name in self.cache:
            x = tape.cat((self.cache[name], x), 2, "causal.input")
        missing = frames + KEPT_FRAMES - x.shape[2]
        if missing or side:
            x = tape.pad(x, (missing, 2 * side, 2 * side), "causal.padded")
        y = tape.conv(x, width, kernel=kernel, padding=0)
        self.cache[name] = kept
        return y

    def residual(self, x: Array, width: int, name: str) -> Array:
        """Two norms and convolutions; the shortcut runs first."""
        tape = self.tape
        rest = tape.conv(x, width, kernel=1, padding=0, name="shortcut") if x.shape[1] != width else x
        x = self.norm(x)
        x = tape.activation(x)
        x = self.causal(x, width, f"{name}.conv1")
        x = self.norm(x)
        x = tape.activation(x)
        x = self.causal(x, width, f"{name}.conv2")
        return tape.add(x, rest, name="hidden")

    def attention(self, x: Array) -> Array:
        """One head over the pixels of each frame."""
        tape = self.tape
        batch, channels, frames, height, width = x.shape
        y = self.norm(x.view(batch * frames, channels, height, width))
        qkv = tape.conv(y, 3 * channels, kernel=1, padding=0, name="attention.qkv")
        shape = (batch * frames, height * width, 1, channels)
        copies = [tape.new(f"attention.{name}", shape, x.width) for name in "qkv"]
        out = tape.attention(copies[0]).view(batch * frames, channels, height, width)
        del qkv
        out = tape.conv(out, channels, kernel=1, padding=0, name="attention.out")
        return tape.add(out.view(*x.shape), x, name="hidden")

    def block(self, x: Array, width: int, name: str, count: int, factor: str) -> Array:
        """The residual blocks of one level; it holds its input until it returns."""
        y = x
        for index in range(count):
            y = self.residual(y, width, f"{name}.{index}")
        return self.upsampled(y, f"{name}.time", in_time=factor == "time") if factor else y

    def upsampled(self, x: Array, name: str, *, in_time: bool) -> Array:
        """Twice the frames by a convolution (not for the first one), then twice the pixels with half the channels."""
        tape = self.tape
        batch, channels, frames, height, width = x.shape
        if in_time and not self.first:
            x = self.causal(x, 2 * channels, name, kernel=(3, 1, 1))
            frames *= 2
            x = tape.new("frames apart", (batch, channels, frames, height, width), x.width)
        x = tape.copy(x, "frames first").view(batch * frames, channels, height, width)
        wide = tape.cast(x, FP32, "upsample.fp32")
        del x
        larger = tape.upsample(wide, (2, 2), "upsample.fp32")
        del wide
        larger = tape.cast(larger, 2, "upsampled") if self.narrow(larger) else larger
        y = tape.conv(larger, channels // 2, name="upsampled.conv")
        return y.view(batch, channels // 2, frames, 2 * height, 2 * width)

    def narrow(self, x: Array) -> bool:
        """Whether the decoder runs in 16 bits."""
        return x.width == FP32 and any(kept.width != FP32 for kept in self.cache.values())


NETWORKS: Final = {
    "AutoencoderKLWan": Network("diffusers models/autoencoders/autoencoder_kl_wan.py", parameters, forward)
}
