"""FluxTransformer2DModel: FLUX.1.

[flux] huggingface/diffusers models/transformers/transformer_flux.py
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    each,
    embedder,
    feed_forward,
    gated_residual,
    heads_of,
    linear,
    merged,
    modulated,
    norm,
    projections,
    rotated,
)
from vramcast.domain.denoisers import Flux
from vramcast.domain.model import Parameter
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_flux.py"

STEP_FREQUENCIES = 256
PATCH = 2
"""Latent pixels per token side: the pipeline packs them."""


def parameters(spec: Flux) -> Weights:
    """The weights."""
    hidden = spec.hidden
    yield from each(EMBEDDERS, linear("x_embedder", spec.in_channels, hidden))
    yield from each(EMBEDDERS, linear("context_embedder", spec.joint_attention_dim, hidden))
    yield from each(EMBEDDERS, embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    yield from each(EMBEDDERS, embedder("text_embedder", spec.pooled_projection_dim, hidden))
    if spec.guidance_embeds:
        yield from each(EMBEDDERS, embedder("guidance_embedder", STEP_FREQUENCIES, hidden))
    streams = [stream(name, hidden, spec.attention_head_dim) for name in ("image", "text")]
    yield from each("double", (*streams[0], *streams[1]), spec.num_layers)
    yield from each("single", fused(hidden, spec.attention_head_dim), spec.num_single_layers)
    yield from each(OUTPUT, (*linear("norm_out", hidden, 2 * hidden), *linear("proj_out", hidden, spec.in_channels)))


def stream(name: str, hidden: int, head_dim: int, *, mlp_ratio: float = 4.0) -> tuple[Parameter, ...]:
    """One stream of a two-stream block: modulation, projections, query and key norms, MLP."""
    inner = int(hidden * mlp_ratio)
    parts = [*linear(f"{name}.norm1", hidden, 6 * hidden)]
    for part in ("q", "k", "v", "out"):
        parts += linear(f"{name}.{part}", hidden, hidden)
    parts += [*norm(f"{name}.norm_q", head_dim), *norm(f"{name}.norm_k", head_dim)]
    return (*parts, *linear(f"{name}.ff.up", hidden, inner), *linear(f"{name}.ff.down", inner, hidden))


def fused(hidden: int, head_dim: int, *, mlp_ratio: float = 4.0) -> tuple[Parameter, ...]:
    """A block of the joined stream: attention and MLP side by side, one linear behind both."""
    inner = int(hidden * mlp_ratio)
    parts = [*linear("norm", hidden, 3 * hidden), *linear("proj_mlp", hidden, inner)]
    for part in "qkv":
        parts += linear(part, hidden, hidden)
    parts += [*norm("norm_q", head_dim), *norm("norm_k", head_dim)]
    return (*parts, *linear("proj_out", hidden + inner, hidden))


def forward(tape: Tape, spec: Flux, step: Step) -> Array:
    """One denoising step."""
    hidden, size = spec.hidden, step.itemsize
    image_tokens = (step.height // PATCH) * (step.width // PATCH)
    packed = tape.new("latent", (step.batch, image_tokens, spec.in_channels), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.linear(packed, hidden, "x_embedder")
    text = tape.linear(prompt, hidden, "context_embedder")
    length = image_tokens + step.tokens
    rope = [tape.new(f"rope.{name}", (length, spec.attention_head_dim), FP32) for name in ("cos", "sin")]

    def two(image: Array, text: Array) -> tuple[Array, ...]:
        return _double(tape, image, text, spec.num_attention_heads)

    def one(image: Array, text: Array) -> tuple[Array, ...]:
        return _single(tape, image, text, spec.num_attention_heads)

    streams = [image, text]
    del image, text
    with tape.owned("denoiser.double"):
        tape.repeat(spec.num_layers, two, streams)
    with tape.owned("denoiser.single"):
        tape.repeat(spec.num_single_layers, one, streams)
    out = modulated(tape, streams[0], "norm_out")
    del rope
    return tape.linear(out, spec.in_channels, "noise")


def _double(tape: Tape, image: Array, text: Array, heads: int) -> tuple[Array, Array]:
    parts = attended(tape, modulated(tape, image, "image.norm1"), modulated(tape, text, "text.norm1"), heads)
    image = _finish(tape, image, parts[0], "image")
    return image, _finish(tape, text, parts[1], "text")


def attended(tape: Tape, image: Array, text: Array, heads: int) -> tuple[Array, Array]:
    """Joint attention of both streams, and each stream's projection."""
    hidden = image.shape[-1]
    q, k, v = (heads_of(part, heads) for part in projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    text_q, text_k = tape.rms_norm(text_q, "norm_added_q"), tape.rms_norm(text_k, "norm_added_k")
    q = tape.cat((text_q, q), 1, "q.joined")
    k = tape.cat((text_k, k), 1, "k.joined")
    v = tape.cat((text_v, v), 1, "v.joined")
    q = rotated(tape, q)
    k = rotated(tape, k)
    both = merged(tape.attention(q))
    batch, length = text.shape[:2]
    image_part = tape.copy(both.view(batch, both.shape[1] - length, hidden), "image.attention")
    image_part = tape.linear(image_part, hidden, "image.out")
    text_part = tape.copy(both.view(batch, length, hidden), "text.attention")
    return image_part, tape.linear(text_part, hidden, "text.out")


def _finish(tape: Tape, x: Array, part: Array, name: str) -> Array:
    x = gated_residual(tape, x, part, f"{name}.attended")
    out = feed_forward(tape, modulated(tape, x, f"{name}.norm2"), 4 * x.shape[-1], f"{name}.ff")
    return gated_residual(tape, x, out, name)


def _single(tape: Tape, image: Array, text: Array, heads: int) -> tuple[Array, Array]:
    hidden = image.shape[-1]
    x = tape.cat((text, image), 1, "hidden.joined")
    normed = modulated(tape, x, "norm")
    inner = tape.linear(normed, 4 * hidden, "proj_mlp")
    inner = tape.activation(inner, "mlp")
    part = _self_attention(tape, normed, heads)
    both = tape.cat((part, inner), 2, "attention and mlp")
    total = gated_residual(tape, x, tape.linear(both, hidden, "proj_out"), "hidden")
    batch, length = text.shape[:2]
    return total.view(*image.shape), total.view(batch, length, hidden)


def _self_attention(tape: Tape, x: Array, heads: int) -> Array:
    q, k, v = (heads_of(part, heads) for part in projections(tape, x, x.shape[-1]))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = rotated(tape, q)
    k = rotated(tape, k)
    del v
    return merged(tape.attention(q))
