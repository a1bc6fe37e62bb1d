"""OmniGenTransformer2DModel: text, reference images and the noisy image in one sequence.

[omnigen] huggingface/diffusers models/transformers/transformer_omnigen.py
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
    heads_of,
    linear,
    merged,
    norm,
    projections,
    rotated,
)
from vramcast.domain.denoisers import OmniGen
from vramcast.domain.model import Parameter
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_omnigen.py"


def parameters(spec: OmniGen) -> Weights:
    """The weights."""
    hidden, patch = spec.hidden, spec.patch_size
    for name in ("output", "input"):
        yield from each(EMBEDDERS, conv(f"{name}_image_proj", spec.in_channels, hidden, patch, patch))
    for name in ("time_token", "t_embedder"):
        yield from each(EMBEDDERS, embedder(name, spec.time_step_dim, hidden))
    table = Parameter(path="embed_tokens", shape=(spec.vocab_size, hidden), kind="embedding")
    yield from each(EMBEDDERS, (table,))
    kv = hidden // spec.num_attention_heads * spec.num_key_value_heads
    layer = [*norm("norm1", hidden), *norm("norm2", hidden)]
    for name, width in (("q", hidden), ("k", kv), ("v", kv), ("out", hidden)):
        layer += linear(name, hidden, width, bias=False)
    inner = spec.intermediate_size
    layer += [*linear("gate_up", hidden, 2 * inner, bias=False), *linear("down", inner, hidden, bias=False)]
    yield from each("layers", layer, spec.num_layers)
    yield from each(OUTPUT, (*norm("norm", hidden), *linear("norm_out", hidden, 2 * hidden)))
    yield from each(OUTPUT, linear("proj_out", hidden, patch * patch * spec.in_channels))


def buffers(spec: OmniGen) -> int:
    """Elements of the table of positions."""
    return spec.pos_embed_max_size**2 * spec.hidden


def forward(tape: Tape, spec: OmniGen, step: Step) -> Array:
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

    def layer(x: Array) -> tuple[Array, ...]:
        return (_layer(tape, spec, x),)

    streams = [x]
    del x
    with tape.owned("denoiser.layers"):
        tape.repeat(spec.num_layers, layer, streams)
    x = tape.rms_norm(streams[0])
    out = tape.add(tape.multiply(tape.layer_norm(x.view(step.batch, image_tokens, hidden))))
    del latent, given, mask, rope
    return tape.linear(out, patch * patch * spec.in_channels, "noise")


def _layer(tape: Tape, spec: OmniGen, x: Array) -> Array:
    normed = tape.rms_norm(x, "norm1")
    x = tape.add(x, _attention(tape, spec, normed), name="attended")
    normed = tape.rms_norm(x, "norm2")
    both = tape.linear(normed, 2 * spec.intermediate_size, "gate_up")
    up, gate = both.chunk(2)
    inner = tape.multiply(up, tape.activation(gate, "silu"), name="inner")
    out = tape.linear(inner, spec.hidden, "down")
    del both, up, gate
    return tape.add(x, out, name="hidden")


def _attention(tape: Tape, spec: OmniGen, x: Array) -> Array:
    q, k, v = (heads_of(part, spec.num_attention_heads) for part in projections(tape, x, spec.hidden))
    q = rotated(tape, q)
    k = rotated(tape, k)
    y = merged(tape.attention(q))
    del k, v
    return tape.linear(y, spec.hidden, "out")
