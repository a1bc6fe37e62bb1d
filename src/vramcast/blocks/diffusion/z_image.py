"""ZImageTransformer2DModel: Z-Image.

[zimage] huggingface/diffusers models/transformers/transformer_z_image.py
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    each,
    heads_of,
    linear,
    merged,
    norm,
    projections,
    rotated_complex,
    swiglu,
    vector,
)
from vramcast.domain.denoisers import ZImage
from vramcast.domain.model import Parameter
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_z_image.py"

PATCH = 2
CONDITION = 256
TIME_INNER = 1024


def _inner(spec: ZImage) -> int:
    return int(spec.dim / 3 * 8)


def parameters(spec: ZImage) -> Weights:
    """The weights."""
    dim = spec.dim
    yield from each(EMBEDDERS, linear("x_embedder", PATCH * PATCH * spec.in_channels, dim))
    yield from each(EMBEDDERS, (*linear("time.1", CONDITION, TIME_INNER), *linear("time.2", TIME_INNER, CONDITION)))
    yield from each(EMBEDDERS, (*norm("caption.norm", spec.cap_feat_dim), *linear("caption", spec.cap_feat_dim, dim)))
    yield from each(EMBEDDERS, (vector("x_pad_token", dim), vector("cap_pad_token", dim)))
    yield from each("noise_refiner", _layer_weights(spec, modulated=True), spec.n_refiner_layers)
    yield from each("context_refiner", _layer_weights(spec, modulated=False), spec.n_refiner_layers)
    yield from each("layers", _layer_weights(spec, modulated=True), spec.n_layers)
    out = linear("proj_out", dim, PATCH * PATCH * spec.in_channels)
    yield from each(OUTPUT, (*linear("norm_out", min(dim, CONDITION), dim), *out))


def _layer_weights(spec: ZImage, *, modulated: bool) -> tuple[Parameter, ...]:
    dim, inner = spec.dim, _inner(spec)
    parts: list[Parameter] = []
    for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
        parts += norm(name, dim)
    kv = dim // spec.n_heads * spec.n_kv_heads
    for name, width in (("q", dim), ("k", kv), ("v", kv), ("out", dim)):
        parts += linear(name, dim, width, bias=False)
    parts += [*norm("norm_q", dim // spec.n_heads), *norm("norm_k", dim // spec.n_heads)]
    parts += [*linear("w1", dim, inner, bias=False), *linear("w3", dim, inner, bias=False)]
    parts += linear("w2", inner, dim, bias=False)
    return (*parts, *linear("adaLN", min(dim, CONDITION), 4 * dim)) if modulated else tuple(parts)


def forward(tape: Tape, spec: ZImage, step: Step) -> Array:
    """One denoising step; the image's refiner runs on its tokens alone, the layers on both joined."""
    dim, size = spec.dim, step.itemsize
    tokens = (step.height // PATCH) * (step.width // PATCH)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.cap_feat_dim), size)
    image = tape.new("patches", (step.batch, tokens, dim), size)
    text = tape.linear(prompt, dim, "caption")
    rope = tape.new("rope", (step.batch, tokens + step.tokens, dim // spec.n_heads), FP32)

    def layer(x: Array) -> tuple[Array, ...]:
        return (_layer(tape, spec, x),)

    streams = [image]
    del image
    with tape.owned("denoiser.noise_refiner"):
        tape.repeat(spec.n_refiner_layers, layer, streams)
    refined = streams[0]
    streams[:] = [tape.cat((refined, text), 1, "hidden.joined")]
    with tape.owned("denoiser.layers"):
        tape.repeat(spec.n_layers, layer, streams)
    out = tape.multiply(tape.layer_norm(streams[0]), name="norm_out")
    del latent, rope, refined, text
    return tape.linear(out, PATCH * PATCH * spec.in_channels, "noise")


def _layer(tape: Tape, spec: ZImage, x: Array) -> Array:
    normed = tape.multiply(tape.rms_norm(x, "attention_norm1"), name="attention.input")
    part = _attention(tape, spec, normed)
    x = tape.add(x, tape.multiply(tape.rms_norm(part, "attention_norm2"), name="gated"), name="attended")
    part = swiglu(tape, tape.multiply(tape.rms_norm(x, "ffn_norm1"), name="ff.input"), _inner(spec))
    return tape.add(x, tape.multiply(tape.rms_norm(part, "ffn_norm2"), name="ff.gated"), name="hidden")


def _attention(tape: Tape, spec: ZImage, x: Array) -> Array:
    q, k, v = (heads_of(part, spec.n_heads) for part in projections(tape, x, spec.dim))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = rotated_complex(tape, q)
    k = rotated_complex(tape, k)
    y = merged(tape.attention(q))
    del k, v
    return tape.linear(y, spec.dim, "out")
