"""PixArtTransformer2DModel: PixArt-alpha and PixArt-Sigma.

[pixart] huggingface/diffusers models/transformers/pixart_transformer_2d.py, models/attention.py `BasicTransformerBlock`
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    conv,
    each,
    embedder,
    feed_forward,
    heads_of,
    linear,
    merged,
    modulated,
)
from vramcast.domain.denoisers import PixArt
from vramcast.domain.model import Parameter
from vramcast.operators.eager import Array, Tape

SOURCE = "diffusers models/transformers/pixart_transformer_2d.py, models/attention.py BasicTransformerBlock"

STEP_FREQUENCIES = 256
CONDITIONED_SAMPLE = 128
"""Samples of that size are conditioned on resolution and aspect ratio unless the config says otherwise."""


def parameters(spec: PixArt) -> Weights:
    """The weights."""
    hidden, patch = spec.hidden, spec.patch_size
    yield from each(EMBEDDERS, conv("pos_embed.proj", spec.in_channels, hidden, patch, patch))
    yield from each(EMBEDDERS, embedder("adaln_single.timestep", STEP_FREQUENCIES, hidden))
    conditions = spec.use_additional_conditions
    if spec.sample_size == CONDITIONED_SAMPLE if conditions is None else conditions:
        for name in ("resolution", "aspect_ratio"):
            yield from each(EMBEDDERS, embedder(f"adaln_single.{name}", STEP_FREQUENCIES, hidden // 3))
    yield from each(EMBEDDERS, linear("adaln_single", hidden, 6 * hidden))
    yield from each(EMBEDDERS, embedder("caption", spec.caption_channels, hidden))
    parts = [Parameter(path="scale_shift_table", shape=(6, hidden), kind="scalar")]
    for prefix, source in (("attn1", hidden), ("attn2", spec.cross_attention_dim)):
        parts += linear(f"{prefix}.q", hidden, hidden)
        parts += [*linear(f"{prefix}.k", source, hidden), *linear(f"{prefix}.v", source, hidden)]
        parts += linear(f"{prefix}.out", hidden, hidden)
    parts += [*linear("ff.up", hidden, 4 * hidden), *linear("ff.down", 4 * hidden, hidden)]
    yield from each("blocks", parts, spec.num_layers)
    out = linear("proj_out", hidden, patch * patch * spec.out_channels)
    yield from each(OUTPUT, (Parameter(path="scale_shift_table", shape=(2, hidden), kind="scalar"), *out))


def forward(tape: Tape, spec: PixArt, step: Step) -> Array:
    """One denoising step."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens = (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.caption_channels), size)
    image = tape.add(tape.new("patches", (step.batch, tokens, hidden), size), name="positions added")
    text = tape.linear(prompt, hidden, "caption")

    def block(image: Array) -> tuple[Array, ...]:
        return (_block(tape, spec, image, text),)

    streams = [image]
    del image
    with tape.owned("denoiser.blocks"):
        tape.repeat(spec.num_layers, block, streams)
    out = modulated(tape, streams[0], "norm_out")
    del latent
    return tape.linear(out, patch * patch * spec.out_channels, "noise")


def _block(tape: Tape, spec: PixArt, x: Array, text: Array) -> Array:
    part = _attention(tape, spec, modulated(tape, x, "norm1"), None)
    part = tape.multiply(part, name="gated")
    x = tape.add(part, x, name="attended")
    del part
    part = _attention(tape, spec, x, text)
    x = tape.add(part, x, name="cross attended")
    normed = modulated(tape, x, "norm2")
    out = tape.multiply(feed_forward(tape, normed, 4 * spec.hidden), name="ff.gated")
    return tape.add(out, x, name="hidden")


def _attention(tape: Tape, spec: PixArt, x: Array, source: Array | None) -> Array:
    read = x if source is None else source
    q = heads_of(tape.linear(x, spec.hidden, "q"), spec.num_attention_heads)
    k, v = (tape.linear(read, spec.hidden, name) for name in "kv")
    y = tape.linear(merged(tape.attention(q)), spec.hidden, "out")
    del q, k, v
    return tape.like("out.scaled", y)
