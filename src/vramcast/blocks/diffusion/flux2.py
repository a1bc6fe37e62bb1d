"""Flux2Transformer2DModel: FLUX.2.

[flux2] huggingface/diffusers models/transformers/transformer_flux2.py
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    each,
    gated_residual,
    heads_of,
    linear,
    merged,
    modulated,
    norm,
    projections,
    rotated,
)
from vramcast.domain.denoisers import Flux2
from vramcast.domain.model import Parameter
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_flux2.py"

PATCH = 2


def parameters(spec: Flux2) -> Weights:
    """The weights; nothing has a bias, and modulation belongs to no block."""
    hidden, inner = spec.hidden, int(spec.hidden * spec.mlp_ratio)
    yield from each(EMBEDDERS, linear("x_embedder", spec.in_channels, hidden, bias=False))
    yield from each(EMBEDDERS, linear("context_embedder", spec.joint_attention_dim, hidden, bias=False))
    for name in ("timestep", *(("guidance",) if spec.guidance_embeds else ())):
        first = linear(f"{name}.1", spec.timestep_guidance_channels, hidden, bias=False)
        yield from each(EMBEDDERS, (*first, *linear(f"{name}.2", hidden, hidden, bias=False)))
    for name, vectors in (("image", 6), ("text", 6), ("single", 3)):
        yield from each("modulation", linear(name, hidden, vectors * hidden, bias=False))
    streams = [*_stream("image", spec, inner), *_stream("text", spec, inner)]
    yield from each("double", streams, spec.num_layers)
    single = [*linear("qkv_mlp", hidden, 3 * hidden + 2 * inner, bias=False), *_norms("", spec.attention_head_dim)]
    single += linear("out", hidden + inner, hidden, bias=False)
    yield from each("single", single, spec.num_single_layers)
    out = linear("proj_out", hidden, spec.in_channels, bias=False)
    yield from each(OUTPUT, (*linear("norm_out", hidden, 2 * hidden, bias=False), *out))


def _norms(prefix: str, head_dim: int) -> tuple[Parameter, ...]:
    return (*norm(f"{prefix}norm_q", head_dim), *norm(f"{prefix}norm_k", head_dim))


def _stream(name: str, spec: Flux2, inner: int) -> list[Parameter]:
    hidden = spec.hidden
    parts: list[Parameter] = []
    for part in ("q", "k", "v", "out"):
        parts += linear(f"{name}.{part}", hidden, hidden, bias=False)
    parts += _norms(f"{name}.", spec.attention_head_dim)
    parts += linear(f"{name}.ff.in", hidden, 2 * inner, bias=False)
    return [*parts, *linear(f"{name}.ff.out", inner, hidden, bias=False)]


def forward(tape: Tape, spec: Flux2, step: Step) -> Array:
    """One denoising step."""
    hidden, size = spec.hidden, step.itemsize
    tokens = (step.height // PATCH) * (step.width // PATCH)
    latent = tape.new("latent", (step.batch, tokens, spec.in_channels), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.linear(latent, hidden, "x_embedder")
    text = tape.linear(prompt, hidden, "context_embedder")
    rope = [tape.new(f"rope.{name}", (tokens + step.tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]

    def two(image: Array, text: Array) -> tuple[Array, ...]:
        return _double(tape, spec, image, text)

    def one(x: Array) -> tuple[Array, ...]:
        return (_single(tape, spec, x),)

    streams = [image, text]
    del image, text
    with tape.owned("denoiser.double"):
        tape.repeat(spec.num_layers, two, streams)
    streams[:] = [tape.cat((streams[1], streams[0]), 1, "hidden.joined")]
    with tape.owned("denoiser.single"):
        tape.repeat(spec.num_single_layers, one, streams)
    out = modulated(tape, streams[0].view(step.batch, tokens, hidden), "norm_out")
    del rope
    return tape.linear(out, spec.in_channels, "noise")


def _double(tape: Tape, spec: Flux2, image: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = modulated(tape, image, "image.norm1"), modulated(tape, text, "text.norm1")
    part, text_part = _joint(tape, spec, normed, normed_text)
    part = tape.multiply(part, name="image.gated")
    image = tape.add(image, part, name="image.attended")
    normed = modulated(tape, image, "image.norm2")
    image = gated_residual(tape, image, _mlp(tape, spec, normed, "image.ff"), "image")
    text = gated_residual(tape, text, text_part, "text.attended")
    inner = _mlp(tape, spec, modulated(tape, text, "text.norm2"), "text.ff")
    return image, gated_residual(tape, text, inner, "text")


def _mlp(tape: Tape, spec: Flux2, x: Array, name: str) -> Array:
    inner = int(spec.hidden * spec.mlp_ratio)
    return tape.linear(_gated(tape, tape.linear(x, 2 * inner, f"{name}.in")), spec.hidden, f"{name}.out")


def _gated(tape: Tape, both: Array) -> Array:
    gate, value = both.chunk(2)
    return tape.multiply(tape.activation(gate, "silu"), value, name="gated")


def _joint(tape: Tape, spec: Flux2, image: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (heads_of(part, heads) for part in projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    q, k, text_q, text_k = (tape.rms_norm(part) for part in (q, k, text_q, text_k))
    q, k, v = tape.cat((text_q, q), 1), tape.cat((text_k, k), 1), tape.cat((text_v, v), 1)
    q = rotated(tape, q)
    k = rotated(tape, k)
    both = merged(tape.attention(q))
    part = tape.linear(both.view(*image.shape), hidden, "image.out")
    return part, tape.linear(both.view(*text.shape), hidden, "text.out")


def _single(tape: Tape, spec: Flux2, x: Array) -> Array:
    """One projection makes queries, keys, values and both halves of the MLP; it lives until the block's end."""
    hidden, inner = spec.hidden, int(spec.hidden * spec.mlp_ratio)
    normed = modulated(tape, x, "norm")
    joined = tape.linear(normed, 3 * hidden + 2 * inner, "qkv_mlp")
    batch, length = x.shape[:2]
    q, k = (heads_of(joined.view(batch, length, hidden), spec.num_attention_heads) for _ in range(2))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = rotated(tape, q)
    k = rotated(tape, k)
    part = merged(tape.attention(q))
    gated = _gated(tape, joined.view(batch, length, 2 * inner))
    both = tape.cat((part, gated), 2, "attention and mlp")
    return gated_residual(tape, x, tape.linear(both, hidden, "out"), "hidden")
