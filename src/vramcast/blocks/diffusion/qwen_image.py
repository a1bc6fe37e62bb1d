"""QwenImageTransformer2DModel.

[qwen] huggingface/diffusers models/transformers/transformer_qwenimage.py
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
    heads_of,
    linear,
    merged,
    norm,
    projections,
    rotated_complex,
)
from vramcast.blocks.diffusion.flux import stream
from vramcast.domain.denoisers import QwenImage
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_qwenimage.py"

STEP_FREQUENCIES = 256


def parameters(spec: QwenImage) -> Weights:
    """The weights."""
    hidden = spec.hidden
    yield from each(EMBEDDERS, linear("img_in", spec.in_channels, hidden))
    yield from each(EMBEDDERS, norm("txt_norm", spec.joint_attention_dim))
    yield from each(EMBEDDERS, linear("txt_in", spec.joint_attention_dim, hidden))
    yield from each(EMBEDDERS, embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    streams = [stream(name, hidden, spec.attention_head_dim) for name in ("image", "text")]
    yield from each("double", (*streams[0], *streams[1]), spec.num_layers)
    out = linear("proj_out", hidden, spec.patch_size**2 * spec.out_channels)
    yield from each(OUTPUT, (*linear("norm_out", hidden, 2 * hidden), *out))


def forward(tape: Tape, spec: QwenImage, step: Step) -> Array:
    """One denoising step."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    tokens = (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, tokens, spec.in_channels), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    image = tape.linear(latent, hidden, "img_in")
    normed = tape.rms_norm(prompt, "txt_norm")
    text = tape.linear(normed, hidden, "txt_in")
    rope = tape.new("rope", (tokens + step.tokens, spec.attention_head_dim), FP32)

    def block(image: Array, text: Array) -> tuple[Array, ...]:
        return _block(tape, spec, image, text)

    streams = [image, text]
    del image, text, normed
    with tape.owned("denoiser.double"):
        tape.repeat(spec.num_layers, block, streams)
    del rope
    out = tape.add(tape.multiply(tape.layer_norm(streams[0])))
    return tape.linear(out, patch * patch * spec.out_channels, "noise")


def _modulated(tape: Tape, x: Array, name: str) -> tuple[Array, Array]:
    """The norm's output stays a variable of the block beside its modulated form."""
    normed = tape.layer_norm(x, f"{name}.normed")
    scaled = tape.multiply(normed, name=f"{name}.scaled")
    return normed, tape.add(scaled, name=name)


def _block(tape: Tape, spec: QwenImage, image: Array, text: Array) -> tuple[Array, Array]:
    normed, modulated = _modulated(tape, image, "image.norm1")
    text_normed, text_modulated = _modulated(tape, text, "text.norm1")
    part, text_part = _attended(tape, spec, modulated, text_modulated)
    image = tape.add(image, tape.multiply(part, name="image.gated"), name="image.attended")
    text = tape.add(text, tape.multiply(text_part, name="text.gated"), name="text.attended")
    second, changed = _modulated(tape, image, "image.norm2")
    out = feed_forward(tape, changed, 4 * spec.hidden, "image.ff")
    image = tape.add(image, tape.multiply(out, name="image.ff.gated"), name="image")
    text_second, text_changed = _modulated(tape, text, "text.norm2")
    text_out = feed_forward(tape, text_changed, 4 * spec.hidden, "text.ff")
    text = tape.add(text, tape.multiply(text_out, name="text.ff.gated"), name="text")
    del normed, text_normed, modulated, text_modulated, second, text_second
    return image, text


def _attended(tape: Tape, spec: QwenImage, image: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (heads_of(part, heads) for part in projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    text_q, text_k = tape.rms_norm(text_q, "norm_added_q"), tape.rms_norm(text_k, "norm_added_k")
    q, k = rotated_complex(tape, q), rotated_complex(tape, k)
    text_q, text_k = rotated_complex(tape, text_q), rotated_complex(tape, text_k)
    joined = [tape.cat(pair, 1) for pair in ((text_q, q), (text_k, k), (text_v, v))]
    both = merged(tape.attention(joined[0]))
    image_part = tape.copy(both.view(*image.shape), "image.attention")
    image_part = tape.linear(image_part, hidden, "image.out")
    text_part = tape.copy(both.view(*text.shape), "text.attention")
    return image_part, tape.linear(text_part, hidden, "text.out")
