"""CogVideoXTransformer3DModel, and ConsisID's with its face modules.

[cogvideox] huggingface/diffusers models/transformers/cogvideox_transformer_3d.py, models/attention_processor.py
`CogVideoXAttnProcessor2_0`; [consisid] models/transformers/consisid_transformer_3d.py
"""

from __future__ import annotations

from vramcast.blocks.diffusion.common import (
    EMBEDDERS,
    OUTPUT,
    Step,
    Weights,
    conv,
    each,
    feed_forward,
    heads_of,
    linear,
    merged,
    modulated,
    norm,
    projections,
    rotated,
)
from vramcast.domain.denoisers import CogVideoX, Face
from vramcast.domain.model import Parameter
from vramcast.operators.eager import FP32, Array, Tape

SOURCE = "diffusers models/transformers/cogvideox_transformer_3d.py"


def parameters(spec: CogVideoX) -> Weights:
    """The weights."""
    hidden, patch, time = spec.hidden, spec.patch_size, spec.time_embed_dim
    if spec.patch_size_t is None:
        patches = conv("patch_embed.proj", spec.in_channels, hidden, patch, patch)
    else:
        patches = linear("patch_embed.proj", spec.in_channels * patch * patch * spec.patch_size_t, hidden)
    yield from each(EMBEDDERS, (*patches, *linear("patch_embed.text_proj", spec.text_embed_dim, hidden)))
    yield from each(EMBEDDERS, (*linear("time.1", hidden, time), *linear("time.2", time, time)))
    if spec.ofs_embed_dim:
        ofs = spec.ofs_embed_dim
        yield from each(EMBEDDERS, (*linear("ofs.1", ofs, ofs), *linear("ofs.2", ofs, ofs)))
    yield from each("blocks", _block_weights(spec), spec.num_layers)
    if spec.face is not None:
        yield from _face_weights(spec, spec.face)
    out = patch * patch * (spec.patch_size_t or 1) * spec.out_channels
    yield from each(OUTPUT, (*norm("norm_final", hidden, bias=True), *norm("norm_out.norm", hidden, bias=True)))
    yield from each(OUTPUT, (*linear("norm_out", time, 2 * hidden), *linear("proj_out", hidden, out)))


def buffers(spec: CogVideoX) -> int:
    """Elements of the table of positions, where no rotary ones are used; the learned one of 1.5 counts here too."""
    if spec.use_rotary_positional_embeddings and not spec.use_learned_positional_embeddings:
        return 0
    frames = (spec.sample_frames - 1) // spec.temporal_compression_ratio + 1
    patches = frames * (spec.sample_height // spec.patch_size) * (spec.sample_width // spec.patch_size)
    return (spec.max_text_seq_length + patches) * spec.hidden


def _block_weights(spec: CogVideoX) -> tuple[Parameter, ...]:
    hidden, head = spec.hidden, spec.attention_head_dim
    parts: list[Parameter] = []
    for index in (1, 2):
        parts += linear(f"norm{index}", spec.time_embed_dim, 6 * hidden)
        parts += norm(f"norm{index}.norm", hidden, bias=True)
    for name in ("q", "k", "v", "out"):
        parts += linear(name, hidden, hidden)
    parts += [*norm("norm_q", head, bias=True), *norm("norm_k", head, bias=True)]
    return (*parts, *linear("ff.up", hidden, 4 * hidden), *linear("ff.down", 4 * hidden, hidden))


def _face_weights(spec: CogVideoX, face: Face) -> Weights:
    """The extractor of facial tokens and the cross-attentions that read them."""
    vit, inner = face.vit_dim, face.dim_head * face.num_heads
    scales = face.num_scale
    for _ in range(scales):
        yield from each("face.mapping", _mapping(vit, vit, vit))
    yield from each("face.mapping", _mapping(face.id_dim, vit, vit * face.num_id_token))
    layer = [
        *norm("norm1", vit, bias=True), *norm("norm2", vit, bias=True), *linear("q", vit, inner, bias=False),
        *linear("kv", vit, 2 * inner, bias=False), *linear("out", inner, vit, bias=False),
        *norm("ff.norm", vit, bias=True), *linear("ff.up", vit, face.ff_mult * vit, bias=False),
        *linear("ff.down", face.ff_mult * vit, vit, bias=False),
    ]
    yield from each("face.extractor", layer, face.depth)
    table = Parameter(path="latents", shape=(face.num_queries, vit), kind="embedding")
    out = Parameter(path="proj_out", shape=(vit, face.output_dim))
    yield from each("face.extractor", (table, out))
    hidden, width = spec.hidden, face.cross_attn_dim_head * face.cross_attn_num_heads
    source = int(hidden / 3 * 2)
    cross = (
        *norm("norm1", source, bias=True), *norm("norm2", hidden, bias=True), *linear("q", hidden, width, bias=False),
        *linear("kv", source, 2 * width, bias=False), *linear("out", width, hidden, bias=False),
    )
    yield from each("face.cross_attention", cross, spec.num_layers // face.cross_attn_interval)


def _mapping(before: int, inner: int, after: int) -> tuple[Parameter, ...]:
    return (
        *linear("1", before, inner), *norm("norm1", inner, bias=True), *linear("2", inner, inner),
        *norm("norm2", inner, bias=True), *linear("3", inner, after),
    )


def forward(tape: Tape, spec: CogVideoX, step: Step) -> Array:
    """One denoising step."""
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    frames = step.frames // (spec.patch_size_t or 1)
    tokens = frames * (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, step.frames, spec.in_channels, step.height, step.width), size)
    prompt = tape.new("text states", (step.batch, step.tokens, spec.text_embed_dim), size)
    rope = [tape.new(f"rope.{name}", (tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]
    text = tape.linear(prompt, hidden, "text_proj")
    video = tape.new("patches", (step.batch, tokens, hidden), size)
    joined = tape.cat((text, video), 1, "hidden.joined")
    del text, video
    if not spec.use_rotary_positional_embeddings:
        joined = tape.add(joined, name="hidden.joined")
    video, text = joined.view(step.batch, tokens, hidden), joined.view(step.batch, step.tokens, hidden)

    def block(video: Array, text: Array) -> tuple[Array, ...]:
        return _block(tape, spec, video, text)

    streams = [video, text]
    del video, text, joined
    with tape.owned("denoiser.blocks"):
        tape.repeat(spec.num_layers, block, streams)
    both = tape.cat(streams, 1)
    both = tape.layer_norm(both, "norm_final")
    out = modulated(tape, both, "norm_out")
    del latent, rope
    return tape.linear(out, patch * patch * (spec.patch_size_t or 1) * spec.out_channels, "noise")


def _block(tape: Tape, spec: CogVideoX, video: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = modulated(tape, video, "video.norm1"), modulated(tape, text, "text.norm1")
    part, text_part = _attended(tape, spec, normed, normed_text)
    video = tape.add(video, tape.multiply(part, name="video.gated"), name="video.attended")
    text = tape.add(text, tape.multiply(text_part, name="text.gated"), name="text.attended")
    normed, normed_text = modulated(tape, video, "video.norm2"), modulated(tape, text, "text.norm2")
    normed = tape.cat((normed_text, normed), 1, "ff.input")
    out = feed_forward(tape, normed, 4 * spec.hidden)
    video = tape.add(video, tape.multiply(out.view(*video.shape), name="video.ff.gated"), name="video")
    text = tape.add(text, tape.multiply(out.view(*text.shape), name="text.ff.gated"), name="text")
    return video, text


def _attended(tape: Tape, spec: CogVideoX, video: Array, text: Array) -> tuple[Array, Array]:
    hidden = spec.hidden
    x = tape.cat((text, video), 1, "attention.input")
    q, k, v = (heads_of(part, spec.num_attention_heads) for part in projections(tape, x, hidden))
    q, k = tape.layer_norm(q, "norm_q"), tape.layer_norm(k, "norm_k")
    if spec.use_rotary_positional_embeddings:
        for part in (q, k):  # written back in place over the video's tokens
            rotated(tape, part.view(part.shape[0], video.shape[1], *part.shape[2:]))
    x = merged(tape.attention(q))
    del k, v
    x = tape.linear(x, hidden, "out")
    return x.view(*video.shape), x.view(*text.shape)
