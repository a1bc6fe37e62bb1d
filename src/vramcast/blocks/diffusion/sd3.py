"""SD3Transformer2DModel: Stable Diffusion 3 and 3.5.

[sd3] huggingface/diffusers models/transformers/transformer_sd3.py, models/attention.py `JointTransformerBlock`
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
    gated_residual,
    heads_of,
    linear,
    merged,
    modulated,
    norm,
    projections,
)
from vramcast.domain.denoisers import SD3
from vramcast.domain.model import Parameter
from vramcast.operators.eager import Array, Tape

SOURCE = "diffusers models/transformers/transformer_sd3.py, models/attention.py JointTransformerBlock"

STEP_FREQUENCIES = 256


def parameters(spec: SD3) -> Weights:
    """The weights; the table of positions is a buffer of the checkpoint."""
    hidden, patch = spec.hidden, spec.patch_size
    yield from each(EMBEDDERS, conv("pos_embed.proj", spec.in_channels, hidden, patch, patch))
    yield from each(EMBEDDERS, linear("context_embedder", spec.joint_attention_dim, spec.caption_projection_dim))
    yield from each(EMBEDDERS, embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    yield from each(EMBEDDERS, embedder("text_embedder", spec.pooled_projection_dim, hidden))
    for index in range(spec.num_layers):
        last = index == spec.num_layers - 1
        yield from each("joint", _image(spec, dual=index in spec.dual_attention_layers))
        yield from each("joint", _text(spec, last=last))
    out = linear("proj_out", hidden, patch * patch * spec.out_channels)
    yield from each(OUTPUT, (*linear("norm_out", hidden, 2 * hidden), *out))


def buffers(spec: SD3) -> int:
    """Elements of the table of positions that moves with the weights."""
    return spec.pos_embed_max_size**2 * spec.hidden


def _norms(spec: SD3, prefix: str) -> tuple[Parameter, ...]:
    if spec.qk_norm is None:
        return ()
    head_dim = spec.attention_head_dim
    return (*norm(f"{prefix}.norm_q", head_dim), *norm(f"{prefix}.norm_k", head_dim))


def _attention(spec: SD3, prefix: str, *, out: bool = True) -> tuple[Parameter, ...]:
    parts: list[Parameter] = []
    for part in ("q", "k", "v", *(("out",) if out else ())):
        parts += linear(f"{prefix}.{part}", spec.hidden, spec.hidden)
    return (*parts, *_norms(spec, prefix))


def _mlp(prefix: str, hidden: int) -> tuple[Parameter, ...]:
    return (*linear(f"{prefix}.ff.up", hidden, 4 * hidden), *linear(f"{prefix}.ff.down", 4 * hidden, hidden))


def _image(spec: SD3, *, dual: bool) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    second = _attention(spec, "image.attn2") if dual else ()
    vectors = 9 if dual else 6
    return (
        *linear("image.norm1", hidden, vectors * hidden), *_attention(spec, "image.attn"), *second,
        *_mlp("image", hidden),
    )


def _text(spec: SD3, *, last: bool) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    if last:
        return (*linear("text.norm1", hidden, 2 * hidden), *_attention(spec, "text.attn", out=False))
    return (*linear("text.norm1", hidden, 6 * hidden), *_attention(spec, "text.attn"), *_mlp("text", hidden))


def forward(tape: Tape, spec: SD3, step: Step) -> Array:
    """One denoising step."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    latent = tape.new("latent", (step.batch, spec.in_channels, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.joint_attention_dim), size)
    pixels = tape.conv(latent, hidden, kernel=patch, stride=patch, padding=0, name="patches")
    tokens = (step.height // patch) * (step.width // patch)
    image = tape.add(pixels.view(step.batch, tokens, hidden), name="positions added")
    del pixels
    text = tape.linear(prompt, hidden, "context_embedder")
    streams = [image, text]
    del image, text
    with tape.owned("denoiser.joint"):
        for dual, count in ((True, len(spec.dual_attention_layers)), (False, spec.num_layers)):

            def block(image: Array, text: Array, dual: bool = dual) -> tuple[Array, ...]:
                return _block(tape, spec, image, text, dual=dual)

            rounds = count if dual else count - len(spec.dual_attention_layers)
            tape.repeat(rounds, block, streams)
    return tape.linear(modulated(tape, streams[0], "norm_out"), patch * patch * spec.out_channels, "noise")


def _block(tape: Tape, spec: SD3, image: Array, text: Array, *, dual: bool) -> tuple[Array, Array]:
    normed = modulated(tape, image, "image.norm1")
    second = tape.add(normed, name="image.norm1.second") if dual else None
    normed_text = modulated(tape, text, "text.norm1")
    part, text_part = _joint(tape, spec, normed, normed_text)
    part = tape.multiply(part, name="image.gated")
    image = tape.add(image, part, name="image.attended")
    if second is not None:
        other = tape.multiply(_alone(tape, spec, second), name="image.second gated")
        image = tape.add(image, other, name="image.attended twice")
    normed = modulated(tape, image, "image.norm2")
    out = tape.multiply(feed_forward(tape, normed, 4 * spec.hidden, "image.ff"), name="image.ff.gated")
    image = tape.add(image, out, name="image")
    text = gated_residual(tape, text, text_part, "text.attended")
    inner = feed_forward(tape, modulated(tape, text, "text.norm2"), 4 * spec.hidden, "text.ff")
    return image, gated_residual(tape, text, inner, "text")


def _joint(tape: Tape, spec: SD3, image: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (heads_of(part, heads) for part in projections(tape, image, hidden, "image"))
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    if spec.qk_norm is not None:
        q, k, text_q, text_k = (tape.rms_norm(part) for part in (q, k, text_q, text_k))
    q, k, v = tape.cat((q, text_q), 1), tape.cat((k, text_k), 1), tape.cat((v, text_v), 1)
    both = merged(tape.attention(q))
    image_part = tape.linear(both.view(*image.shape), hidden, "image.out")
    return image_part, tape.linear(both.view(*text.shape), hidden, "text.out")


def _alone(tape: Tape, spec: SD3, x: Array) -> Array:
    q, k, v = (heads_of(part, spec.num_attention_heads) for part in projections(tape, x, spec.hidden, "second"))
    if spec.qk_norm is not None:
        q, k = tape.rms_norm(q), tape.rms_norm(k)
    del k, v
    return tape.linear(merged(tape.attention(q)), spec.hidden, "second.out")
