"""AuraFlowTransformer2DModel.

[aura] huggingface/diffusers models/transformers/auraflow_transformer_2d.py
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    each,
    embedder,
    heads_of,
    linear,
    merged,
    modulated,
    projections,
    swiglu,
)
from vramcast.domain.denoisers import AuraFlow
from vramcast.domain.model import Parameter
from vramcast.operators.eager import Array, Tape
from vramcast.units import round_up

SOURCE = "diffusers models/transformers/auraflow_transformer_2d.py"

STEP_FREQUENCIES = 256
REGISTERS = 8
INNER_MULTIPLE = 256


def _inner(spec: AuraFlow) -> int:
    return round_up(int(2 * 4 * spec.hidden / 3), INNER_MULTIPLE)


def parameters(spec: AuraFlow) -> Weights:
    """The weights; only embedders have biases, and positions are learned."""
    hidden, patch = spec.hidden, spec.patch_size
    positions = Parameter(path="pos_embed", shape=(1, spec.pos_embed_max_size, hidden), kind="embedding")
    registers = Parameter(path="register_tokens", shape=(1, REGISTERS, hidden), kind="embedding")
    yield from each(EMBEDDERS, (positions, registers))
    yield from each(EMBEDDERS, linear("pos_embed.proj", patch * patch * spec.in_channels, hidden))
    yield from each(EMBEDDERS, linear("context_embedder", spec.joint_attention_dim, hidden, bias=False))
    yield from each(EMBEDDERS, embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    streams = [*_stream("image", spec), *_stream("text", spec)]
    yield from each("double", streams, spec.num_mmdit_layers)
    yield from each("single", _stream("both", spec), spec.num_single_dit_layers)
    out = linear("proj_out", hidden, patch * patch * spec.out_channels, bias=False)
    yield from each(OUTPUT, (*linear("norm_out", hidden, 2 * hidden, bias=False), *out))


def _stream(name: str, spec: AuraFlow) -> list[Parameter]:
    hidden, inner = spec.hidden, _inner(spec)
    parts = [*linear(f"{name}.norm1", hidden, 6 * hidden, bias=False)]
    for part in ("q", "k", "v", "out"):
        parts += linear(f"{name}.{part}", hidden, hidden, bias=False)
    for part in ("gate", "up"):
        parts += linear(f"{name}.ff.{part}", hidden, inner, bias=False)
    return [*parts, *linear(f"{name}.ff.down", inner, hidden, bias=False)]


def forward(tape: Tape, spec: AuraFlow, step: Step) -> Array:
    """One denoising step."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens, length = (step.height // patch) * (step.width // patch), step.tokens + REGISTERS
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.new("patches", (step.batch, tokens, hidden), size)
    text = tape.new("text", (step.batch, length, hidden), size)

    def two(image: Array, text: Array) -> tuple[Array, ...]:
        return _double(tape, spec, image, text)

    def one(x: Array) -> tuple[Array, ...]:
        return (_single(tape, spec, x),)

    streams = [image, text]
    del image, text
    with tape.owned("denoiser.double"):
        tape.repeat(spec.num_mmdit_layers, two, streams)
    image, text = streams
    streams[:] = [tape.cat((text, image), 1, "hidden.joined")]
    with tape.owned("denoiser.single"):
        tape.repeat(spec.num_single_dit_layers, one, streams)
    out = modulated(tape, streams[0].view(step.batch, tokens, hidden), "norm_out")
    del latent, prompt, image, text
    return tape.linear(out, patch * patch * spec.out_channels, "noise")


def _double(tape: Tape, spec: AuraFlow, image: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = modulated(tape, image, "image.norm1"), modulated(tape, text, "text.norm1")
    part, text_part = _attended(tape, spec, normed, normed_text)
    image = _finish(tape, spec, image, part, "image")
    return image, _finish(tape, spec, text, text_part, "text")


def _finish(tape: Tape, spec: AuraFlow, x: Array, part: Array, name: str) -> Array:
    residual = x
    attended = tape.layer_norm(tape.add(residual, tape.multiply(part)), f"{name}.norm2")
    y = tape.add(tape.multiply(attended), name=f"{name}.modulated")
    out = tape.multiply(swiglu(tape, y, _inner(spec), f"{name}.ff"), name=f"{name}.gated")
    return tape.add(residual, out, name=name)


def _attended(tape: Tape, spec: AuraFlow, image: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (heads_of(part, heads) for part in projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    q, k, text_q, text_k = (tape.layer_norm(part) for part in (q, k, text_q, text_k))
    q, k, v = tape.cat((text_q, q), 1), tape.cat((text_k, k), 1), tape.cat((text_v, v), 1)
    both = merged(tape.attention(q))
    part = tape.linear(both.view(*image.shape), hidden, "image.out")
    return part, tape.linear(both.view(*text.shape), hidden, "text.out")


def _single(tape: Tape, spec: AuraFlow, x: Array) -> Array:
    normed = modulated(tape, x, "norm1")
    q, k, v = (heads_of(part, spec.num_attention_heads) for part in projections(tape, normed, spec.hidden))
    q, k = tape.layer_norm(q), tape.layer_norm(k)
    part = tape.linear(merged(tape.attention(q)), spec.hidden, "out")
    del q, k, v
    return _finish(tape, spec, x, part, "hidden")
