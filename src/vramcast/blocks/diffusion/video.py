"""Transformers of videos: HunyuanVideo, CogVideoX and ConsisID, Wan 2.1 and 2.2.

[hunyuan] huggingface/diffusers models/transformers/transformer_hunyuan_video.py
[cogvideox] huggingface/diffusers models/transformers/cogvideox_transformer_3d.py, models/attention_processor.py
`CogVideoXAttnProcessor2_0`; [consisid] models/transformers/consisid_transformer_3d.py
[wan] huggingface/diffusers models/transformers/transformer_wan.py
"""

from __future__ import annotations

from math import prod
from typing import Final

from vramcast.blocks.diffusion import common as nn
from vramcast.blocks.diffusion.common import EMBEDDERS, OUTPUT, Network, Step, Weights
from vramcast.blocks.diffusion.flux import fused, stream
from vramcast.domain.model import Parameter
from vramcast.domain.pipeline import CogVideoX, Face, HunyuanVideo, Wan
from vramcast.operators.eager import Array, Tape
from vramcast.units import FP32

STEP_FREQUENCIES = 256


def hunyuan_parameters(spec: HunyuanVideo) -> Weights:
    hidden, patch, depth = spec.hidden, spec.patch_size, spec.patch_size_t
    yield from nn.each(EMBEDDERS, nn.conv("x_embedder", spec.in_channels, hidden, depth, patch, patch))
    yield from nn.each(EMBEDDERS, nn.embedder("context.time", STEP_FREQUENCIES, hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("context.text", spec.text_embed_dim, hidden))
    yield from nn.each(EMBEDDERS, nn.linear("context.proj_in", spec.text_embed_dim, hidden))
    refiner = [*nn.norm("norm1", hidden, bias=True), *nn.norm("norm2", hidden, bias=True)]
    refiner += nn.linear("gate", hidden, 2 * hidden)
    refiner += [*nn.square("", hidden), *nn.feed_forward_weights("", hidden, 4 * hidden)]
    yield from nn.each("refiner", refiner, spec.num_refiner_layers)
    yield from nn.each(EMBEDDERS, nn.embedder("timestep_embedder", STEP_FREQUENCIES, hidden))
    if spec.guidance_embeds:
        yield from nn.each(EMBEDDERS, nn.embedder("guidance_embedder", STEP_FREQUENCIES, hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("text_embedder", spec.pooled_projection_dim, hidden))
    head, ratio = spec.attention_head_dim, spec.mlp_ratio
    streams = [stream(name, hidden, head, mlp_ratio=ratio) for name in ("image", "text")]
    yield from nn.each("double", (*streams[0], *streams[1]), spec.num_layers)
    yield from nn.each("single", fused(hidden, head, mlp_ratio=ratio), spec.num_single_layers)
    out = nn.linear("proj_out", hidden, depth * patch * patch * spec.out_channels)
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", hidden, 2 * hidden), *out))


def hunyuan_forward(tape: Tape, spec: HunyuanVideo, step: Step) -> Array:
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    frames = step.frames // spec.patch_size_t
    tokens = frames * (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.frames, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.text_embed_dim), size)
    rope = [tape.new(f"rope.{name}", (tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]
    # the patches are one convolution whose output the first variable holds, flattened as a view
    video = tape.new("patches", (step.batch, tokens, hidden), size)
    text = tape.linear(prompt, hidden, "text.refined")

    streams = [video, text]
    del video, text
    nn.layers(tape, "double", spec.num_layers, lambda video, text: _double(tape, spec, video, text), streams)
    nn.layers(tape, "single", spec.num_single_layers, lambda video, text: _single(tape, spec, video, text), streams)
    out = nn.modulated(tape, streams[0], "norm_out")
    del latent, rope
    return tape.linear(out, spec.patch_size_t * patch * patch * spec.out_channels, "noise")


def _double(tape: Tape, spec: HunyuanVideo, video: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = nn.modulated(tape, video, "video.norm1"), nn.modulated(tape, text, "text.norm1")
    parts = _attended(tape, spec, normed, normed_text)
    video = nn.gated_residual(tape, video, parts[0], "video.attended")
    text = nn.gated_residual(tape, text, parts[1], "text.attended")
    normed, normed_text = nn.modulated(tape, video, "video.norm2"), nn.modulated(tape, text, "text.norm2")
    inner = int(spec.hidden * spec.mlp_ratio)
    out = nn.feed_forward(tape, normed, inner, "video.ff")
    text_out = nn.feed_forward(tape, normed_text, inner, "text.ff")
    return nn.gated_residual(tape, video, out, "video"), nn.gated_residual(tape, text, text_out, "text")


def _attended(tape: Tape, spec: HunyuanVideo, video: Array, text: Array) -> tuple[Array, Array]:
    heads, hidden = spec.num_attention_heads, spec.hidden
    q, k, v = (nn.heads_of(part, heads) for part in nn.projections(tape, video, hidden, "video"))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    q = nn.rotated(tape, q)
    k = nn.rotated(tape, k)
    text_q, text_k, text_v = (nn.heads_of(part, heads) for part in nn.projections(tape, text, hidden, "text"))
    text_q, text_k = tape.rms_norm(text_q), tape.rms_norm(text_k)
    q, k, v = tape.cat((q, text_q), 1), tape.cat((k, text_k), 1), tape.cat((v, text_v), 1)
    both = nn.merged(tape.attention(q, k, v))
    part = tape.linear(both.view(*video.shape), hidden, "video.out")
    return part, tape.linear(both.view(*text.shape), hidden, "text.out")


def _single(tape: Tape, spec: HunyuanVideo, video: Array, text: Array) -> tuple[Array, Array]:
    hidden, heads = spec.hidden, spec.num_attention_heads
    x = tape.cat((video, text), 1, "hidden.joined")
    normed = nn.modulated(tape, x, "norm")
    inner = tape.activation(tape.linear(normed, int(hidden * spec.mlp_ratio), "proj_mlp"), "mlp")
    part = _single_attention(tape, normed, video.shape[1], heads)
    both = tape.cat((part, inner), 2, "attention and mlp")
    x = nn.gated_residual(tape, x, tape.linear(both, hidden, "proj_out"), "hidden")
    return x.view(*video.shape), x.view(*text.shape)


def _single_attention(tape: Tape, x: Array, tokens: int, heads: int) -> Array:
    """The whole sequence is projected; only the video's part is rotated and joined with the text's again."""
    joined = tape.cat((x,), 1, "attention.input")
    q, k, v = (nn.heads_of(part, heads) for part in nn.projections(tape, joined, x.shape[-1]))
    q, k = tape.rms_norm(q, "norm_q"), tape.rms_norm(k, "norm_k")
    part = q.view(q.shape[0], tokens, *q.shape[2:])
    rest = q.view(q.shape[0], x.shape[1] - tokens, *q.shape[2:])
    q = tape.cat((nn.rotated(tape, part), rest), 1, "q.joined")
    part = k.view(k.shape[0], tokens, *k.shape[2:])
    k = tape.cat((nn.rotated(tape, part), rest), 1, "k.joined")
    del part, rest, joined
    return nn.merged(tape.attention(q, k, v))


def cogvideox_parameters(spec: CogVideoX) -> Weights:
    hidden, patch, time = spec.hidden, spec.patch_size, spec.time_embed_dim
    if spec.patch_size_t is None:
        patches = nn.conv("patch_embed.proj", spec.in_channels, hidden, patch, patch)
    else:
        patches = nn.linear("patch_embed.proj", spec.in_channels * patch * patch * spec.patch_size_t, hidden)
    yield from nn.each(EMBEDDERS, (*patches, *nn.linear("patch_embed.text_proj", spec.text_embed_dim, hidden)))
    yield from nn.each(EMBEDDERS, (*nn.linear("time.1", hidden, time), *nn.linear("time.2", time, time)))
    if spec.ofs_embed_dim:
        ofs = spec.ofs_embed_dim
        yield from nn.each(EMBEDDERS, (*nn.linear("ofs.1", ofs, ofs), *nn.linear("ofs.2", ofs, ofs)))
    yield from nn.each("blocks", _block_weights(spec), spec.num_layers)
    if spec.face is not None:
        yield from _face_weights(spec, spec.face)
    out = patch * patch * (spec.patch_size_t or 1) * spec.out_channels
    yield from nn.each(OUTPUT, nn.norm("norm_final", hidden, bias=True))
    yield from nn.each(OUTPUT, nn.norm("norm_out.norm", hidden, bias=True))
    yield from nn.each(OUTPUT, (*nn.linear("norm_out", time, 2 * hidden), *nn.linear("proj_out", hidden, out)))


def cogvideox_buffers(spec: CogVideoX) -> int:
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
        parts += nn.linear(f"norm{index}", spec.time_embed_dim, 6 * hidden)
        parts += nn.norm(f"norm{index}.norm", hidden, bias=True)
    return (
        *parts, *nn.square("", hidden), *nn.query_key_norms("", head, bias=True),
        *nn.feed_forward_weights("", hidden, 4 * hidden),
    )


def _face_weights(spec: CogVideoX, face: Face) -> Weights:
    """The extractor of facial tokens and the cross-attentions that read them."""
    vit, inner = face.vit_dim, face.dim_head * face.num_heads
    scales = face.num_scale
    for _ in range(scales):
        yield from nn.each("face.mapping", _mapping(vit, vit, vit))
    yield from nn.each("face.mapping", _mapping(face.id_dim, vit, vit * face.num_id_token))
    layer = [
        *nn.norm("norm1", vit, bias=True), *nn.norm("norm2", vit, bias=True), *nn.linear("q", vit, inner, bias=False),
        *nn.linear("kv", vit, 2 * inner, bias=False), *nn.linear("out", inner, vit, bias=False),
        *nn.norm("ff.norm", vit, bias=True), *nn.linear("ff.up", vit, face.ff_mult * vit, bias=False),
        *nn.linear("ff.down", face.ff_mult * vit, vit, bias=False),
    ]
    yield from nn.each("face.extractor", layer, face.depth)
    table = Parameter(path="latents", shape=(face.num_queries, vit), kind="embedding")
    out = Parameter(path="proj_out", shape=(vit, face.output_dim))
    yield from nn.each("face.extractor", (table, out))
    hidden, width = spec.hidden, face.cross_attn_dim_head * face.cross_attn_num_heads
    source = int(hidden / 3 * 2)
    cross = (
        *nn.norm("norm1", source, bias=True), *nn.norm("norm2", hidden, bias=True),
        *nn.linear("q", hidden, width, bias=False),
        *nn.linear("kv", source, 2 * width, bias=False), *nn.linear("out", width, hidden, bias=False),
    )
    yield from nn.each("face.cross_attention", cross, spec.num_layers // face.cross_attn_interval)


def _mapping(before: int, inner: int, after: int) -> tuple[Parameter, ...]:
    return (
        *nn.linear("1", before, inner), *nn.norm("norm1", inner, bias=True), *nn.linear("2", inner, inner),
        *nn.norm("norm2", inner, bias=True), *nn.linear("3", inner, after),
    )


def cogvideox_forward(tape: Tape, spec: CogVideoX, step: Step) -> Array:
    hidden, size, patch = spec.hidden, step.itemsize, spec.patch_size
    frames = step.frames // (spec.patch_size_t or 1)
    tokens = frames * (step.height // patch) * (step.width // patch)
    latent = tape.new("latent", (step.batch, step.frames, spec.in_channels, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.text_embed_dim), size)
    rope = [tape.new(f"rope.{name}", (tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]
    text = tape.linear(prompt, hidden, "text_proj")
    video = tape.new("patches", (step.batch, tokens, hidden), size)
    joined = tape.cat((text, video), 1, "hidden.joined")
    del text, video
    if not spec.use_rotary_positional_embeddings:
        joined = tape.add(joined, name="hidden.joined")
    video, text = joined.view(step.batch, tokens, hidden), joined.view(step.batch, step.tokens, hidden)

    streams = [video, text]
    del video, text, joined
    nn.layers(tape, "blocks", spec.num_layers, lambda video, text: _block(tape, spec, video, text), streams)
    both = tape.cat(streams, 1)
    both = tape.layer_norm(both, "norm_final")
    out = nn.modulated(tape, both, "norm_out")
    del latent, rope
    return tape.linear(out, patch * patch * (spec.patch_size_t or 1) * spec.out_channels, "noise")


def _block(tape: Tape, spec: CogVideoX, video: Array, text: Array) -> tuple[Array, Array]:
    normed, normed_text = nn.modulated(tape, video, "video.norm1"), nn.modulated(tape, text, "text.norm1")
    part, text_part = _cogvideox_attended(tape, spec, normed, normed_text)
    video = tape.add(video, nn.gated(tape, part, "video.gated"), name="video.attended")
    text = tape.add(text, nn.gated(tape, text_part, "text.gated"), name="text.attended")
    normed, normed_text = nn.modulated(tape, video, "video.norm2"), nn.modulated(tape, text, "text.norm2")
    normed = tape.cat((normed_text, normed), 1, "ff.input")
    out = nn.feed_forward(tape, normed, 4 * spec.hidden)
    video = tape.add(video, nn.gated(tape, out.view(*video.shape), "video.ff.gated"), name="video")
    text = tape.add(text, nn.gated(tape, out.view(*text.shape), "text.ff.gated"), name="text")
    return video, text


def _cogvideox_attended(tape: Tape, spec: CogVideoX, video: Array, text: Array) -> tuple[Array, Array]:
    hidden = spec.hidden
    x = tape.cat((text, video), 1, "attention.input")
    q, k, v = (nn.heads_of(part, spec.num_attention_heads) for part in nn.projections(tape, x, hidden))
    q, k = tape.layer_norm(q, "norm_q"), tape.layer_norm(k, "norm_k")
    if spec.use_rotary_positional_embeddings:
        for part in (q, k):  # written back in place over the video's tokens
            nn.rotated(tape, part.view(part.shape[0], video.shape[1], *part.shape[2:]))
    x = nn.merged(tape.attention(q, k, v))
    del k, v
    x = tape.linear(x, hidden, "out")
    return x.view(*video.shape), x.view(*text.shape)


def wan_parameters(spec: Wan) -> Weights:
    hidden = spec.hidden
    yield from nn.each(EMBEDDERS, nn.conv("patch_embedding", spec.in_channels, hidden, *spec.patch_size))
    yield from nn.each(EMBEDDERS, nn.embedder("time_embedder", spec.freq_dim, hidden))
    yield from nn.each(EMBEDDERS, nn.linear("time_proj", hidden, 6 * hidden))
    yield from nn.each(EMBEDDERS, nn.embedder("text_embedder", spec.text_dim, hidden))
    if spec.image_dim is not None:
        image = spec.image_dim
        yield from nn.each(EMBEDDERS, nn.norm("image.norm1", image, bias=True))
        yield from nn.each(EMBEDDERS, nn.norm("image.norm2", hidden, bias=True))
        yield from nn.each(EMBEDDERS, (*nn.linear("image.1", image, image), *nn.linear("image.2", image, hidden)))
    yield from nn.each("blocks", _wan_block_weights(spec), spec.num_layers)
    out = nn.linear("proj_out", hidden, prod(spec.patch_size) * spec.out_channels)
    yield from nn.each(OUTPUT, (Parameter(path="scale_shift_table", shape=(1, 2, hidden), kind="scalar"), *out))


def _wan_block_weights(spec: Wan) -> tuple[Parameter, ...]:
    hidden = spec.hidden
    parts = [Parameter(path="scale_shift_table", shape=(1, 6, hidden), kind="scalar")]
    for prefix in ("attn1", "attn2"):
        parts += [*nn.square(f"{prefix}.", hidden), *nn.query_key_norms(f"{prefix}.", hidden)]
    if spec.added_kv_proj_dim is not None:
        for name in ("k", "v"):
            parts += nn.linear(f"attn2.image.{name}", spec.added_kv_proj_dim, hidden)
        parts += nn.norm("attn2.image.norm_k", hidden)
    if spec.cross_attn_norm:
        parts += nn.norm("norm2", hidden, bias=True)
    return (*parts, *nn.feed_forward_weights("", hidden, spec.ffn_dim))


def wan_forward(tape: Tape, spec: Wan, step: Step) -> Array:
    """One denoising step; guidance runs a second one, not a larger batch."""
    hidden, size = spec.hidden, step.itemsize
    depth, rows, columns = spec.patch_size
    tokens = (step.frames // depth) * (step.height // rows) * (step.width // columns)
    latent = tape.new("latent", (step.batch, spec.in_channels, step.frames, step.height, step.width), size)
    prompt = tape.prompt("text states", (step.batch, step.tokens, spec.text_dim), size)
    rope = [tape.new(f"rope.{name}", (tokens, spec.attention_head_dim), FP32) for name in ("cos", "sin")]
    video = tape.new("patches", (step.batch, tokens, hidden), size)
    text = tape.linear(prompt, hidden, "text_embedder")

    streams = [video]
    del video
    nn.layers(tape, "blocks", spec.num_layers, lambda video: (_wan_block(tape, spec, video, text),), streams)
    out = _fp32_modulated(tape, streams[0], "norm_out")
    del latent, rope
    return tape.linear(out, prod(spec.patch_size) * spec.out_channels, "noise")


def _fp32_modulated(tape: Tape, x: Array, name: str) -> Array:
    """The norm and its modulation in fp32, cast back."""
    wide = tape.cast(x, FP32, f"{name}.fp32")
    normed = tape.layer_norm(wide, f"{name}.norm")
    del wide
    scaled = nn.gated(tape, normed, f"{name}.scaled")
    del normed
    total = tape.add(scaled, name=f"{name}.sum")
    del scaled
    return tape.cast(total, x.width, name)


def _fp32_residual(tape: Tape, x: Array, part: Array, name: str, *, widened: bool = False) -> Array:
    """x + gate * part in fp32, the gate being fp32 already; `widened`: the part is cast before."""
    wide = tape.cast(x, FP32, f"{name}.fp32")
    part = tape.cast(part, FP32, f"{name}.part") if widened else part
    gated = tape.multiply(part, tape.modulation(part, FP32), f"{name}.gated")
    del part
    total = tape.add(wide, gated, name=f"{name}.sum")
    del wide, gated
    return tape.cast(total, x.width, name)


def _wan_block(tape: Tape, spec: Wan, x: Array, text: Array) -> Array:
    normed = _fp32_modulated(tape, x, "norm1")
    part = _self_attention(tape, spec, normed)
    x = _fp32_residual(tape, x, part, "attended")
    normed = tape.cast(tape.layer_norm(tape.cast(x, FP32, "norm2.fp32"), "norm2.out"), x.width, "norm2")
    part = _cross_attention(tape, spec, normed, text)
    x = tape.add(x, part, name="cross attended")
    normed = _fp32_modulated(tape, x, "norm3")
    part = nn.feed_forward(tape, normed, spec.ffn_dim)
    return _fp32_residual(tape, x, part, "hidden", widened=True)


def _self_attention(tape: Tape, spec: Wan, x: Array) -> Array:
    heads = spec.num_attention_heads
    q, k, v = nn.projections(tape, x, spec.hidden)
    q, k = tape.torch_rms_norm(q, "norm_q"), tape.torch_rms_norm(k, "norm_k")
    q, k, v = (nn.heads_of(part, heads) for part in (q, k, v))
    q, k = _rotated(tape, q), _rotated(tape, k)
    y = nn.merged(tape.attention(q, k, v))
    del k, v
    return tape.linear(y, spec.hidden, "out")


def _rotated(tape: Tape, x: Array) -> Array:
    """Even and odd channels apart, written into an empty tensor of the width of x."""
    out, halves, sums = tape.like("rotated", x), x.chunk(2), []
    for name in ("even", "odd"):
        first, second = (
            tape.multiply(half, tape.outside((1,), FP32), f"rope.{name}.{part}")
            for half, part in zip(halves, ("cos", "sin"), strict=True)
        )
        sums.append(tape.written(tape.add(first, second, name=f"rope.{name}.sum")))
        del first, second
    return tape.assigned(out, sums)


def _cross_attention(tape: Tape, spec: Wan, x: Array, text: Array) -> Array:
    hidden, heads = spec.hidden, spec.num_attention_heads
    q = tape.linear(x, hidden, "cross.q")
    k, v = (tape.linear(text, hidden, f"cross.{name}") for name in "kv")
    q, k = tape.torch_rms_norm(q, "cross.norm_q"), tape.torch_rms_norm(k, "cross.norm_k")
    y = nn.merged(tape.attention(*(nn.heads_of(part, heads) for part in (q, k, v))))
    del k, v
    return tape.linear(y, hidden, "cross.out")


NETWORKS: Final = {
    "HunyuanVideoTransformer3DModel": Network(
        "diffusers models/transformers/transformer_hunyuan_video.py", hunyuan_parameters, hunyuan_forward
    ),
    "CogVideoXTransformer3DModel": Network(
        "diffusers models/transformers/cogvideox_transformer_3d.py", cogvideox_parameters, cogvideox_forward,
        cogvideox_buffers,
    ),
    "WanTransformer3DModel": Network("diffusers models/transformers/transformer_wan.py", wan_parameters, wan_forward),
}
