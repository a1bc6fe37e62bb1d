"""Transformers of one stream: PixArt-alpha and -Sigma, OmniGen, Z-Image.

[pixart] huggingface/diffusers models/transformers/pixart_transformer_2d.py, models/attention.py
`BasicTransformerBlock`
[omnigen] huggingface/diffusers models/transformers/transformer_omnigen.py
[zimage] huggingface/diffusers models/transformers/transformer_z_image.py
"""

from __future__ import annotations

from typing import Final

from vramcast.blocks.diffusion import common as nn
from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, Network, Step, Weights
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import OmniGen, PixArt, ZImage
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32

STEP_FREQUENCIES = 256
CONDITIONED_SAMPLE = 128
"""Samples of that size are conditioned on resolution and aspect ratio unless the config says otherwise."""


def pixart_parameters(spec: PixArt) -> Weights:
    hidden, patch = spec.hidden, spec.patch_size
    yield from nn.each(EMBEDDERS, nn.conv("pos_embed.proj", spec.in_channels, hidden, patch, patch))
    yield from nn.each(EMBEDDERS, nn.embedder("adaln_single.timestep", STEP_FREQUENCIES, hidden))
    conditions = spec.use_additional_conditions
    if spec.sample_size == CONDITIONED_SAMPLE if conditions is None else conditions:
        for name in ("resolution", "aspect_ratio"):
            yield from nn.each(EMBEDDERS, nn.embedder(f"adaln_single.{name}", STEP_FREQUENCIES, hidden // 3))
    yield from nn.each(EMBEDDERS, nn.linear("adaln_single", hidden, 6 * hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("caption", spec.caption_channels, hidden))
    parts = [Parameter(path="scale_shift_table", shape=(6, hidden), kind="scalar")]
    for prefix, source in (("attn1", hidden), ("attn2", spec.cross_attention_dim)):
        parts += nn.linear(f"{prefix}.q", hidden, hidden)
        parts += [*nn.linear(f"{prefix}.k", source, hidden), *nn.linear(f"{prefix}.v", source, hidden)]
        parts += nn.linear(f"{prefix}.out", hidden, hidden)
    yield from nn.each("blocks", (*parts, *nn.feed_forward_weights("", hidden, 4 * hidden)), spec.num_layers)
    out = nn.linear("proj_out", hidden, patch * patch * spec.out_channels)
    yield from nn.each(OUTPUT, (Parameter(path="scale_shift_table", shape=(2, hidden), kind="scalar"), *out))


def pixart_forward(tape: Tape, spec: PixArt, step: Step) -> Array:
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens = (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.caption_channels), size)
    image = tape.add(tape.new("patches", (step.batch, tokens, hidden), size), name="positions added")
    text = tape.linear(prompt, hidden, "caption")

    streams = [image]
    del image
    nn.layers(tape, "blocks", spec.num_layers, lambda image: (_block(tape, spec, image, text),), streams)
    out = nn.modulated(tape, streams[0], "norm_out")
    del latent
    return tape.linear(out, patch * patch * spec.out_channels, "noise")


def _block(tape: Tape, spec: PixArt, x: Array, text: Array) -> Array:
    part = _attention(tape, spec, nn.modulated(tape, x, "norm1"), None)
    part = nn.gated(tape, part, "gated")
    x = tape.add(part, x, name="attended")
    del part
    part = _attention(tape, spec, x, text)
    x = tape.add(part, x, name="cross attended")
    normed = nn.modulated(tape, x, "norm2")
    out = nn.gated(tape, nn.feed_forward(tape, normed, 4 * spec.hidden), "ff.gated")
    return tape.add(out, x, name="hidden")


def _attention(tape: Tape, spec: PixArt, x: Array, source: Array | None) -> Array:
    read = x if source is None else source
    q = nn.heads_of(tape.linear(x, spec.hidden, "q"), spec.num_attention_heads)
    k, v = (nn.heads_of(tape.linear(read, spec.hidden, name), spec.num_attention_heads) for name in "kv")
    y = tape.linear(nn.merged(tape.attention(q, k, v)), spec.hidden, "out")
    del q, k, v
    return tape.multiply(y, name="out.scaled")


def omnigen_parameters(spec: OmniGen) -> Weights:
    hidden, patch = spec.hidden, spec.patch_size
    for name in ("output", "input"):
        yield from nn.each(EMBEDDERS, nn.conv(f"{name}_image_proj", spec.in_channels, hidden, patch, patch))
    for name in ("time_token", "t_embedder"):
        yield from nn.each(EMBEDDERS, nn.embedder(name, spec.time_step_dim, hidden))
    table = Parameter(path="embed_tokens", shape=(spec.vocab_size, hidden), kind="embedding")
    yield from nn.each(EMBEDDERS, (table,))
    kv = hidden // spec.num_attention_heads * spec.num_key_value_heads
    layer = [*nn.norm("norm1", hidden), *nn.norm("norm2", hidden)]
    for name, width in (("q", hidden), ("k", kv), ("v", kv), ("out", hidden)):
        layer += nn.linear(name, hidden, width, bias=False)
    inner = spec.intermediate_size
    layer += [*nn.linear("gate_up", hidden, 2 * inner, bias=False), *nn.linear("down", inner, hidden, bias=False)]
    yield from nn.each("layers", layer, spec.num_layers)
    yield from nn.each(OUTPUT, (*nn.norm("norm", hidden), *nn.linear("norm_out", hidden, 2 * hidden)))
    yield from nn.each(OUTPUT, nn.linear("proj_out", hidden, patch * patch * spec.in_channels))


def omnigen_forward(tape: Tape, spec: OmniGen, step: Step) -> Array:
    """One denoising step over text, reference images (counted among the text tokens) and the noisy image."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    image_tokens = (step.height // patch) * (step.width // patch)
    length = step.tokens + 1 + image_tokens
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    given = tape.new("attention mask", (step.batch, length, length), size)
    mask = tape.multiply(given, name="attention mask")
    head = hidden // spec.num_attention_heads
    rope = [tape.new(f"rope.{name}", (step.batch, length, head), FP32) for name in ("cos", "sin")]
    x = tape.new("hidden", (step.batch, length, hidden), size)

    streams = [x]
    del x
    nn.layers(tape, "layers", spec.num_layers, lambda x: (_layer(tape, spec, x),), streams)
    x = tape.rms_norm(streams[0])
    out = tape.add(nn.gated(tape, tape.layer_norm(x.view(step.batch, image_tokens, hidden))))
    del latent, given, mask, rope
    return tape.linear(out, patch * patch * spec.in_channels, "noise")


def _layer(tape: Tape, spec: OmniGen, x: Array) -> Array:
    normed = tape.rms_norm(x, "norm1")
    x = tape.add(x, _omnigen_attention(tape, spec, normed), name="attended")
    normed = tape.rms_norm(x, "norm2")
    both = tape.linear(normed, 2 * spec.intermediate_size, "gate_up")
    up, gate = both.chunk(2)
    inner = tape.multiply(up, tape.activation(gate, "silu"), name="inner")
    out = tape.linear(inner, spec.hidden, "down")
    del both, up, gate
    return tape.add(x, out, name="hidden")


def _omnigen_attention(tape: Tape, spec: OmniGen, x: Array) -> Array:
    q, k, v = (nn.heads_of(part, spec.num_attention_heads) for part in nn.projections(tape, x, spec.hidden))
    q = nn.rotated(tape, q)
    k = nn.rotated(tape, k)
    y = nn.merged(tape.attention(q, k, v))
    del k, v
    return tape.linear(y, spec.hidden, "out")


PATCH = 2
CONDITION = 256
TIME_INNER = 1024


def _inner(spec: ZImage) -> int:
    return int(spec.dim / 3 * 8)


def z_image_parameters(spec: ZImage) -> Weights:
    dim = spec.dim
    yield from nn.each(EMBEDDERS, nn.linear("x_embedder", PATCH * PATCH * spec.in_channels, dim))
    yield from nn.each(EMBEDDERS, nn.linear("time.1", CONDITION, TIME_INNER))
    yield from nn.each(EMBEDDERS, nn.linear("time.2", TIME_INNER, CONDITION))
    yield from nn.each(EMBEDDERS, nn.norm("caption.norm", spec.cap_feat_dim))
    yield from nn.each(EMBEDDERS, nn.linear("caption", spec.cap_feat_dim, dim))
    yield from nn.each(EMBEDDERS, (nn.vector("x_pad_token", dim), nn.vector("cap_pad_token", dim)))
    yield from nn.each("noise_refiner", _layer_weights(spec, modulated=True), spec.n_refiner_layers)
    yield from nn.each("context_refiner", _layer_weights(spec, modulated=False), spec.n_refiner_layers)
    yield from nn.each("layers", _layer_weights(spec, modulated=True), spec.n_layers)
    out = nn.linear("proj_out", dim, PATCH * PATCH * spec.in_channels)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", min(dim, CONDITION), dim), *out))


def _layer_weights(spec: ZImage, *, modulated: bool) -> tuple[Parameter, ...]:
    dim, inner = spec.dim, _inner(spec)
    parts: list[Parameter] = []
    for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
        parts += nn.norm(name, dim)
    kv = dim // spec.n_heads * spec.n_kv_heads
    for name, width in (("q", dim), ("k", kv), ("v", kv), ("out", dim)):
        parts += nn.linear(name, dim, width, bias=False)
    parts += nn.query_key_norms("", dim // spec.n_heads)
    parts += [*nn.linear("w1", dim, inner, bias=False), *nn.linear("w3", dim, inner, bias=False)]
    parts += nn.linear("w2", inner, dim, bias=False)
    return (*parts, *nn.linear("adaLN", min(dim, CONDITION), 4 * dim)) if modulated else tuple(parts)


def z_image_forward(tape: Tape, spec: ZImage, step: Step) -> Array:
    """One denoising step; the image's refiner runs on its tokens alone, the layers on both joined."""
    dim, size = spec.dim, step.itemsize
    tokens = (step.height // PATCH) * (step.width // PATCH)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.cap_feat_dim), size)
    image = tape.new("patches", (step.batch, tokens, dim), size)
    text = tape.linear(prompt, dim, "caption")
    rope = tape.new("rope", (step.batch, tokens + step.tokens, dim // spec.n_heads), FP32)

    def layer(x: Array) -> tuple[Array, ...]:
        return (_z_image_layer(tape, spec, x),)

    streams = [image]
    del image
    nn.layers(tape, "noise_refiner", spec.n_refiner_layers, layer, streams)
    refined = streams[0]
    streams[:] = [tape.cat((refined, text), 1, "hidden.joined")]
    nn.layers(tape, "layers", spec.n_layers, layer, streams)
    out = nn.gated(tape, tape.layer_norm(streams[0]), "norm_out")
    del latent, rope, refined, text
    return tape.linear(out, PATCH * PATCH * spec.in_channels, "noise")


def _z_image_layer(tape: Tape, spec: ZImage, x: Array) -> Array:
    normed = nn.gated(tape, tape.rms_norm(x, "attention_norm1"), "attention.input")
    part = _z_image_attention(tape, spec, normed)
    x = tape.add(x, nn.gated(tape, tape.rms_norm(part, "attention_norm2"), "gated"), name="attended")
    part = nn.swiglu(tape, nn.gated(tape, tape.rms_norm(x, "ffn_norm1"), "ff.input"), _inner(spec))
    return tape.add(x, nn.gated(tape, tape.rms_norm(part, "ffn_norm2"), "ff.gated"), name="hidden")


def _z_image_attention(tape: Tape, spec: ZImage, x: Array) -> Array:
    q, k, v = (nn.heads_of(part, spec.n_heads) for part in nn.projections(tape, x, spec.dim))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = nn.rotated_complex(tape, q)
    k = nn.rotated_complex(tape, k)
    y = nn.merged(tape.attention(q, k, v))
    del k, v
    return tape.linear(y, spec.dim, "out")


NETWORKS: Final = {
    "PixArtTransformer2DModel": Network(
        "diffusers models/transformers/pixart_transformer_2d.py, models/attention.py BasicTransformerBlock",
        pixart_parameters, pixart_forward,
    ),
    "OmniGenTransformer2DModel": Network(
        "diffusers models/transformers/transformer_omnigen.py", omnigen_parameters, omnigen_forward,
        nn.position_elements,
    ),
    "ZImageTransformer2DModel": Network(
        "diffusers models/transformers/transformer_z_image.py", z_image_parameters, z_image_forward
    ),
}
