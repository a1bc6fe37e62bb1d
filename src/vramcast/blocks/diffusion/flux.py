"""FLUX.1, FLUX.2 and Qwen-Image: an image's and a text's stream that meet in attention.

[flux] huggingface/diffusers models/transformers/transformer_flux.py
[flux2] huggingface/diffusers models/transformers/transformer_flux2.py
[qwen] huggingface/diffusers models/transformers/transformer_qwenimage.py
"""

from __future__ import annotations

from functools import partial
from typing import Final

from vramcast.blocks.diffusion import common as nn
from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, Network, Step, Weights
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import Flux, Flux2, QwenImage
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32

STEP_FREQUENCIES = 256
PATCH = 2
"""Latent pixels per token side: the pipeline packs them."""


def flux_parameters(spec: Flux) -> Weights:
    hidden = spec.hidden
    yield from nn.each(EMBEDDERS, nn.linear("x_embedder", spec.in_channels, hidden))
    yield from nn.each(EMBEDDERS, nn.linear("context_embedder", spec.joint_attention_dim, hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("text_embedder", spec.pooled_projection_dim, hidden))
    if spec.guidance_embeds:
        yield from nn.each(EMBEDDERS, nn.embedder("guidance_embedder", STEP_FREQUENCIES, hidden))
    streams = [stream(name, hidden, spec.attention_head_dim) for name in ("image", "text")]
    yield from nn.each("double", (*streams[0], *streams[1]), spec.num_layers)
    yield from nn.each("single", fused(hidden, spec.attention_head_dim), spec.num_single_layers)
    yield from nn.each(OUTPUT, nn.linear("norm_out", hidden, 2 * hidden))
    yield from nn.each(OUTPUT, nn.linear("proj_out", hidden, spec.out_channels or spec.in_channels))


def stream(name: str, hidden: int, head_dim: int, *, mlp_ratio: float = 4.0) -> tuple[Parameter, ...]:
    """One stream of a two-stream block: modulation, projections, query and key norms, MLP."""
    inner = int(hidden * mlp_ratio)
    return (
        *nn.linear(f"{name}.norm1", hidden, 6 * hidden), *nn.square(f"{name}.", hidden),
        *nn.query_key_norms(f"{name}.", head_dim), *nn.feed_forward_weights(f"{name}.", hidden, inner),
    )


def fused(hidden: int, head_dim: int, *, mlp_ratio: float = 4.0) -> tuple[Parameter, ...]:
    """A block of the joined stream: attention and MLP side by side, one linear behind both."""
    inner = int(hidden * mlp_ratio)
    return (
        *nn.linear("norm", hidden, 3 * hidden), *nn.linear("proj_mlp", hidden, inner), *nn.square("", hidden, "qkv"),
        *nn.query_key_norms("", head_dim), *nn.linear("proj_out", hidden + inner, hidden),
    )


def flux_forward(tape: Tape, spec: Flux, step: Step) -> Array:
    hidden, size = spec.hidden, step.itemsize
    image_tokens = (step.height // PATCH) * (step.width // PATCH)
    packed = tape.new("latent", (step.batch, image_tokens, spec.in_channels), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.linear(packed, hidden, "x_embedder")
    text = tape.linear(prompt, hidden, "context_embedder")
    length = image_tokens + step.tokens
    rope = [tape.new(f"rope.{name}", (length, spec.attention_head_dim), FP32) for name in ("cos", "sin")]

    streams = [image, text]
    del image, text
    heads = spec.num_attention_heads
    nn.layers(tape, "double", spec.num_layers, lambda image, text: _double(tape, image, text, heads), streams)
    nn.layers(tape, "single", spec.num_single_layers, lambda image, text: _single(tape, image, text, heads), streams)
    out = nn.modulated(tape, streams[0], "norm_out")
    del rope
    return tape.linear(out, spec.out_channels or spec.in_channels, "noise")


def _double(tape: Tape, image: Array, text: Array, heads: int) -> tuple[Array, Array]:
    parts = attended(tape, nn.modulated(tape, image, "image.norm1"), nn.modulated(tape, text, "text.norm1"), heads)
    image = _finish(tape, image, parts[0], "image")
    return image, _finish(tape, text, parts[1], "text")


def attended(tape: Tape, image: Array, text: Array, heads: int) -> tuple[Array, Array]:
    """Joint attention of both streams, and each stream's projection."""
    hidden = image.shape[-1]
    q, k, v = (nn.heads_of(part, heads) for part in nn.projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (nn.heads_of(part, heads) for part in nn.projections(tape, text, hidden, "text"))
    q, k = tape.rms_norm(q, "norm_q", fused=True), tape.rms_norm(k, "norm_k", fused=True)
    text_q = tape.rms_norm(text_q, "norm_added_q", fused=True)
    text_k = tape.rms_norm(text_k, "norm_added_k", fused=True)
    q = tape.cat((text_q, q), 1, "q.joined")
    k = tape.cat((text_k, k), 1, "k.joined")
    v = tape.cat((text_v, v), 1, "v.joined")
    q = nn.rotated(tape, q)
    k = nn.rotated(tape, k)
    both = nn.merged(tape.attention(q, k, v))
    batch, length = text.shape[:2]
    image_part = tape.copy(both.view(batch, both.shape[1] - length, hidden), "image.attention")
    image_part = tape.linear(image_part, hidden, "image.out")
    text_part = tape.copy(both.view(batch, length, hidden), "text.attention")
    return image_part, tape.linear(text_part, hidden, "text.out")


def _finish(tape: Tape, x: Array, part: Array, name: str) -> Array:
    x = nn.gated_residual(tape, x, part, f"{name}.attended")
    out = nn.feed_forward(tape, nn.modulated(tape, x, f"{name}.norm2"), 4 * x.shape[-1], f"{name}.ff")
    return nn.gated_residual(tape, x, out, name)


def _single(tape: Tape, image: Array, text: Array, heads: int) -> tuple[Array, Array]:
    hidden = image.shape[-1]
    x = tape.cat((text, image), 1, "hidden.joined")
    normed = nn.modulated(tape, x, "norm")
    inner = tape.linear(normed, 4 * hidden, "proj_mlp")
    inner = tape.activation(inner, "mlp")
    part = _self_attention(tape, normed, heads)
    both = tape.cat((part, inner), 2, "attention and mlp")
    total = nn.gated_residual(tape, x, tape.linear(both, hidden, "proj_out"), "hidden")
    batch, length = text.shape[:2]
    return total.view(*image.shape), total.view(batch, length, hidden)


def _self_attention(tape: Tape, x: Array, heads: int) -> Array:
    q, k, v = (nn.heads_of(part, heads) for part in nn.projections(tape, x, x.shape[-1]))
    q, k = tape.rms_norm(q, "norm_q", fused=True), tape.rms_norm(k, "norm_k", fused=True)
    q = nn.rotated(tape, q)
    k = nn.rotated(tape, k)
    return nn.merged(tape.attention(q, k, v))


def flux2_parameters(spec: Flux2) -> Weights:
    """The weights; nothing has a bias, and modulation belongs to no block."""
    hidden, inner = spec.hidden, int(spec.hidden * spec.mlp_ratio)
    yield from nn.each(EMBEDDERS, nn.linear("x_embedder", spec.in_channels, hidden, bias=False))
    yield from nn.each(EMBEDDERS, nn.linear("context_embedder", spec.joint_attention_dim, hidden, bias=False))
    for name in ("timestep", *(("guidance",) if spec.guidance_embeds else ())):
        first = nn.linear(f"{name}.1", spec.timestep_guidance_channels, hidden, bias=False)
        yield from nn.each(EMBEDDERS, (*first, *nn.linear(f"{name}.2", hidden, hidden, bias=False)))
    for name, vectors in (("image", 6), ("text", 6), ("single", 3)):
        yield from nn.each("modulation", nn.linear(name, hidden, vectors * hidden, bias=False))
    streams = [*_stream("image", spec, inner), *_stream("text", spec, inner)]
    yield from nn.each("double", streams, spec.num_layers)
    single = [*nn.linear("qkv_mlp", hidden, 3 * hidden + 2 * inner, bias=False)]
    single += [*nn.query_key_norms("", spec.attention_head_dim), *nn.linear("out", hidden + inner, hidden, bias=False)]
    yield from nn.each("single", single, spec.num_single_layers)
    out = nn.linear("proj_out", hidden, spec.in_channels, bias=False)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", hidden, 2 * hidden, bias=False), *out))


def _stream(name: str, spec: Flux2, inner: int) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    return (
        *nn.square(f"{name}.", hidden, bias=False), *nn.query_key_norms(f"{name}.", spec.attention_head_dim),
        *nn.linear(f"{name}.ff.in", hidden, 2 * inner, bias=False),
        *nn.linear(f"{name}.ff.out", inner, hidden, bias=False),
    )


def flux2_forward(tape: Tape, spec: Flux2, step: Step) -> Array:
    hidden, size = spec.hidden, step.itemsize
    tokens = (step.height // PATCH) * (step.width // PATCH)
    latent = tape.new("latent", (step.batch, tokens, spec.in_channels), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.linear(latent, hidden, "x_embedder")
    text = tape.linear(prompt, hidden, "context_embedder")
    rope = [tape.new(f"rope.{name}", (tokens + step.tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]

    streams = [image, text]
    del image, text
    nn.layers(tape, "double", spec.num_layers, lambda image, text: _flux2_double(tape, spec, image, text), streams)
    streams[:] = [tape.cat((streams[1], streams[0]), 1, "hidden.joined")]
    nn.layers(tape, "single", spec.num_single_layers, lambda x: (_flux2_single(tape, spec, x),), streams)
    out = nn.modulated(tape, streams[0].view(step.batch, tokens, hidden), "norm_out")
    del rope
    return tape.linear(out, spec.in_channels, "noise")


def _flux2_double(tape: Tape, spec: Flux2, image: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = nn.modulated(tape, image, "image.norm1"), nn.modulated(tape, text, "text.norm1")
    part, text_part = nn.joint_attention(
        tape, normed, normed_text, spec.num_attention_heads, partial(tape.rms_norm, fused=True), rotates=True
    )
    part = nn.gated(tape, part, "image.gated")
    image = tape.add(image, part, name="image.attended")
    normed = nn.modulated(tape, image, "image.norm2")
    image = nn.gated_residual(tape, image, _mlp(tape, spec, normed, "image.ff"), "image")
    text = nn.gated_residual(tape, text, text_part, "text.attended")
    inner = _mlp(tape, spec, nn.modulated(tape, text, "text.norm2"), "text.ff")
    return image, nn.gated_residual(tape, text, inner, "text")


def _mlp(tape: Tape, spec: Flux2, x: Array, name: str) -> Array:
    inner = int(spec.hidden * spec.mlp_ratio)
    return tape.linear(_gated(tape, tape.linear(x, 2 * inner, f"{name}.in")), spec.hidden, f"{name}.out")


def _gated(tape: Tape, both: Array) -> Array:
    gate, value = both.chunk(2)
    return tape.multiply(tape.activation(gate, "silu"), value, name="gated")


def _flux2_single(tape: Tape, spec: Flux2, x: Array) -> Array:
    """One projection makes queries, keys, values and both halves of the MLP; it lives until the block's end."""
    hidden, inner = spec.hidden, int(spec.hidden * spec.mlp_ratio)
    normed = nn.modulated(tape, x, "norm")
    joined = tape.linear(normed, 3 * hidden + 2 * inner, "qkv_mlp")
    batch, length = x.shape[:2]
    q, k, v = (nn.heads_of(joined.view(batch, length, hidden), spec.num_attention_heads) for _ in range(3))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = nn.rotated(tape, q)
    k = nn.rotated(tape, k)
    part = nn.merged(tape.attention(q, k, v))
    gated = _gated(tape, joined.view(batch, length, 2 * inner))
    both = tape.cat((part, gated), 2, "attention and mlp")
    return nn.gated_residual(tape, x, tape.linear(both, hidden, "out"), "hidden")


def qwen_image_parameters(spec: QwenImage) -> Weights:
    hidden = spec.hidden
    yield from nn.each(EMBEDDERS, nn.linear("img_in", spec.in_channels, hidden))
    yield from nn.each(EMBEDDERS, nn.norm("txt_norm", spec.joint_attention_dim))
    yield from nn.each(EMBEDDERS, nn.linear("txt_in", spec.joint_attention_dim, hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    streams = [stream(name, hidden, spec.attention_head_dim) for name in ("image", "text")]
    yield from nn.each("double", (*streams[0], *streams[1]), spec.num_layers)
    out = nn.linear("proj_out", hidden, spec.patch_size**2 * spec.out_channels)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", hidden, 2 * hidden), *out))


def qwen_image_forward(tape: Tape, spec: QwenImage, step: Step) -> Array:
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens = (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, tokens, spec.in_channels), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.linear(latent, hidden, "img_in")
    normed = tape.rms_norm(prompt, "txt_norm")
    text = tape.linear(normed, hidden, "txt_in")
    rope = tape.new("rope", (tokens + step.tokens, spec.attention_head_dim), FP32)

    streams = [image, text]
    del image, text, normed
    nn.layers(tape, "double", spec.num_layers, lambda image, text: _block(tape, spec, image, text), streams)
    del rope
    out = tape.add(nn.gated(tape, tape.layer_norm(streams[0])))
    return tape.linear(out, patch * patch * spec.out_channels, "noise")


def _modulated(tape: Tape, x: Array, name: str) -> tuple[Array, Array]:
    """The norm's output stays a variable of the block beside its modulated form."""
    normed = tape.layer_norm(x, f"{name}.normed")
    scaled = nn.gated(tape, normed, f"{name}.scaled")
    return normed, tape.add(scaled, name=name)


def _block(tape: Tape, spec: QwenImage, image: Array, text: Array) -> tuple[Array, Array]:
    normed, modulated = _modulated(tape, image, "image.norm1")
    text_normed, text_modulated = _modulated(tape, text, "text.norm1")
    part, text_part = _attended(tape, spec, modulated, text_modulated)
    image = tape.add(image, nn.gated(tape, part, "image.gated"), name="image.attended")
    text = tape.add(text, nn.gated(tape, text_part, "text.gated"), name="text.attended")
    second, changed = _modulated(tape, image, "image.norm2")
    out = nn.feed_forward(tape, changed, 4 * spec.hidden, "image.ff")
    image = tape.add(image, nn.gated(tape, out, "image.ff.gated"), name="image")
    text_second, text_changed = _modulated(tape, text, "text.norm2")
    text_out = nn.feed_forward(tape, text_changed, 4 * spec.hidden, "text.ff")
    text = tape.add(text, nn.gated(tape, text_out, "text.ff.gated"), name="text")
    del normed, text_normed, modulated, text_modulated, second, text_second
    return image, text


def _attended(tape: Tape, spec: QwenImage, image: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (nn.heads_of(part, heads) for part in nn.projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (nn.heads_of(part, heads) for part in nn.projections(tape, text, hidden, "text"))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    text_q, text_k = tape.rms_norm(text_q, "norm_added_q"), tape.rms_norm(text_k, "norm_added_k")
    q, k = nn.rotated_complex(tape, q), nn.rotated_complex(tape, k)
    text_q, text_k = nn.rotated_complex(tape, text_q), nn.rotated_complex(tape, text_k)
    joined = [tape.cat(pair, 1) for pair in ((text_q, q), (text_k, k), (text_v, v))]
    both = nn.merged(tape.attention(*joined))
    image_part = tape.copy(both.view(*image.shape), "image.attention")
    image_part = tape.linear(image_part, hidden, "image.out")
    text_part = tape.copy(both.view(*text.shape), "text.attention")
    return image_part, tape.linear(text_part, hidden, "text.out")


NETWORKS: Final = {
    "FluxTransformer2DModel": Network(
        "diffusers models/transformers/transformer_flux.py", flux_parameters, flux_forward
    ),
    "Flux2Transformer2DModel": Network(
        "diffusers models/transformers/transformer_flux2.py", flux2_parameters, flux2_forward
    ),
    "QwenImageTransformer2DModel": Network(
        "diffusers models/transformers/transformer_qwenimage.py", qwen_image_parameters, qwen_image_forward
    ),
}
