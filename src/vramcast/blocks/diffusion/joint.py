"""Stable Diffusion 3, 3.5 and AuraFlow: an image's and a text's stream that meet in attention.

[sd3] huggingface/diffusers models/transformers/transformer_sd3.py, models/attention.py `JointTransformerBlock`
[aura] huggingface/diffusers models/transformers/auraflow_transformer_2d.py
"""

from __future__ import annotations

from typing import Final

from vramcast.blocks.diffusion import common as nn
from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, Network, Step, Weights
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import SD3, AuraFlow
from vramcast.operators.eager import Array, Tape
from vramcast.units import round_up

STEP_FREQUENCIES = 256


def sd3_parameters(spec: SD3) -> Weights:
    """The weights; the table of positions is a buffer of the checkpoint."""
    hidden, patch = spec.hidden, spec.patch_size
    yield from nn.each(EMBEDDERS, nn.conv("pos_embed.proj", spec.in_channels, hidden, patch, patch))
    yield from nn.each(EMBEDDERS, nn.linear("context_embedder", spec.joint_attention_dim, spec.caption_projection_dim))
    yield from nn.each(EMBEDDERS, nn.embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("text_embedder", spec.pooled_projection_dim, hidden))
    for index in range(spec.num_layers):
        last = index == spec.num_layers - 1
        yield from nn.each("joint", _image(spec, dual=index in spec.dual_attention_layers))
        yield from nn.each("joint", _text(spec, last=last))
    out = nn.linear("proj_out", hidden, patch * patch * spec.out_channels)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", hidden, 2 * hidden), *out))


def _attention(spec: SD3, prefix: str, *, out: bool = True) -> tuple[Parameter, ...]:
    norms = () if spec.qk_norm is None else nn.query_key_norms(prefix, spec.attention_head_dim)
    return (*nn.square(prefix, spec.hidden, ("q", "k", "v", *(("out",) if out else ()))), *norms)


def _image(spec: SD3, *, dual: bool) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    second = _attention(spec, "image.attn2.") if dual else ()
    vectors = 9 if dual else 6
    return (
        *nn.linear("image.norm1", hidden, vectors * hidden), *_attention(spec, "image.attn."), *second,
        *nn.feed_forward_weights("image.", hidden, 4 * hidden),
    )


def _text(spec: SD3, *, last: bool) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    if last:
        return (*nn.linear("text.norm1", hidden, 2 * hidden), *_attention(spec, "text.attn.", out=False))
    return (
        *nn.linear("text.norm1", hidden, 6 * hidden), *_attention(spec, "text.attn."),
        *nn.feed_forward_weights("text.", hidden, 4 * hidden),
    )


def sd3_forward(tape: Tape, spec: SD3, step: Step) -> Array:
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    pixels = tape.conv(latent, hidden, kernel=patch, stride=patch, padding=0, name="patches")
    tokens = (step.height // patch) * (step.width // patch)
    image = tape.add(pixels.view(step.batch, tokens, hidden), name="positions added")
    del pixels
    text = tape.linear(prompt, hidden, "context_embedder")
    streams = [image, text]
    del image, text
    dual = len(spec.dual_attention_layers)
    nn.layers(tape, "joint", dual, lambda image, text: _block(tape, spec, image, text, dual=True), streams)
    others = spec.num_layers - dual
    nn.layers(tape, "joint", others, lambda image, text: _block(tape, spec, image, text, dual=False), streams)
    return tape.linear(nn.modulated(tape, streams[0], "norm_out"), patch * patch * spec.out_channels, "noise")


def _block(tape: Tape, spec: SD3, image: Array, text: Array, *, dual: bool) -> tuple[Array, Array]:
    normed = nn.modulated(tape, image, "image.norm1")
    second = tape.add(normed, name="image.norm1.second") if dual else None
    normed_text = nn.modulated(tape, text, "text.norm1")
    norms = () if spec.qk_norm is None else (tape.rms_norm,)
    part, text_part = nn.joint_attention(
        tape, normed, normed_text, spec.num_attention_heads, *norms, text_first=False
    )
    part = nn.gated(tape, part, "image.gated")
    image = tape.add(image, part, name="image.attended")
    if second is not None:
        other = nn.gated(tape, _alone(tape, spec, second), "image.second gated")
        image = tape.add(image, other, name="image.attended twice")
    normed = nn.modulated(tape, image, "image.norm2")
    out = nn.gated(tape, nn.feed_forward(tape, normed, 4 * spec.hidden, "image.ff"), "image.ff.gated")
    image = tape.add(image, out, name="image")
    text = nn.gated_residual(tape, text, text_part, "text.attended")
    inner = nn.feed_forward(tape, nn.modulated(tape, text, "text.norm2"), 4 * spec.hidden, "text.ff")
    return image, nn.gated_residual(tape, text, inner, "text")


def _alone(tape: Tape, spec: SD3, x: Array) -> Array:
    q, k, v = (nn.heads_of(part, spec.num_attention_heads) for part in nn.projections(tape, x, spec.hidden, "second"))
    if spec.qk_norm is not None:
        q, k = tape.rms_norm(q), tape.rms_norm(k)
    return tape.linear(nn.merged(tape.attention(q, k, v)), spec.hidden, "second.out")


REGISTERS = 8
INNER_MULTIPLE = 256


def _inner(spec: AuraFlow) -> int:
    return round_up(int(2 * 4 * spec.hidden / 3), INNER_MULTIPLE)


def aura_flow_parameters(spec: AuraFlow) -> Weights:
    """The weights; only embedders have biases, and positions are learned."""
    hidden, patch = spec.hidden, spec.patch_size
    positions = Parameter(path="pos_embed", shape=(1, spec.pos_embed_max_size, hidden), kind="embedding")
    registers = Parameter(path="register_tokens", shape=(1, REGISTERS, hidden), kind="embedding")
    yield from nn.each(EMBEDDERS, (positions, registers))
    yield from nn.each(EMBEDDERS, nn.linear("pos_embed.proj", patch * patch * spec.in_channels, hidden))
    yield from nn.each(EMBEDDERS, nn.linear("context_embedder", spec.joint_attention_dim, hidden, bias=False))
    yield from nn.each(EMBEDDERS, nn.embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    streams = [*_stream("image", spec), *_stream("text", spec)]
    yield from nn.each("double", streams, spec.num_mmdit_layers)
    yield from nn.each("single", _stream("both", spec), spec.num_single_dit_layers)
    out = nn.linear("proj_out", hidden, patch * patch * spec.out_channels, bias=False)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", hidden, 2 * hidden, bias=False), *out))


def _stream(name: str, spec: AuraFlow) -> tuple[Parameter, ...]:
    hidden, inner = spec.hidden, _inner(spec)
    widened = (part for way in ("gate", "up") for part in nn.linear(f"{name}.ff.{way}", hidden, inner, bias=False))
    return (
        *nn.linear(f"{name}.norm1", hidden, 6 * hidden, bias=False), *nn.square(f"{name}.", hidden, bias=False),
        *widened,
        *nn.linear(f"{name}.ff.down", inner, hidden, bias=False),
    )


def aura_flow_forward(tape: Tape, spec: AuraFlow, step: Step) -> Array:
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens, length = (step.height // patch) * (step.width // patch), step.tokens + REGISTERS
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.new("patches", (step.batch, tokens, hidden), size)
    text = tape.new("text", (step.batch, length, hidden), size)

    streams = [image, text]
    del image, text
    nn.layers(tape, "double", spec.num_mmdit_layers, lambda image, text: _double(tape, spec, image, text), streams)
    image, text = streams
    streams[:] = [tape.cat((text, image), 1, "hidden.joined")]
    nn.layers(tape, "single", spec.num_single_dit_layers, lambda x: (_single(tape, spec, x),), streams)
    out = nn.modulated(tape, streams[0].view(step.batch, tokens, hidden), "norm_out")
    del latent, prompt, image, text
    return tape.linear(out, patch * patch * spec.out_channels, "noise")


def _double(tape: Tape, spec: AuraFlow, image: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = nn.modulated(tape, image, "image.norm1"), nn.modulated(tape, text, "text.norm1")
    part, text_part = nn.joint_attention(tape, normed, normed_text, spec.num_attention_heads, tape.layer_norm)
    image = _finish(tape, spec, image, part, "image")
    return image, _finish(tape, spec, text, text_part, "text")


def _finish(tape: Tape, spec: AuraFlow, x: Array, part: Array, name: str) -> Array:
    residual = x
    attended = tape.layer_norm(tape.add(residual, nn.gated(tape, part)), f"{name}.norm2")
    y = tape.add(nn.gated(tape, attended), name=f"{name}.modulated")
    out = nn.gated(tape, nn.swiglu(tape, y, _inner(spec), f"{name}.ff"), f"{name}.gated")
    return tape.add(residual, out, name=name)


def _single(tape: Tape, spec: AuraFlow, x: Array) -> Array:
    normed = nn.modulated(tape, x, "norm1")
    q, k, v = (nn.heads_of(part, spec.num_attention_heads) for part in nn.projections(tape, normed, spec.hidden))
    q, k = tape.layer_norm(q), tape.layer_norm(k)
    part = tape.linear(nn.merged(tape.attention(q, k, v)), spec.hidden, "out")
    del q, k, v
    return _finish(tape, spec, x, part, "hidden")


NETWORKS: Final = {
    "SD3Transformer2DModel": Network(
        "diffusers models/transformers/transformer_sd3.py, models/attention.py JointTransformerBlock", sd3_parameters,
        sd3_forward, nn.position_elements,
    ),
    "AuraFlowTransformer2DModel": Network(
        "diffusers models/transformers/auraflow_transformer_2d.py", aura_flow_parameters, aura_flow_forward
    ),
}
