"""HunyuanVideoTransformer3DModel.

[hunyuan] huggingface/diffusers models/transformers/transformer_hunyuan_video.py
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
    rotated,
)
from vramcast.blocks.diffusion.flux import fused, stream
from vramcast.domain.denoisers import HunyuanVideo
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/transformer_hunyuan_video.py"

STEP_FREQUENCIES = 256


def parameters(spec: HunyuanVideo) -> Weights:
    """The weights."""
    hidden, patch, depth = spec.hidden, spec.patch_size, spec.patch_size_t
    yield from each(EMBEDDERS, conv("x_embedder", spec.in_channels, hidden, depth, patch, patch))
    yield from each(EMBEDDERS, embedder("context.time", STEP_FREQUENCIES, hidden))
    yield from each(EMBEDDERS, embedder("context.text", spec.text_embed_dim, hidden))
    yield from each(EMBEDDERS, linear("context.proj_in", spec.text_embed_dim, hidden))
    refiner = [*norm("norm1", hidden, bias=True), *norm("norm2", hidden, bias=True)]
    refiner += linear("gate", hidden, 2 * hidden)
    for part in ("q", "k", "v", "out"):
        refiner += linear(part, hidden, hidden)
    refiner += [*linear("ff.up", hidden, 4 * hidden), *linear("ff.down", 4 * hidden, hidden)]
    yield from each("refiner", refiner, spec.num_refiner_layers)
    yield from each(EMBEDDERS, embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    if spec.guidance_embeds:
        yield from each(EMBEDDERS, embedder("guidance_embedder", STEP_FREQUENCIES, hidden))
    yield from each(EMBEDDERS, embedder("text_embedder", spec.pooled_projection_dim, hidden))
    head, ratio = spec.attention_head_dim, spec.mlp_ratio
    streams = [stream(name, hidden, head, mlp_ratio=ratio) for name in ("image", "text")]
    yield from each("double", (*streams[0], *streams[1]), spec.num_layers)
    yield from each("single", fused(hidden, head, mlp_ratio=ratio), spec.num_single_layers)
    out = linear("proj_out", hidden, depth * patch * patch * spec.out_channels)
    yield from each(OUTPUT, (*linear("norm_out", hidden, 2 * hidden), *out))


def forward(tape: Tape, spec: HunyuanVideo, step: Step) -> Array:
    """One denoising step."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    frames = step.frames // spec.patch_size_t
    tokens = frames * (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.frames, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.text_embed_dim), size)
    rope = [tape.new(f"rope.{name}", (tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]
    # the patches are one convolution whose output the first variable holds, flattened as a view
    video = tape.new("patches", (step.batch, tokens, hidden), size)
    text = tape.linear(prompt, hidden, "text.refined")

    def two(video: Array, text: Array) -> tuple[Array, ...]:
        return _double(tape, spec, video, text)

    def one(video: Array, text: Array) -> tuple[Array, ...]:
        return _single(tape, spec, video, text)

    streams = [video, text]
    del video, text
    with tape.owned("denoiser.double"):
        tape.repeat(spec.num_layers, two, streams)
    with tape.owned("denoiser.single"):
        tape.repeat(spec.num_single_layers, one, streams)
    out = modulated(tape, streams[0], "norm_out")
    del latent, rope
    return tape.linear(out, spec.patch_size_t * patch * patch * spec.out_channels, "noise")


def _double(tape: Tape, spec: HunyuanVideo, video: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = modulated(tape, video, "video.norm1"), modulated(tape, text, "text.norm1")
    parts = _attended(tape, spec, normed, normed_text)
    video = gated_residual(tape, video, parts[0], "video.attended")
    text = gated_residual(tape, text, parts[1], "text.attended")
    normed, normed_text = modulated(tape, video, "video.norm2"), modulated(tape, text, "text.norm2")
    inner = int(spec.hidden * spec.mlp_ratio)
    out = feed_forward(tape, normed, inner, "video.ff")
    text_out = feed_forward(tape, normed_text, inner, "text.ff")
    return gated_residual(tape, video, out, "video"), gated_residual(tape, text, text_out, "text")


def _attended(tape: Tape, spec: HunyuanVideo, video: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (heads_of(part, heads) for part in projections(tape, video, hidden, "video"))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = rotated(tape, q)
    k = rotated(tape, k)
    text_q, text_k, text_v = (heads_of(part, heads) for part in projections(tape, text, hidden, "text"))
    text_q, text_k = tape.rms_norm(text_q), tape.rms_norm(text_k)
    q, k, v = tape.cat((q, text_q), 1), tape.cat((k, text_k), 1), tape.cat((v, text_v), 1)
    both = merged(tape.attention(q))
    part = tape.linear(both.view(*video.shape), hidden, "video.out")
    return part, tape.linear(both.view(*text.shape), hidden, "text.out")


def _single(tape: Tape, spec: HunyuanVideo, video: Array, text: Array) -> tuple[Array, Array]:
    hidden, heads = spec.hidden, spec.num_attention_heads
    x = tape.cat((video, text), 1, "hidden.joined")
    normed = modulated(tape, x, "norm")
    inner = tape.activation(tape.linear(normed, int(hidden * spec.mlp_ratio), "proj_mlp"), "mlp")
    part = _single_attention(tape, normed, video.shape[1], heads)
    both = tape.cat((part, inner), 2, "attention and mlp")
    x = gated_residual(tape, x, tape.linear(both, hidden, "proj_out"), "hidden")
    return x.view(*video.shape), x.view(*text.shape)


def _single_attention(tape: Tape, x: Array, tokens: int, heads: int) -> Array:
    """The whole sequence is projected; only the video's part is rotated and joined with the text's again."""
    joined = tape.cat((x,), 1, "attention.input")
    q, k, v = (heads_of(part, heads) for part in projections(tape, joined, x.shape[-1]))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    part = q.view(q.shape[0], tokens, *q.shape[2:])
    rest = q.view(q.shape[0], x.shape[1] - tokens, *q.shape[2:])
    q = tape.cat((rotated(tape, part), rest), 1, "q.joined")
    part = k.view(k.shape[0], tokens, *k.shape[2:])
    k = tape.cat((rotated(tape, part), rest), 1, "k.joined")
    del part, rest, joined, v
    return merged(tape.attention(q))
