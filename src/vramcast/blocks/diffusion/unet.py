"""UNet2DConditionModel: Stable Diffusion 1, 2, XL, Kolors.

[unet] huggingface/diffusers models/unets/unet_2d_condition.py `forward`, models/resnet.py `ResnetBlock2D`,
models/transformers/transformer_2d.py, models/attention.py `BasicTransformerBlock`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from vramcast.blocks.diffusion import common as nn
from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, Network, Step, Weights
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import UNet
from vramcast.operators.eager import Array, Tape


def parameters(spec: UNet) -> Weights:
    """The weights, level by level."""
    first, last = spec.block_out_channels[0], spec.block_out_channels[-1]
    yield from nn.each(EMBEDDERS, nn.embedder("time_embedding", first, 4 * first))
    if spec.projection_class_embeddings_input_dim:
        width = spec.projection_class_embeddings_input_dim
        yield from nn.each(EMBEDDERS, nn.embedder("add_embedding", width, 4 * first))
    if spec.encoder_hid_dim:
        yield from nn.each(EMBEDDERS, nn.linear("encoder_hid_proj", spec.encoder_hid_dim, spec.cross_attention_dim))
    yield from nn.each("conv_in", nn.conv("conv_in", spec.in_channels, first, 3, 3))
    for owner, before, channels, index in _residual_blocks(spec):
        yield from nn.each(owner, _residual(before, channels, 4 * first))
        if index is not None:
            yield from _transformer(spec, owner, channels, spec.depths[index])
    for index, channels in enumerate(spec.block_out_channels[:-1]):
        yield from nn.each(f"down.{index}", nn.conv("downsample", channels, channels, 3, 3))
    for index, channels in enumerate(spec.block_out_channels[1:], start=1):
        yield from nn.each(f"up.{index}", nn.conv("upsample", channels, channels, 3, 3))
    yield from _transformer(spec, "mid", last, spec.depths[-1])
    yield from nn.each(OUTPUT, nn.norm("conv_norm_out", first, bias=True))
    yield from nn.each(OUTPUT, nn.conv("conv_out", first, spec.out_channels, 3, 3))


def _residual_blocks(spec: UNet) -> Iterator[tuple[str, int, int, int | None]]:
    """Owner, channels in and out of every residual block, and the level of the transformer behind it."""
    channels = spec.block_out_channels
    before, skips = channels[0], [channels[0]]
    for index, width in enumerate(channels):
        level = index if spec.attends[index] else None
        for _ in range(spec.layers_per_block):
            yield f"down.{index}", before, width, level
            before = width
            skips.append(width)
        if index != len(channels) - 1:
            skips.append(width)
    yield from (("mid", before, before, None),) * 2
    for index in reversed(range(len(channels))):
        level = index if spec.attends[index] else None
        for _ in range(spec.layers_per_block + 1):
            yield f"up.{index}", before + skips.pop(), channels[index], level
            before = channels[index]


def _residual(before: int, channels: int, steps: int) -> tuple[Parameter, ...]:
    shortcut = nn.conv("shortcut", before, channels, 1, 1) if before != channels else ()
    return (
        *nn.norm("norm1", before, bias=True), *nn.conv("conv1", before, channels, 3, 3),
        *nn.linear("time_emb_proj", steps, channels),
        *nn.norm("norm2", channels, bias=True), *nn.conv("conv2", channels, channels, 3, 3), *shortcut,
    )


def _transformer(spec: UNet, owner: str, channels: int, depth: int) -> Weights:
    ends = [
        nn.linear(name, channels, channels) if spec.use_linear_projection else nn.conv(name, channels, channels, 1, 1)
        for name in ("proj_in", "proj_out")
    ]
    yield from nn.each(owner, (*nn.norm("norm", channels, bias=True), *ends[0], *ends[1]))
    yield from nn.each(f"{owner}.transformer", _layer(channels, spec.cross_attention_dim), depth)


def _layer(channels: int, text: int) -> tuple[Parameter, ...]:
    parts: list[Parameter] = []
    for index, source in enumerate((channels, text), start=1):
        parts += nn.norm(f"norm{index}", channels, bias=True)
        parts += nn.linear(f"attn{index}.q", channels, channels, bias=False)
        parts += [*nn.linear(f"attn{index}.k", source, channels, bias=False)]
        parts += nn.linear(f"attn{index}.v", source, channels, bias=False)
        parts += nn.linear(f"attn{index}.out", channels, channels)
    parts += [*nn.norm("norm3", channels, bias=True), *nn.linear("ff.in", channels, 8 * channels)]
    return (*parts, *nn.linear("ff.out", 4 * channels, channels))


HINT_CHANNELS: Final = (16, 32, 96, 256)
"""Of the convolutions that bring an image to the size of a latent."""


def control_parameters(spec: UNet) -> Weights:
    """A ControlNet: a copy of the half that gets coarser, the image's convolutions, one of one pixel for each skip.

    Source: huggingface/diffusers models/controlnets/controlnet.py `ControlNetModel`
    """
    for owner, parameter, count in parameters(spec):
        if owner in (EMBEDDERS, "conv_in") or owner.startswith(("down.", "mid")):
            yield f"control.{owner}", parameter, count
    before = HINT_CHANNELS[0]
    yield from nn.each("control.hint", nn.conv("conv_in", 3, before, 3, 3))
    for width in HINT_CHANNELS[1:]:
        yield from nn.each("control.hint", nn.conv("same", before, before, 3, 3))
        yield from nn.each("control.hint", nn.conv("finer", before, width, 3, 3))
        before = width
    yield from nn.each("control.hint", nn.conv("conv_out", before, spec.block_out_channels[0], 3, 3))
    for width in (*_skip_widths(spec), spec.block_out_channels[-1]):
        yield from nn.each("control.out", nn.conv("zero", width, width, 1, 1))


def _skip_widths(spec: UNet) -> list[int]:
    found = [spec.block_out_channels[0]]
    for index, width in enumerate(spec.block_out_channels):
        found += [width] * (spec.layers_per_block + (index != len(spec.block_out_channels) - 1))
    return found


def control(tape: Tape, spec: UNet, step: Step, pixels: Array) -> list[Array]:
    """What a ControlNet adds to each skip, and to the coarsest level last."""
    x = tape.activation(tape.conv(pixels, HINT_CHANNELS[0], name="hint"), "hint.activated")
    for width in HINT_CHANNELS[1:]:
        x = tape.activation(tape.conv(x, x.shape[1], name="hint"), "hint.activated")
        x = tape.activation(tape.conv(x, width, stride=2, name="hint"), "hint.activated")
    hint = tape.conv(x, spec.block_out_channels[0], name="hint.out")
    del x
    text, steps = _conditions(tape, spec, step)
    x, skips = _encoded(tape, spec, step, text, steps, hint)
    added = [tape.conv(part, part.shape[1], kernel=1, padding=0, name="zero") for part in (*skips, x)]
    return [tape.multiply(part, name="control scaled") for part in added]


def _conditions(tape: Tape, spec: UNet, step: Step) -> tuple[Array, Array]:
    text = tape.prompt("text states", (step.batch, step.tokens, spec.cross_attention_dim), step.itemsize)
    return text, tape.new("time embedding", (step.batch, 4 * spec.block_out_channels[0]), step.itemsize)


def forward(tape: Tape, spec: UNet, step: Step, controls: Sequence[Array] = ()) -> Array:
    text, steps = _conditions(tape, spec, step)
    x, skips = _encoded(tape, spec, step, text, steps)
    if controls:
        skips = [tape.add(skip, part, "controlled") for skip, part in zip(skips, controls, strict=False)]
        x = tape.add(x, controls[-1], "controlled")
    for index in reversed(range(len(spec.block_out_channels))):
        with tape.owned(f"denoiser.up.{index}"):
            x = _run_up(tape, spec, x, skips, steps, text, index)
    x = tape.group_norm(x)
    x = tape.activation(x)
    return tape.conv(x, spec.out_channels, name="noise")


def _encoded(
    tape: Tape, spec: UNet, step: Step, text: Array, steps: Array, hint: Array | None = None
) -> tuple[Array, list[Array]]:
    """The levels from fine to coarse, and what each passes to its counterpart."""
    first = spec.block_out_channels[0]
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), step.itemsize)
    x = tape.conv(latent, first, name="conv_in")
    if hint is not None:
        x = tape.add(x, hint, "hinted")
    skips = [x]
    for index, channels in enumerate(spec.block_out_channels):
        with tape.owned(f"denoiser.down.{index}"):
            for _ in range(spec.layers_per_block):
                x = nn.run_residual(tape, x, channels, steps)
                if spec.attends[index]:
                    x = _run_transformer(tape, spec, x, text, index)
                skips.append(x)
            if index != len(spec.block_out_channels) - 1:
                x = tape.conv(x, channels, stride=2, name="downsampled")
                skips.append(x)
    with tape.owned("denoiser.mid"):
        x = nn.run_residual(tape, x, x.shape[1], steps)
        x = _run_transformer(tape, spec, x, text, len(spec.depths) - 1)
        x = nn.run_residual(tape, x, x.shape[1], steps)
    return x, skips


def _run_up(
    tape: Tape, spec: UNet, x: Array, skips: list[Array], steps: Array, text: Array, index: int
) -> Array:
    channels = spec.block_out_channels[index]
    # the block's arguments hold the skips of the level, and the first of them x, until it returns
    count = spec.layers_per_block + 1
    held, before = skips[-count:], x
    del skips[-count:]
    for skip in reversed(held):
        x = tape.cat((x, skip), 1)
        x = nn.run_residual(tape, x, channels, steps)
        if spec.attends[index]:
            x = _run_transformer(tape, spec, x, text, index)
    del held, before
    if index:
        larger = tape.upsample(x, (2, 2))
        x = tape.conv(larger, channels, name="upsampled.conv")
    return x


def _run_transformer(tape: Tape, spec: UNet, x: Array, text: Array, index: int) -> Array:
    batch, channels, height, width = x.shape
    heads = spec.heads[index]
    y = tape.group_norm(x)
    if not spec.use_linear_projection:
        y = tape.conv(y, channels, kernel=1, padding=0, name="proj_in")
    tokens = tape.copy(y, "tokens").view(batch, height * width, channels)
    if spec.use_linear_projection:
        tokens = tape.linear(tokens, channels, "proj_in")

    def layer(tokens: Array) -> tuple[Array, ...]:
        return (_run_layer(tape, tokens, text, heads),)

    state = [tokens]
    del tokens
    tape.repeat(spec.depths[index], layer, state)
    (tokens,) = state
    del state
    if spec.use_linear_projection:
        tokens = tape.linear(tokens, channels, "proj_out")
    pixels = tape.copy(tokens, "pixels").view(*x.shape)
    if not spec.use_linear_projection:
        pixels = tape.conv(pixels, channels, kernel=1, padding=0, name="proj_out")
    return tape.add(pixels, x, name="hidden")


def _run_layer(tape: Tape, x: Array, text: Array, heads: int) -> Array:
    for source in (None, text):
        normed = tape.layer_norm(x)
        x = tape.add(_run_attention(tape, normed, source, heads), x, name="tokens")
    normed = tape.layer_norm(x)
    return tape.add(nn.geglu(tape, normed, 4 * x.shape[-1]), x, name="tokens")


def _run_attention(tape: Tape, x: Array, source: Array | None, heads: int) -> Array:
    channels = x.shape[-1]
    read = x if source is None else source
    q = nn.heads_of(tape.linear(x, channels, "q"), heads)
    of_text = source is not None
    k, v = (nn.heads_of(tape.linear(read, channels, name, of_text=of_text), heads) for name in "kv")
    y = nn.merged(tape.attention(q, k, v))
    y = tape.linear(y, channels, "out")
    del q, k, v
    return tape.multiply(y, name="out.scaled")


NETWORKS: Final = {
    "UNet2DConditionModel": Network(
        "diffusers models/unets/unet_2d_condition.py, models/resnet.py, models/attention.py", parameters, forward
    )
}
